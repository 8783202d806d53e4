"""A full disk, a signal, a second apply at the same time: no change is lost, and no temporary file
is left.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from tests.support.cow import Cow, tree_entries
from tests.support.waiting import wait_for

FULL = """
chmod 755 .
echo old > edit; echo old > gone; mkdir d; echo old > d/f
head -c 200000 /dev/zero > keep
"$@" "$STORE" full "$WORKSPACE" "$PLAN" '[]' -- sh -euc '
  echo new > edit; rm gone; mkdir n; chmod 700 d
  head -c 400000 /dev/urandom > n/big; head -c 400000 /dev/urandom > d/f'
head -c 300000 /dev/zero > theirs
"$PADDOCK" diff full --stat
echo "first: $( "$PADDOCK" apply full 2>&1 )"
ls -AR | sed 's/^/found: /'; cat edit gone d/f
test ! -e n; test "$(stat -c %a d)" = 755
rm theirs
echo "second: $( "$PADDOCK" apply full 2>&1 )"
cat edit; test ! -e gone; test "$(stat -c %a d)" = 700
cmp n/big "$STORE/full/upper/n/big"; cmp d/f "$STORE/full/upper/d/f"
ls -AR | sed 's/^/found: /'
echo done
"""


def test_a_full_disk_ends_the_apply_before_anything_has_changed(cow: Cow) -> None:
    cow.made.append("full")
    script = cow.bench.script(Path(__file__).parents[2] / "support" / "overlay.py")
    done = cow.tester.run(
        [*script, "--tmpfs", "1m", cow.workspace, "--", "sh", "-euc", FULL, "sh", *script],
        cwd=cow.workspace,
        env={
            "WORKSPACE": str(cow.workspace),
            "STORE": str(cow.store),
            "PLAN": '{"files": null}',
            "PADDOCK": str(cow.installation.paddock),
        },
    )
    assert done.exit_code == 0, done
    assert done.stdout.endswith("done\n"), done
    assert "first: paddock: " in done.stdout
    assert (
        "No space left on device; some changes are not applied, and no change is lost"
        in done.stdout
    )
    assert "hint: correct this, then type `paddock apply full` again" in done.stdout
    assert "second: 6 applied" in done.stdout
    assert ".paddock-" not in done.stdout


def test_a_signal_in_the_middle_leaves_what_the_next_apply_settles(cow: Cow) -> None:
    """The random histories kill an apply at every act. This test kills the real command at a random
    point.
    """
    cow.host("mkdir d; for n in $(seq 400); do echo old > d/$n; done")
    session = cow.session(
        "for n in $(seq 400); do echo new > d/$n; done; for n in $(seq 400); "
        "do echo new > d/n$n; done"
    )
    record = cow.store / session / "applied.jsonl"
    for blow in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        size = record.stat().st_size if record.exists() else 0
        with cow.tester.starting(
            [cow.installation.paddock, "apply", session], cwd=cow.workspace
        ) as process:

            def begun(size: int = size, process: subprocess.Popen[str] = process) -> bool:
                return process.poll() is not None or (
                    record.exists() and record.stat().st_size > size
                )

            wait_for(begun, "the apply has written what it will do")
            process.send_signal(blow)
            process.wait()
        names = {
            path: entry
            for path, entry in tree_entries(cow.workspace / "d").items()
            if not path.startswith(".paddock-")
        }
        assert {entry[-1] for entry in names.values()} <= {b"old\n", b"new\n"}, (
            "each file is the old or the new one"
        )
    assert cow.paddock("apply", session).exit_code == 0
    found = tree_entries(cow.workspace / "d")
    assert len(found) == 800
    assert {entry[-1] for entry in found.values()} == {b"new\n"}
    assert cow.diff() == {}


def test_discard_sweeps_what_an_interrupted_apply_left_in_the_workspace(cow: Cow) -> None:
    cow.host("mkdir d; for n in $(seq 300); do echo old > d/$n; done")
    session = cow.session("for n in $(seq 300); do echo new > d/$n; done")
    with cow.tester.starting(
        [cow.installation.paddock, "apply", session], cwd=cow.workspace
    ) as process:
        wait_for(lambda: any((cow.workspace / "d").glob(".paddock-*")), "it has begun")
        process.kill()
        process.wait()
    left = [name for name in tree_entries(cow.workspace / "d") if name.startswith(".paddock-")]
    shown = cow.paddock("diff", "--stat")
    assert not left or "an earlier `paddock apply` of this session was interrupted" in shown.stderr
    assert not left or "apply interrupted" in cow.paddock("sessions").stdout
    assert ".paddock-" not in shown.stdout
    assert cow.paddock("discard").exit_code == 0
    assert {name for name in tree_entries(cow.workspace / "d") if not name.isdigit()} == set()


def test_two_concurrent_applies_do_not_interfere(cow: Cow) -> None:
    session = cow.session("for n in $(seq 300); do echo new > n$n; done")
    words: list[str | Path] = [cow.installation.paddock, "apply", session]
    with (
        cow.tester.starting(words, cwd=cow.workspace) as one,
        cow.tester.starting(words, cwd=cow.workspace) as other,
    ):
        ends = sorted(process.wait() for process in (one, other))
    assert ends in ([0, 0], [0, 125]), "the second is refused, or finds nothing to do"
    assert len(tree_entries(cow.workspace)) == 301
