"""Init does the writes of a shell with the rights of its layer, and judges them.

The agent is a Python program, not a shell. Its own acts are the control.
"""

from __future__ import annotations

import errno
import json
import shlex

import pytest

from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome
from tests.system.files.test_planted_repositories import ATTACKS, host_repository
from tests.system.shells.test_interception import PYTHON, RUN, agent, policy

# Each act is tried once. The script prints the errno of each, or 0.
ACTS = """
import ctypes, json, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
top = sys.argv[1]
at = lambda name: os.path.join(top, name)
def openat2(path, flags):
    how = struct.pack("QQQ", flags, 0, 0)
    fd = libc.syscall(437, -100, path.encode(), how, len(how))
    if fd < 0:
        raise OSError(ctypes.get_errno(), path)
    os.close(fd)
def bind():
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(at("socket"))
def reopen():
    path = os.open(at("written"), os.O_PATH)
    os.close(os.open(f"/proc/self/fd/{path}", os.O_WRONLY))
def change_open():
    with open(at("written")) as file:
        os.fchmod(file.fileno(), 0o640)
acts = {
    "make": lambda: os.close(os.open(at("made"), os.O_WRONLY | os.O_CREAT)),
    "write": lambda: os.close(os.open(at("written"), os.O_WRONLY)),
    "openat2": lambda: openat2(at("written"), os.O_WRONLY),
    "reopen": reopen,
    "unnamed": lambda: os.close(os.open(top, os.O_WRONLY | os.O_TMPFILE)),
    "truncate": lambda: os.truncate(at("written"), 1),
    "mkdir": lambda: os.mkdir(at("directory")),
    "fifo": lambda: os.mkfifo(at("fifo")),
    "symlink": lambda: os.symlink("x", at("symlink")),
    "link": lambda: os.link(at("written"), at("link")),
    "bind": bind,
    "chmod": lambda: os.chmod(at("written"), 0o600),
    "fchmod": change_open,
    "utime": lambda: os.utime(at("written"), (1, 1)),
    "rename": lambda: os.rename(at("renamed"), at("new name")),
    "move out": lambda: os.rename(at("moved"), "out/moved"),
    "move in": lambda: os.rename("out/other", at("other")),
    "unlink": lambda: os.unlink(at("removed")),
    "rmdir": lambda: os.rmdir(at("empty")),
}
results = {}
for name, act in acts.items():
    try:
        act()
        results[name] = 0
    except OSError as error:
        results[name] = error.errno
print(json.dumps(results))
"""


def prepared(full: SandboxRunner, name: str) -> None:
    place = full.tree.project / name
    for file in ("written", "renamed", "moved", "removed"):
        full.tree.put(place / file, "text\n")
    full.tree.put(full.tree.project / "out" / "other", "text\n")
    full.tree.make(place / "empty")


def results(outcome: Outcome) -> dict[str, int]:
    assert outcome.exit_code == 0, str(outcome)
    found: dict[str, int] = json.loads(outcome.stdout)
    return found


@pytest.mark.parametrize(
    "narrow",
    [
        'write_globs = ["<cwd>/out/**", "/tmp/**"]',
        'deny_globs = ["<cwd>/kept/**"]',
    ],
    ids=["write_globs", "deny_globs"],
)
def test_a_shell_does_not_write_where_its_layer_is_read_only(
    full: SandboxRunner, narrow: str
) -> None:
    prepared(full, "kept")
    flags = policy(full, narrow)
    script = [PYTHON, "-c", ACTS, "kept"]
    by_child = full.inside(agent("bash", "-c", shlex.join(script)), *flags)
    refused = results(by_child)
    assert set(refused.values()) <= {errno.EACCES, errno.EROFS, errno.EXDEV}, str(by_child)
    kept = {path.name for path in (full.tree.project / "kept").iterdir()}
    assert kept == {"written", "renamed", "moved", "removed", "empty"}
    by_shell = full.inside(agent("bash", "-c", "echo x > kept/new || echo refused"), *flags)
    assert by_shell.stdout == "refused\n", str(by_shell)
    by_agent = full.inside([PYTHON, "-c", ACTS, "kept"], *flags)
    assert set(results(by_agent).values()) == {0}, str(by_agent)


def test_a_shell_writes_where_its_layer_allows_it(full: SandboxRunner) -> None:
    prepared(full, "out")
    full.tree.put(full.tree.project / "out" / "moved", "text\n")
    flags = policy(full, 'write_globs = ["<cwd>/out/**", "/tmp/**"]')
    script = shlex.join([PYTHON, "-c", ACTS, "out"])
    outcome = full.inside(agent("bash", "-c", f"echo x > out/new; {script}"), *flags)
    assert set(results(outcome).values()) == {0}, str(outcome)
    assert (full.tree.project / "out" / "new").read_text() == "x\n"


def test_a_shell_gets_rights_to_names_that_are_newer_than_the_run(full: SandboxRunner) -> None:
    """Beside a denied path each name has a rule of its own. A shell has rules for the names that
    exist when it starts.
    """
    full.tree.put(full.tree.project / "token" / "key", "secret\n")
    script = (
        "import os, subprocess\n"
        "write = lambda name: subprocess.run(['bash', '-c', f'echo x > {name}/new']).returncode\n"
        "codes = [write('token')]\n"
        "os.mkdir('later')\n"
        "print(codes + [write('later'), write('token')])"
    )
    outcome = full.inside([PYTHON, "-c", script], *policy(full, 'deny_globs = ["<cwd>/token/**"]'))
    assert outcome.stdout == "[1, 0, 1]\n", str(outcome)


def test_a_shell_does_not_read_a_closed_file_by_openat2(full: SandboxRunner) -> None:
    """Init does each openat2(2), also if it only reads."""
    full.tree.put(full.tree.project / "token" / "key", "secret\n")
    script = (
        "import ctypes, os, struct\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "how = struct.pack('QQQ', 0, 0, 0)\n"
        "fd = libc.syscall(437, -100, b'token/key', how, 24)\n"
        "print(os.read(fd, 9) if fd >= 0 else ctypes.get_errno())"
    )
    flags = policy(full, 'deny_globs = ["<cwd>/token/**"]')
    by_agent = full.inside([PYTHON, "-c", script], *flags)
    assert by_agent.stdout == "b'secret\\n'\n", str(by_agent)
    by_shell = full.inside(agent("bash", "-c", shlex.join([PYTHON, "-c", script])), *flags)
    assert by_shell.stdout == "13\n", str(by_shell)


OWN_FILTER = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
text = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(program)))
if sys.argv[1] == "filtered":
    assert libc.prctl(22, 2, text, 0, 0) == 0
try:
    open("kept", "w")
    print("written")
except PermissionError:
    print("refused")
"""


def test_a_program_with_a_filter_of_its_own_only_loses_rights(full: SandboxRunner) -> None:
    flags = policy(full, 'write_globs = ["/tmp/**"]')
    for mode, result in (("plain", "written\n"), ("filtered", "refused\n")):
        outcome = full.inside([PYTHON, "-c", OWN_FILTER, mode], *flags)
        assert outcome.stdout == result, str(outcome)


RULESET = (
    "import ctypes; libc = ctypes.CDLL(None, use_errno=True); "
    "rules = libc.syscall(444, (ctypes.c_uint64 * 1)(1 << 12), 8, 0); "
    "print(rules >= 0 or ctypes.get_errno())"
)


def test_only_an_intercepted_shell_takes_landlock_rules(full: SandboxRunner) -> None:
    """Init would not be bound by the rules of another program."""
    by_shell = agent("bash", "-c", shlex.join([PYTHON, "-c", RULESET]))
    by_agent: list[Word] = [PYTHON, "-c", RULESET]
    for words in (by_agent, by_shell):
        outcome = full.inside(words, "--intercept-shells")
        assert outcome.stdout == "95\n", str(outcome)
    assert full.outside(by_agent).stdout == "True\n"


@pytest.mark.parametrize("shell", [None, 'network = "none"', 'write_globs = ["<cwd>/**"]'])
def test_a_shell_can_not_make_git_write_another_file(
    full: SandboxRunner, shell: str | None
) -> None:
    attack = ATTACKS["ORIG_HEAD names a file of the git directory"]
    flags = ("--intercept-shells",) if shell is None else policy(full, shell)
    for place, is_inside in ((full.tree.project, True), (full.tree.outside, False)):
        host_repository(full, place, attack.before)
        mark = full.tree.root / f"ran-{place.name}"
        names = f"P={place}; MARK={mark}; cd $P"
        words: list[Word] = ["sh", "-c", f"echo started; {names}; {attack.inside}"]
        outcome = full.inside(words, *flags) if is_inside else full.outside(words, cwd=place)
        assert outcome.started, str(outcome)
        after = full.tester.run(["sh", "-c", f"{names}; {attack.host}"], cwd=place)
        assert mark.exists() != is_inside, f"{outcome}\n{after}"


@pytest.mark.parametrize("shell", [None, 'write_globs = ["<cwd>/**", "/tmp/**"]'])
def test_git_works_in_a_shell(full: SandboxRunner, shell: str | None) -> None:
    flags = ("--intercept-shells",) if shell is None else policy(full, shell)
    host_repository(full, full.tree.project, "true")
    script = """
    set -e
    echo 2 > b.txt; git add b.txt; git commit -qm two
    git checkout -q -b dev; echo 3 > a.txt; git commit -qam three
    git checkout -q main; git merge -q dev; git gc -q; git init -q sub; git status -s
    git log --oneline | wc -l
    """
    outcome = full.inside([PYTHON, "-c", RUN, "bash", "-c", script], *flags)
    assert (outcome.exit_code, outcome.stdout.split()[-1:]) == (0, ["3"]), str(outcome)
    checked = full.tester.run(["git", "fsck"], cwd=full.tree.project)
    assert checked.exit_code == 0, str(checked)
