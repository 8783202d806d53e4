"""Common programs rename directories in a copy-on-write workspace as in a plain one."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support.cow import SUPPORT, Cow, tree_entries
from tests.support.features import need
from tests.support.tester import Outcome

MOVES = Path(__file__).with_name("moves.py")
SEED = int(os.environ.get("PADDOCK_SEED", "1"))


def test_a_random_history_of_renames_is_answered_as_by_a_plain_file_system_and_applied(
    cow: Cow,
) -> None:
    script = cow.bench.script(MOVES)[1]
    number = "150"
    grown = cow.tester.run(
        ["python3", script, "grow", cow.workspace, str(SEED), number], cwd=cow.workspace
    )
    assert grown.exit_code == 0, grown
    plain = cow.workspace.with_name("plain")
    copied = cow.tester.run(["cp", "-a", cow.workspace, plain], cwd=cow.tree.root)
    assert copied.exit_code == 0, copied
    natural = cow.tester.run(["python3", script, "act", plain, str(SEED), number])
    before = tree_entries(cow.workspace)
    sandboxed = cow.run(
        "python3", script, "act", ".", str(SEED), number, flags=["-r", f"{cow.bench.directory}/**"]
    )
    assert sandboxed.exit_code == 0, sandboxed
    expected, answers = json.loads(natural.stdout), json.loads(sandboxed.stdout)
    for seed, (wanted, given) in enumerate(zip(expected, answers, strict=True), SEED):
        assert given == wanted, f"history {seed}"
    moved = sum(
        answer.startswith("move") and answer.endswith("done")
        for history in answers
        for answer in history
    )
    assert moved > 200
    assert tree_entries(cow.workspace) == before
    applied = cow.paddock("apply", cow.only_session())
    assert applied.exit_code == 0, applied
    wanted_tree, found = tree_entries(plain), tree_entries(cow.workspace)
    for path in sorted({*wanted_tree, *found}):
        assert without_time(found.get(path)) == without_time(wanted_tree.get(path)), path
    assert cow.diff() == {}


def without_time(entry: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    return entry[:2] + entry[3:] if entry and entry[0] == "file" else entry


def grow(cow: Cow) -> None:
    """A directory of the host with an entry of each kind."""
    cow.host(
        "mkdir -p old/sub/deep old/closed; echo 1 > old/a; echo 2 > old/sub/b; "
        "echo 3 > old/sub/deep/c;"
        "ln -s a old/link; echo 4 > old/closed/d; chmod 555 old/closed; chmod 750 old/sub;"
        "touch -d 2020-01-02 old/sub old/closed old"
    )


def look(cow: Cow) -> dict[str, tuple[Any, ...]]:
    """All entries with the times of directories, which a rename keeps."""
    found = tree_entries(cow.workspace)
    for path, entry in found.items():
        if entry[0] == "directory":
            found[path] = (*entry, (cow.workspace / path).stat().st_mtime_ns)
    return found


NODE = ["node", "-e", "require('fs').renameSync('old', 'new')"]
PYTHON = ["python3", "-c", "import os; os.rename('old', 'new')"]


@pytest.mark.parametrize(
    "words",
    [
        PYTHON,
        NODE,
        ["mv", "-T", "old", "new"],
        ["git", "mv", "old", "new"],
        ["python3", "-c", "import os; os.rename(os.getcwd() + '/old/', '../project/new')"],
        ["python3", "-c", "import os; os.chdir('old/sub'); os.rename('../../old', '../../new')"],
        ["python3", "-c", "import os; os.mkdir('new'); os.rename('old', 'new')"],
    ],
)
def test_a_directory_is_renamed_and_the_host_gets_it_when_it_is_applied(
    cow: Cow, words: list[str]
) -> None:
    need("node", words[0] != "node" or shutil.which("node") is not None, "no node")
    grow(cow)
    if words[0] == "git":
        cow.host("git init -q; git add .; git -c user.name=a -c user.email=a@b commit -qm x")
    before = look(cow)
    done = cow.run(*words)
    assert done.exit_code == 0, done
    assert look(cow) == before, "the host stays as it is"
    shown = {change["path"]: change for change in cow.changes()}
    for path in ("a", "sub/b", "sub/deep/c", "closed/d"):
        assert shown[f"new/{path}"]["change"] == "renamed", shown
        assert shown[f"new/{path}"]["from"] == f"old/{path}"
    assert cow.paddock("apply").exit_code == 0
    after = look(cow)
    assert not [path for path in after if path == "old" or path.startswith("old/")]
    for path, entry in before.items():
        if path.startswith("old/") and entry[0] != "directory":
            assert after["new" + path[3:]] == entry, path
    # a control: the same command in the same directory, without a sandbox and without a copy
    cow.host("mv -T new old; rm -rf new; git reset -q 2> /dev/null || true")
    alone = cow.tester.run(words, cwd=cow.workspace)
    assert alone.exit_code == 0, alone
    live: list[str | Path] = [
        cow.installation.paddock,
        "run",
        "--profile",
        "ai-agent",
        "--",
        "mv",
        "-T",
        "new",
        "old",
    ]
    assert cow.tester.run(live, cwd=cow.workspace).exit_code == 0
    assert (cow.workspace / "old/sub/deep/c").exists()


def test_a_renamed_file_is_one_change_wherever_changes_are_counted(cow: Cow) -> None:
    cow.host("echo 1 > a; echo 2 > b")
    assert cow.run("sh", "-c", "mv a c; echo 3 > b").exit_code == 0
    assert (
        cow.paddock("diff", "--stat").stdout.splitlines()[-1] == "2 changes: 1 changed, 1 renamed"
    )
    tried = cow.paddock("apply", "--dry-run").stdout.splitlines()
    assert tried[-1] == f"2 would be applied to {cow.workspace}"
    assert sum(line.startswith("would apply: ") for line in tried) == 2
    assert f"2 applied to {cow.workspace}" in cow.paddock("apply").stdout.splitlines()
    assert look(cow).keys() >= {"b", "c"}
    assert "a" not in look(cow)


def test_a_renamed_directory_keeps_its_mode_times_and_attributes(cow: Cow) -> None:
    grow(cow)
    seen = cow.run("python3", "-c", textwrap.dedent(FACTS))
    assert seen.exit_code == 0, seen
    before, after = seen.stdout.splitlines()
    assert before == after
    assert before.count("(") >= 8


FACTS = """
    import os
    def facts(root):
        found = []
        for parent, directories, files in os.walk(root):
            for path in (parent, *(os.path.join(parent, name) for name in files)):
                stat = os.lstat(path)
                attributes = [] if os.path.islink(path) else os.listxattr(path)
                found.append((path[len(root):], stat.st_mode, stat.st_uid, stat.st_gid, \
stat.st_mtime_ns, attributes))
        return sorted(found)
    os.setxattr("old/sub", "user.more", b"1")
    print(facts("old"))
    os.rename("old", "new")
    print(facts("new"))
    """


def python(cow: Cow, script: str, *, flags: tuple[str, ...] = ()) -> Outcome:
    done = cow.run("python3", "-c", textwrap.dedent(script), flags=flags)
    assert done.exit_code == 0, done
    return done


def test_a_directory_with_a_covered_name_is_not_renamed(cow: Cow) -> None:
    """A mount closes a directory that cannot be listed. Outside, the same rename succeeds."""
    cow.host("mkdir -p d/s/shut e; echo 1 > d/a; chmod 000 d/s/shut")
    script = """
        import os, errno
        for old, new in (("d", "f"), ("d", "e"), ("d/s/shut", "j"), ("e", "d/s/shut")):
            try:
                os.rename(old, new)
            except OSError as error:
                print(errno.errorcode[error.errno])
        print(sorted(os.listdir(".")), sorted(os.listdir("d")), os.listdir("e"))
        """
    done = python(cow, script)
    assert done.stdout.splitlines()[:4] == ["EBUSY", "EBUSY", "EACCES", "EBUSY"], done
    assert "'f'" not in done.stdout
    assert done.stdout.endswith("['a', 's'] []\n"), done
    cow.host("mv -T d f; test -e f/a; chmod 700 f/s/shut")


def test_renames_that_race_lose_nothing(cow: Cow) -> None:
    """Ten threads, fifty directories in each direction. A thread that is too late gets an error of
    rename(2).

    EXDEV comes from the overlay, for a name that appeared between our check and that of the kernel.
    """
    cow.host(
        "for i in 0 1 2 3 4 5 6 7 8 9; do mkdir -p d$i/s; for j in 1 2 3; "
        "do echo $i$j > d$i/s/f$j; done; done"
    )
    script = """
        import errno, os, random, threading
        def work(seed):
            r = random.Random(seed)
            for _ in range(50):
                old, new = f"d{r.randrange(10)}", f"d{r.randrange(12)}"
                if r.random() < 0.3: old += "/s"
                if r.random() < 0.3: new += "/s"
                try:
                    os.rename(old, new)
                except OSError as error:
                    seen.add(errno.errorcode[error.errno])
        seen = set()
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(10)]
        [t.start() for t in threads]; [t.join() for t in threads]
        left = sorted(open(os.path.join(p, f)).read().strip() for p, _, fs in os.walk(".") for f \
in fs if f[0] == "f")
        print(left == sorted(f"{i}{j}" for i in range(10) for j in (1, 2, 3)), sorted(seen))
        print([d for p, ds, _ in os.walk(".") for d in ds if d.startswith(".paddock")])
        """
    done = python(cow, script)
    whole, answers = done.stdout.splitlines()[0].split(" ", 1)
    assert whole == "True", done
    known = {"ENOENT", "ENOTEMPTY", "EEXIST", "EINVAL", "EBUSY", "ENOTDIR", "EXDEV"}
    assert set(json.loads(answers.replace("'", '"'))) <= known
    assert done.stdout.splitlines()[1] == "[]"


def test_signals_do_not_interrupt_a_rename(cow: Cow) -> None:
    """A signal after the supervisor got the call. Before that the kernel restarts the call if the
    handler has SA_RESTART.
    """
    cow.host("mkdir d; cd d; for i in $(seq 300); do echo $i > $i; done")
    script = """
        import os, signal
        times = 0
        def tick(*_):
            global times
            times += 1
        signal.signal(signal.SIGALRM, tick)
        signal.siginterrupt(signal.SIGALRM, False)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        os.rename("d", "e")
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(len(os.listdir("e")), os.path.exists("d"), times > 0)
        """
    assert python(cow, script).stdout == "300 False True\n"


def test_a_command_that_adds_landlock_rules_stays_under_them(cow: Cow) -> None:
    """Landlock inside Landlock: the supervisor must not act for a caller with more rights than the
    caller has.
    """
    cow.host("mkdir one two; echo 1 > one/a; echo 2 > two/a")
    script = """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        os.rename("one", "three")  # the control
        handled = (ctypes.c_uint64 * 3)(1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 13, 0, 0)
        ruleset = libc.syscall(444, handled, ctypes.c_size_t(24), 0)
        assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.syscall(446, ruleset, 0) == 0, \
ctypes.get_errno()
        try:
            os.rename("two", "four")
        except OSError as error:
            print(error.strerror)
        """
    done = python(cow, script)
    assert done.stdout in ("Permission denied\n", "Invalid cross-device link\n")
    assert set(cow.diff()) >= {"one", "three"}
    assert not {"two", "four"} & set(cow.diff())


def test_bad_arguments_get_the_kernels_own_answers(cow: Cow) -> None:
    cow.host("mkdir d; echo 1 > d/a; ln -s d link; echo 1 > file")
    script = """
        import ctypes, errno, os
        libc = ctypes.CDLL(None, use_errno=True)
        def ask(*words):
            print("ok" if libc.renameat2(*words) == 0 else errno.errorcode[ctypes.get_errno()])
        HERE = -100
        ask(HERE, 1, HERE, b"x", 0)
        ask(HERE, b"d", HERE, ctypes.c_void_p(2**64 - 1), 0)
        ask(HERE, b"", HERE, b"x", 0)
        ask(HERE, b"d" * 5000, HERE, b"x", 0)
        ask(77, b"d", HERE, b"x", 0)
        ask(HERE, b"d", HERE, b"x", 8)
        ask(HERE, b"d", HERE, b"file", 2)
        ask(HERE, b"link/", HERE, b"x", 0)
        ask(HERE, b"d", HERE, b"d/x", 0)
        ask(HERE, b"d", HERE, b"file", 0)
        ask(HERE, b"file", HERE, b"d", 0)
        ask(HERE, b"/proc", HERE, b"x", 0)
        ask(HERE, b"/usr/lib", HERE, b"x", 0)
        print(sorted(os.listdir(".")), os.listdir("d"))
        """
    answers = python(cow, script).stdout.split("\n")
    assert answers[:6] == ["EFAULT", "EFAULT", "ENOENT", "ENAMETOOLONG", "EBADF", "EINVAL"]
    assert answers[6] in ("EXDEV", "ok")
    assert answers[7:11] == ["ENOTDIR", "EINVAL", "ENOTDIR", "EISDIR"]
    assert "['a']" in answers[13]


def test_a_full_disk_undoes_what_was_moved(cow: Cow) -> None:
    cow.host(
        "mkdir -p d/s; for i in 1 2 3 4 5 6 7 8; do head -c 65536 /dev/zero > d/s/$i; done; "
        "echo 1 > d/a"
    )
    script = "import os\ntry:\n os.rename('d', 'e')\nexcept OSError as e: print(e.strerror)\n"
    script += (
        "for path in ('.', 'd', 'd/s'): print(sorted(os.listdir(path)))\n"
        "print(os.path.getsize('d/s/8'))"
    )
    cow.host(f"mkdir -p {cow.store}")
    tmpfs = [*cow.bench.script(SUPPORT / "overlay.py"), "--tmpfs", "300k", cow.store, "--"]
    there: list[str | Path] = ["sh", "-c", 'cd "$0" && exec "$@"', cow.workspace]
    done = cow.tester.run(
        [*tmpfs, *there, *cow.running("python3", "-c", script)], cwd=cow.workspace
    )
    assert "No space left on device" in done.stdout, done
    assert done.stdout.endswith("['a', 's']\n['1', '2', '3', '4', '5', '6', '7', '8']\n65536\n"), (
        done
    )
    assert ".paddock" not in done.stdout


def test_the_supervisor_is_there_for_signals_while_a_large_tree_is_moved(cow: Cow) -> None:
    cow.host("mkdir d; cd d; for i in $(seq 3000); do echo $i > $i; done")
    known = cow.sessions()
    script = "import os; print('started', flush=True); os.rename('d', 'e'); print('moved')"
    with cow.tester.starting(cow.running("python3", "-c", script), cwd=cow.workspace) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.terminate()
        process.wait(timeout=120)
        assert process.stdout.read() == "", "ended while it waited"
    cow.made.extend(cow.sessions() - known)
    assert len(list((cow.workspace / "d").iterdir())) == 3000
    for name in cow.made:
        assert cow.paddock("apply", name).exit_code == 0
        moved = [path for path in tree_entries(cow.workspace) if path.count("/") == 1]
        assert len(moved) == 3000, "nothing is lost, wherever it was"
