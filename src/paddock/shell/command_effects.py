"""The effects of a command: code that it runs, programs that it starts, files that it writes, and
its output.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fnmatch
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from paddock.shell.dialect import Dialect
from paddock.shell.program_arguments import (
    SHELLS,
    Command,
    ShellStream,
    appended,
    decodes,
    found_by,
    interprets,
    joined,
    matches_of,
    reads_its_program,
    shell_script,
    startup_file,
    unwrap,
    written_by,
)
from paddock.shell.shell_state import ShellState
from paddock.shell.words import UNKNOWN, Piece, printed
from paddock.shell.wrappers import wrapper_of

# They run what they read: now, later or elsewhere.
_READERS = frozenset({"at", "batch", "newgrp", "crontab"})
_STDIN = re.compile(r"/dev/stdin|/dev/fd/0|/proc/(?:self|thread-self|[0-9]+)/fd/0|-")
# Programs that run text as code of another language, or not only as shell; and some with such
# options.
_OTHER_CODE = frozenset(
    (
        "awk", "gawk", "mawk", "nawk", "sed", "vim", "vi", "nvim", "view", "ex", "emacs", "ed",
        "gdb", "lldb", "make",
        "gmake", "compgen", "complete", "bind", "expect", "tclsh", "screen", "tmux", "sqlite3",
        "psql",
    )
)  # fmt: skip
_CODE_IN_OPTIONS = frozenset({"git", "tar", "ssh", "scp", "sftp", "rsync"})
_RUN = re.compile(
    r"s([^\w\s\\])((?:\\.|(?!\1).)*)\1((?:\\.|(?!\1).)*)\1[gpiImM0-9]*e"
)  # s/…/command/e of sed
_RUN_LINE = re.compile(r"(?:^|[\s\d$/;{!])e\s*([^;}\n]+)")  # the e command of sed
_CODE = ("-c", "-e", "-o")
# Code without blanks; but not a file name, and not the replacement text of sed.
_MORE_THAN_A_NAME = re.compile(r"[\s\"'`(){}!;|&<>=]")
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The programs whose output is run, the code if it is known, and whether a part is unknown."""

    programs: frozenset[str] = frozenset()
    text: str | None = None
    opaque: bool = False


def code_of(
    state: ShellState, command: Command, stdin: ShellStream | None, substituted: frozenset[str]
) -> Code:
    words, program = command.words, command.program
    if program in SHELLS:
        script, file = shell_script(words)
        first = startup_file(words)
        started = Code() if first is None else _from_file(state, first, stdin)
        if script is not None:
            text = f"{started.text}\n{script}" if started.text else script
            return Code(programs=substituted | started.programs, text=text)
        if started != Code():
            return started
        return _from(stdin) if file is None else _from_file(state, file, stdin)
    if program in _READERS or (program == "ssh" and not any(unwrapped(command, stdin))):
        return _from(stdin)
    match program:
        case "eval":
            return Code(
                programs=substituted,
                text=" ".join(words[2:] if words[1:2] == ("--",) else words[1:]),
            )
        case "trap" if len(words) > 2:
            at = 2 if words[1] == "--" else 1
            return Code(
                programs=substituted, text=words[at] if words[at] not in ("-", "") else None
            )
        case "alias":
            return Code(
                programs=substituted, text="\n".join(word.partition("=")[2] for word in words[1:])
            )
        case "source" | "." if len(words) > 1:
            return _from_file(
                state, words[2] if words[1] == "--" and len(words) > 2 else words[1], stdin
            )
        case "enable" | "fc" | "compgen" | "complete" | "bind" if len(words) > 1:
            return Code(opaque=True)
        case "mapfile" | "readarray" if any(word[:1] == "-" and "C" in word for word in words[1:]):
            return Code(opaque=True)
    if interprets(program):
        if reads_its_program(words):
            return (
                Code()
                if stdin is None
                else Code(programs=stdin.programs, opaque=stdin.text is None)
            )
        named = [word for word in words[1:] if not word.startswith("-")]
        file_programs = _from_file(state, named[0], stdin).programs if named else frozenset[str]()
        return Code(
            programs=file_programs | (substituted if {"-c", "-e"} & set(words) else frozenset())
        )
    if "/" in (words[0] if words else ""):
        return _from_file(state, words[0], None)
    return Code()


def dialect_for(command: Command, text: str, here: Dialect) -> Dialect:
    """The dialect of the shell that runs the text of a command. ``here``: that of the shell that
    runs the command.
    """
    if command.program in ("eval", "trap", "alias", "source", "."):
        return here
    first = text.partition("\n")[0]
    by_file = first.startswith("#!") and command.program not in SHELLS
    return Dialect.BASH if "bash" in (first if by_file else command.program) else Dialect.SH


def _from(stream: ShellStream | None) -> Code:
    return (
        Code()
        if stream is None
        else Code(programs=stream.programs, text=stream.text, opaque=stream.text is None)
    )


def _from_file(state: ShellState, name: str, stdin: ShellStream | None) -> Code:
    """The content of a file that this line wrote is known. Other files are not."""
    if _STDIN.fullmatch(name):
        return _from(stdin)
    path = state.resolve(name)
    stream = state.files.get(path)
    if stream is None and _GLOB.search(name):
        stream = joined(
            [file for known, file in state.files.items() if fnmatch.fnmatchcase(known, path)]
        )
    if stream is None or stream == ShellStream(text=""):
        return Code()
    script = (
        stream.text
        if stream.text is None or not stream.text.startswith("#!") or "sh" in stream.text[:32]
        else None
    )
    return Code(
        programs=stream.programs, text=script, opaque=script is None and name.startswith("/dev/fd/")
    )


def other_code(command: Command, stdin: ShellStream | None) -> str | None:
    """Text that a program other than a shell runs as code, and may pass to a shell."""
    words = command.words[1:]
    run: list[str] = []
    if command.program in _CODE_IN_OPTIONS:
        long = (
            ()
            if command.program == "git"
            else tuple(word for word in words if word.startswith("--"))
        )
        words = (*long, *(word for at, word in enumerate(words) if at and words[at - 1] in _CODE))
    elif command.program in _OTHER_CODE or interprets(command.program):
        words = (*words, (stdin.text or "") if stdin is not None else "")
        if command.program == "sed":
            script = " ".join(words)
            run += (found[3].replace(f"\\{found[1]}", found[1]) for found in _RUN.finditer(script))
            run += (found[1] for found in _RUN_LINE.finditer(script))
    else:
        return None
    return (
        "\n".join(
            (*(word.replace("=", " ") for word in words if _MORE_THAN_A_NAME.search(word)), *run)
        )
        or None
    )


def unwrapped(
    command: Command, stdin: ShellStream | None
) -> Iterator[tuple[Command | str, ShellStream | None]]:
    words = command.words
    if command.program == "find":
        yield from ((inner, None) for inner in found_by(command))
        return
    wrapper = wrapper_of(command.program)
    if wrapper is None:
        return
    found = unwrap(wrapper, words)
    if found.text is not None:
        yield found.text, stdin
    commands = [found.words] if found.words else []
    if wrapper.appends and (commands or wrapper.feeds):
        commands = list(appended(found.words, words, stdin))
    for rest in commands:
        if wrapper.feeds and rest[0] == "":
            yield rest[1], None
            continue
        inner = replace(
            command,
            words=rest,
            cwd=command.cwd
            if found.cwd is None
            else os.path.normpath(os.path.join(command.cwd, found.cwd)),
            assigned=found.settings,
            redirects=(),
            bare=command.bare and not found.settings and found.cwd is None,
        )
        if wrapper.joins:
            yield " ".join(rest), stdin
        else:
            yield inner, None if wrapper.appends else stdin


def effect_of(state: ShellState, command: Command, stdin: ShellStream | None) -> ShellStream:
    """The effect of a simple command on the shell, and its output."""
    words, program = command.words, command.program
    if not words:
        return ShellStream(text="")
    came = stdin.programs if stdin is not None else frozenset[str]()
    out = came | {program if program not in SHELLS else "shell"}
    operands = [word for word in words[1:] if not word.startswith("-") or word == "-"]
    match program:
        case "cd" | "pushd":
            state.cd(operands[0] if operands else state.home)
        case "echo" | "printf":
            return ShellStream(text=printed(words), programs=came)
        case "cat" | "tee" | "head" | "tail" | "tac":
            if program == "tee":
                for word in words[1:]:
                    state.files[state.resolve(word)] = stdin or ShellStream()
                return stdin or ShellStream(programs=out)
            files = [
                state.files.get(state.resolve(word))
                for word in words[1:]
                if not word.startswith("-")
            ]
            if not files and stdin is not None:
                return stdin
            if files and all(file is not None for file in files):
                return joined([file for file in files if file is not None])
        case "base64" if stdin is not None and stdin.text is not None and decodes(words):
            with contextlib.suppress(binascii.Error, ValueError):
                data = base64.b64decode("".join(stdin.text.split()))
                return ShellStream(text=data.decode("utf-8", "surrogateescape"), programs=came)
        case "read" if len(words) > 1:
            state.variables[words[-1]] = (Piece(UNKNOWN, programs=came),)
        case "find":
            return ShellStream(programs=out, matches=matches_of(words))
        case "set" if "--" in words:
            state.set_arguments(words[words.index("--") + 1 :])
        case "alias":
            state.names |= {
                name: text
                for name, equals, text in (word.partition("=") for word in words[1:])
                if equals
            }
        case "hash" if "-p" in words[1:] and len(operands) > 1:
            state.names[operands[-1]] = operands[-2]
        case "dd":
            named = {key: value for key, _, value in (word.partition("=") for word in words[1:])}
            known = state.files.get(state.resolve(named["if"])) if "if" in named else stdin
            if "of" not in named:
                return known or ShellStream(programs=out)
            state.files[state.resolve(named["of"])] = known or ShellStream(programs=out)
        case "cp" | "mv" | "ln" | "link" | "install" if len(operands) > 1:
            known = (
                stdin
                if _STDIN.fullmatch(operands[-2])
                else state.files.get(state.resolve(operands[-2]))
            )
            if known is not None:
                state.files[state.resolve(operands[-1])] = known
            else:
                state.copies[state.resolve(operands[-1])] = operands[-2]
    for name in written_by(words):
        state.files[state.resolve(name)] = ShellStream(programs=out)
    return ShellStream(programs=out)
