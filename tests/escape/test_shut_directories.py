"""A run takes the rights to a directory away: the next one must not take what lies behind it for missing.

Each attack was found by somebody who tried to get out.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.features import need
from tests.support.fence import Fence, Word
from tests.support.ground import SECRET, laid_out
from tests.support.later import at_home, paddock


def shut(fence: Fence, path: Path) -> None:
    assert fence.inside(["chmod", "000", path]).exit_code == 0
    assert path.stat().st_mode & 0o777 == 0


def test_a_denied_place_behind_a_link_stays_closed_when_its_directory_is_shut(fence: Fence) -> None:
    dot = fence.ground.root / "dot"
    secret = fence.ground.put(dot / "gradle.properties", SECRET)
    with at_home(fence, ".gradle") as gradle:
        (gradle / "gradle.properties").symlink_to(secret)
        assert "Permission denied" in paddock(fence, "run", "--", "cat", secret, cwd=dot).stderr
        shut(fence, gradle)
        later = paddock(fence, "run", "--", "cat", secret, cwd=dot)
        assert SECRET not in later.stdout
        assert later.exit_code == 125, later
        assert "can not be located" in later.stderr
    assert paddock(fence, "run", "--", "cat", secret, cwd=dot).stdout == SECRET, "without the link it is just a file"


def test_a_denied_link_in_the_workspace_stays_closed_when_its_directory_is_shut(fence: Fence) -> None:
    secret = fence.ground.put(fence.ground.project / "b" / "real", SECRET)
    link = fence.ground.make(fence.ground.project / "a") / "secret"
    link.symlink_to("../b/real")
    words: list[Word] = ["run", "--profile", "ai-agent", "--deny", link, "--", "cat", secret]
    assert "Permission denied" in paddock(fence, *words).stderr
    shut(fence, link.parent)
    later = paddock(fence, *words)
    link.parent.chmod(0o755)
    assert SECRET not in later.stdout
    assert later.exit_code == 125, later
    assert paddock(fence, "run", "--", "cat", secret).stdout == SECRET, "nothing denies it then"


def test_a_denied_pattern_behind_a_link_stays_closed_when_its_directory_is_shut(fence: Fence) -> None:
    secret = fence.ground.put(fence.ground.project / "keys" / "one.pem", SECRET)
    with at_home(fence, ".keys") as keys:
        (keys / "dir").symlink_to(secret.parent)
        words: list[Word] = ["run", "--profile", "ai-agent", "--deny", f"{keys}/dir/*.pem", "--", "cat", secret]
        assert "can not be held" in paddock(fence, *words).stderr
        shut(fence, keys)
        later = paddock(fence, *words)
        assert SECRET not in later.stdout
        assert later.exit_code == 125, later
        assert "what lies behind it can not be told" in later.stderr


def test_a_remembered_plan_does_not_take_a_shut_directory_for_an_empty_one(fence: Fence) -> None:
    secret = fence.ground.put(fence.ground.root / "dot" / "gh" / "token", SECRET)
    assert fence.inside(["true"]).exit_code == 0, "what could be written does not change below"
    with at_home(fence, ".config") as config:
        (config / "gh").symlink_to(secret.parent)
        for _ in range(2):
            assert "Permission denied" in paddock(fence, "run", "--", "cat", secret, cwd=secret.parent.parent).stderr
        shut(fence, config)
        later = paddock(fence, "run", "--", "cat", secret, cwd=secret.parent.parent)
        assert SECRET not in later.stdout
        assert later.exit_code == 125, later


def test_a_directory_shut_at_the_right_moment_does_not_hide_a_planted_link(fence: Fence) -> None:
    """A living run sees by the link's access time that it was read, and shuts what leads to its own workspace. Many
    known places give it the time."""
    need("root", fence.tester.disposable, "an ordinary user's own state is not the tests' to change")
    attack = (
        "import os, sys, time\n"
        "link, parent = sys.argv[1:]\n"
        "def arm(): os.utime(link, ns=(0, 0), follow_symlinks=False)\n"
        "arm()\nprint('started', flush=True)\nend = time.monotonic() + 60\n"
        "while time.monotonic() < end:\n"
        "    if os.lstat(link).st_atime_ns:\n"
        "        os.chmod(parent, 0)\n        time.sleep(0.02)\n        os.chmod(parent, 0o755)\n        arm()\n"
        "        open('shut', 'a').write('x')\n"
    )
    link = fence.ground.project / "build"
    with laid_out(fence.tester) as other:
        assert fence.inside(["ln", "-s", other.outside, link]).exit_code == 0
        with (fence.tester.home / ".local" / "state" / "paddock" / "reach").open("a") as reach:
            reach.writelines(f"/absent/{number}\n" for number in range(3000))
        words: list[Word] = ["run", "--profile", "ai-agent", "--read", link, "--", "cat", other.secret]
        with fence.starting(["python3", "-c", attack, link, fence.ground.root]) as attacker:
            assert attacker.stdout is not None
            assert attacker.stdout.readline() == "started\n"
            answers = [paddock(fence, *words, cwd=other.project) for _ in range(20)]
            assert attacker.poll() is None
        assert (fence.ground.project / "shut").exists(), "the link was never read"
        assert {one.exit_code for one in answers} == {125}, answers
        assert not [one for one in answers if SECRET in one.stdout]
        fence.ground.root.chmod(0o755)  # the end may have come between its two calls
        own = other.root / "own"
        own.symlink_to(other.outside)
        control = paddock(fence, "run", "--read", own, "--", "cat", other.secret, cwd=other.project)
        assert control.stdout == f"{SECRET}\n", "the person's own link does lead there"


# What a run could write, by whatever name.
