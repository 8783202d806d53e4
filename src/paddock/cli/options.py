"""Options that several commands share, and their conversion to a policy Request."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from paddock.errors import UsageError
from paddock.policy import GrantFlag, Request
from paddock.policy.model import Access, Switch, Tier, ToolSettings


class Parser(argparse.ArgumentParser):
    """argparse with UsageErrors (exit 125) and without abbreviations."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"paddock {command}", description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(
            f"{self.prog.removeprefix('paddock ')}: {message}",
            hint=f"type `{self.prog} --help` to list the options",
        )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self._refuse(unknown[0])
        return parsed

    def _refuse(self, unknown: str) -> NoReturn:
        import difflib

        name = unknown.partition("=")[0]
        near = difflib.get_close_matches(name, self._option_string_actions, 1)
        raise UsageError(
            f"{self.prog.removeprefix('paddock ')}: unknown option {name}"
            if name.startswith("-")
            else f"{self.prog.removeprefix('paddock ')}: unexpected argument {unknown!r}",
            hint=f"did you mean {near[0]}?"
            if near and name.startswith("-")
            else f"type `{self.prog} --help` to list the options",
        )

    def split_command(self, arguments: list[str]) -> tuple[list[str], list[str] | None]:
        """The options, and the command. Without ``--`` the command begins at the first word that is
        neither an option nor the value of one. None: there is no command.
        """
        options, command = split_at_dashes(arguments)
        if command is not None:
            return options, command
        at = 0
        while at < len(arguments) and arguments[at].startswith("-"):
            action = self._option_string_actions.get(arguments[at])
            at += 2 if action is not None and action.nargs is None else 1
            may_be_value = at < len(arguments) and not arguments[at].startswith("-")
            if action is not None and action.nargs == "?" and may_be_value:
                return arguments, None  # the next word is its value or the command
        return arguments[:at], arguments[at:] or None


def split_at_dashes(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """Splits off all words after ``--`` (None without ``--``)."""
    if "--" not in arguments:
        return arguments, None
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def add_tool_options(parser: Parser) -> None:
    """Options for tool calls. They override the configurations."""
    add, flag = parser.add_argument, argparse.BooleanOptionalAction
    add("--config", metavar="FILE", help="read this JSON configuration after your own")
    add("--read-only", action="store_true", help="deny every write and every command")
    add("--require-approval", action=flag, default=None, help="ask before writes and commands")
    add(
        "--restrict-to-cwd",
        action=flag,
        default=None,
        help="keep file tools in the current directory",
    )
    for name, help_text in (
        ("allowed-paths", "let file tools use only these paths"),
        ("denied-paths", "deny these paths to file tools too"),
    ):
        add(
            f"--{name}",
            action="append",
            default=[],
            metavar="GLOBS",
            help=f"{help_text}; separate with commas, or repeat",
        )
    add(
        "--denied-commands",
        action="append",
        default=[],
        metavar="COMMAND",
        help="deny this command too; repeatable",
    )


def tool_flags_of(options: argparse.Namespace) -> ToolSettings:
    from paddock.policy.formats.agent_config import tool_flags

    def several(written: list[str]) -> tuple[str, ...]:
        found = tuple(one.strip() for text in written for one in text.split(","))
        if "" in found:
            raise UsageError("the list of paths has an empty path")
        return found

    return tool_flags(
        read_only=options.read_only,
        require_approval=options.require_approval,
        restrict_to_cwd=options.restrict_to_cwd,
        allowed_paths=several(options.allowed_paths),
        denied_paths=several(options.denied_paths),
        denied_commands=options.denied_commands,
    )


def add_policy_options(parser: Parser, *, without: str | None = None) -> None:
    """Options that choose and extend the policy. ``without``: an option name that has another
    meaning in this command.
    """
    add = parser.add_argument
    add(
        "--profile",
        action="append",
        default=[],
        metavar="NAME",
        help="use this profile, by name or path; repeatable",
    )
    add(
        "--policy",
        action="append",
        default=[],
        metavar="FILE",
        help="use this policy file; repeatable",
    )
    add(
        "--only",
        action="store_true",
        help="grant only what the flags name: no default profile, no ./paddock.toml",
    )
    for access, every, help_text in _GRANTS:
        names = [name for name in every if name != without]
        add(*names, action=_Grant, dest="grants", access=access, metavar="GLOB", help=help_text)
    add(
        "--deny",
        action="append",
        default=[],
        metavar="GLOB",
        help="deny these paths, even if a grant allows them",
    )
    add(
        "--open-protected",
        action="append",
        default=[],
        metavar="GLOB",
        help="let the command write this file, which is read-only by default because programs "
        "outside run or trust it",
    )
    add(
        "--cow",
        action="store_true",
        help="work on a copy of the workspace; review it with `paddock diff`",
    )
    add("--resume", metavar="SESSION", help="continue with the copy of an earlier session")
    add("--block", action="append", default=[], metavar="SYSCALL", help="deny this system call")
    add(
        "--socket",
        action="append",
        default=[],
        metavar="FAMILY",
        help="allow sockets of this family (unix)",
    )
    add(
        "--allow-domain",
        action="append",
        default=[],
        metavar="HOST",
        help="allow this host or group (@github), and deny every host that is not listed",
    )
    add(
        "--allow-endpoint",
        action="append",
        default=[],
        metavar="ROUTE:METHOD:PATH",
        help="allow one more request of a [network.routes] entry ('*': one part of the path, "
        "'**': any number)",
    )
    add(
        "--deny-domain",
        action="append",
        default=[],
        metavar="HOST",
        help="deny this host, even if another rule allows it",
    )
    add("--block-net", action="store_true", help="give the command no network")
    add(
        "--env-pass",
        action="append",
        default=[],
        metavar="NAME",
        help="pass this environment variable to the command",
    )
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set this environment variable for the command",
    )
    add(
        "--workdir",
        metavar="DIR",
        help="start the command in this directory (default: the current directory)",
    )
    add(
        "--strict-globs",
        action="store_true",
        help="refuse a pattern such as /etc/*.conf, which the kernel can enforce only for the "
        "whole directory",
    )
    add(
        "--audit",
        nargs="?",
        const=True,
        metavar="FILE",
        help="write the journal, and print it on stderr; =FILE: write to this .jsonl file",
    )
    add("--audit-log", metavar="DIR", help="write the journal to this directory or .jsonl file")
    add(
        "--tier",
        choices=[one.value for one in Tier],
        help="use this kind of sandbox or refuse to start (default: full if possible; see `paddock "
        "doctor`)",
    )
    add(
        "--off",
        action="append",
        default=[],
        choices=[one.value for one in Switch],
        help="turn this part of the sandbox off, with a warning",
    )


_GRANTS = (
    (Access.READ, ("-r", "--read", "--ro"), "allow reading, listing and executing"),
    (Access.WRITE, ("-w", "--write"), "allow creating and writing, without reading"),
    (Access.ALLOW, ("-a", "--allow", "--rw"), "allow reading and writing"),
    (Access.EXEC, ("-x", "--exec"), "allow executing single programs, without listing"),
)


class _Grant(argparse.Action):
    """Stores grants in their written order, each with its flag."""

    def __init__(self, *, access: Access, **rest: Any) -> None:
        super().__init__(**rest)
        self.access = access

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        grants = getattr(namespace, self.dest, None) or []
        grants.append(GrantFlag(access=self.access, pattern=values, flag=option or ""))
        setattr(namespace, self.dest, grants)


def request_of(options: argparse.Namespace, *, command: str | None) -> Request:
    file = options.audit if isinstance(options.audit, str) else None
    if file and options.audit_log:
        raise UsageError(
            "--audit=FILE and --audit-log both name a journal", hint="give only one of the two"
        )
    if file and not file.endswith(".jsonl"):
        raise UsageError(
            f"--audit={file}: the name of a journal file must end in .jsonl",
            hint="for a directory, type --audit-log DIR",
        )
    if options.only and (options.profile or options.policy):
        named = "--profile" if options.profile else "--policy"
        raise UsageError(
            f"--only and {named} contradict: --only starts without any policy",
            hint=f"leave out --only or {named}",
        )
    return Request(
        profiles=tuple(options.profile),
        only=options.only,
        policies=tuple(options.policy),
        grants=tuple(options.grants or ()),
        denies=tuple(options.deny),
        open_protected=tuple(options.open_protected),
        tier=Tier(options.tier) if options.tier else None,
        cow=options.cow,
        resume=options.resume,
        blocks=tuple(options.block),
        sockets=tuple(options.socket),
        allow_domains=tuple(options.allow_domain),
        deny_domains=tuple(options.deny_domain),
        allow_endpoints=tuple(options.allow_endpoint),
        block_net=options.block_net,
        env_pass=tuple(options.env_pass),
        env_set=tuple(_assignment(one) for one in options.env),
        off=tuple(Switch(name) for name in dict.fromkeys(options.off)),
        audit=options.audit is not None or options.audit_log is not None,
        audit_stderr=options.audit is not None,
        audit_dir=file or options.audit_log,
        strict_globs=options.strict_globs,
        workdir=options.workdir,
        command=command,
    )


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--env {text}: write NAME=VALUE")
    return name, value
