"""Containers of root on the real kernel, with controls and checks from the host.

The test makes a root directory with busybox. The user is ``nobody``, which the container's passwd
does not list.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import jail as jails
from tests.support.features import need, need_program, need_root
from tests.support.installation import Installation
from tests.support.jail import MESSAGE, Jail, Word, status
from tests.support.outside_targets import alive
from tests.support.programs import Programs
from tests.support.tester import Tester
from tests.support.waiting import wait_for

NOBODY = 65534
SHIFTED = 0x7FFF0000
CAP_NET_BIND_SERVICE = 1 << 10
NAMESPACES = ("user", "mnt", "pid", "ipc", "uts", "net", "cgroup")
EXAMPLE = Path(__file__).parents[3] / "examples" / "container.conf"


@pytest.fixture
def jail(tester: Tester, installation: Installation) -> Iterator[Jail]:
    need_root()
    with jails.of_root(tester, installation) as made:
        yield made


def test_a_command_runs_in_its_own_root_and_its_exit_code_comes_back(jail: Jail) -> None:
    """C-140"""
    outcome = jail.shell("cat /etc/message; ls /; exit 7")
    assert outcome.exit_code == 7, str(outcome)
    assert outcome.stdout.split("\n")[:2] == ["started", MESSAGE]
    assert outcome.stdout.split()[4:] == sorted(os.listdir(jail.rootdir))


def test_no_host_file_is_visible_in_the_container(jail: Jail) -> None:
    """C-130"""
    secret = jail.rootdir.parent / "secret"
    secret.write_text("of the host\n")
    secret.chmod(0o644)
    assert (
        subprocess.run(["cat", secret], capture_output=True, check=True).stdout == b"of the host\n"
    )
    outcome = jail.shell(
        f"cat {secret}; cat /proc/1/root{secret}; cat /../..{secret}; "
        f"cat /proc/self/cwd/../..{secret}; "
        "cat /proc/mounts; cat /proc/self/mountinfo"
    )
    assert outcome.started, str(outcome)
    assert "of the host" not in outcome.stdout
    points = {line.split()[1] for line in outcome.stdout.splitlines() if len(line.split()) == 6}
    assert points
    assert all(re.match(r"^/(dev|proc)?(/|$)", point) for point in points), points
    assert str(jail.rootdir) not in {
        line.split()[4] for line in outcome.stdout.splitlines() if len(line.split()) > 8
    }


def test_a_link_in_the_root_directory_does_not_lead_out(jail: Jail) -> None:
    (jail.rootdir / "etc" / "out").symlink_to("/etc/hostname")
    (jail.rootdir / "srv" / "up").symlink_to("../../../../../../etc/hostname")
    assert Path("/etc/hostname").exists()
    outcome = jail.shell("cat /etc/out /srv/up && echo read")
    assert outcome.started, str(outcome)
    assert "read" not in outcome.stdout


@pytest.mark.parametrize("name", ["proc", "dev"])
def test_a_mount_point_that_is_a_link_is_refused(jail: Jail, name: str) -> None:
    (jail.rootdir / name).rmdir()
    (jail.rootdir / name).symlink_to("/tmp")
    outcome = jail.shell("true")
    assert (outcome.exit_code, outcome.stdout) == (125, ""), str(outcome)
    assert f"has no directory /{name}" in outcome.stderr


def test_every_namespace_is_its_own(jail: Jail) -> None:
    """C-128. The command is not pid 1. That is init, which reaps processes and ends with the
    command.
    """
    with jail.running() as running:
        for name in NAMESPACES:
            outside = os.readlink(f"/proc/self/ns/{name}")
            assert os.readlink(f"/proc/{running.command}/ns/{name}") != outside, name
            assert os.readlink(f"/proc/{running.init}/ns/{name}") != outside, name
        assert status(running.command, "NSpid").split()[-1] == "2"
    outcome = jail.shell("ls /proc | grep -c '^[0-9]'")
    assert int(outcome.stdout.split()[-1]) <= 4, str(outcome)


def test_users_have_no_identity_outside_unless_configured(jail: Jail) -> None:
    """C-129"""
    outcome = jail.shell(
        "cat /proc/self/uid_map /proc/self/gid_map; id -u; id -g; touch /srv/made",
        "-u",
        "7",
        "-g",
        "8",
    )
    assert outcome.stdout.split()[1:] == ["0", str(SHIFTED), "65536"] * 2 + ["7", "8"], str(outcome)
    assert (jail.rootdir / "srv" / "made").stat().st_uid == SHIFTED + 7
    with jail.running() as running:
        assert status(running.command, "Uid").split() == [str(SHIFTED + NOBODY)] * 4
        assert status(running.init, "Uid").split() == [str(SHIFTED)] * 4
    same = jail.shell(
        "cat /proc/self/uid_map; touch /srv/same", "--id-map", "identity", "-u", "7", "-g", "8"
    )
    assert same.stdout.split()[1:] == ["0", "0", "65536"], str(same)
    assert "the same ids outside" in same.stderr
    assert (jail.rootdir / "srv" / "same").stat().st_uid == 7


def test_root_in_a_container_does_not_own_files_of_host_root(jail: Jail) -> None:
    mine = jail.rootdir / "srv" / "roots"
    mine.write_text("of root\n")
    mine.chmod(0o600)
    shown = jail.shell("id -u; cat /srv/roots", "-u", "0", "-g", "0")
    assert shown.stdout == "started\n0\n", str(shown)
    same = jail.shell("id -u; cat /srv/roots", "-u", "0", "-g", "0", "--id-map", "identity")
    assert same.stdout == "started\n0\nof root\n", str(same)


def test_devices_are_a_few_and_proc_is_masked(jail: Jail) -> None:
    """C-131"""
    outcome = jail.shell("ls /dev; echo x > /dev/null && head -c 3 /dev/zero | wc -c")
    names = outcome.stdout.split()
    expected = "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
    assert " ".join(name for name in names[1:-1] if name != "console") == expected, str(outcome)
    assert names[-1] == "3"
    oci = "kcore keys key-users latency_stats sched_debug sysrq-trigger timer_list timer_stats"
    masked = [name for name in oci.split() if Path("/proc", name).exists()]
    assert masked
    for name in masked:
        # Root of the container with the rights of host root: only the masks protect.
        shown = jail.shell(
            f"cat /proc/{name} && echo read", "-u", "0", "-g", "0", "--id-map", "identity"
        )
        assert shown.started, str(shown)
        assert "read" not in shown.stdout, name
    before = Path("/proc/sys/kernel/panic").read_text()
    for place in ("/proc/sys/kernel/panic", "/proc/irq/default_smp_affinity"):
        shown = jail.shell(
            f"echo 1 > {place} && echo wrote", "-u", "0", "-g", "0", "--id-map", "identity"
        )
        assert "wrote" not in shown.stdout, str(shown)
    assert Path("/proc/sys/kernel/panic").read_text() == before


def test_a_node_in_the_root_directory_is_no_device(jail: Jail) -> None:
    os.mknod(jail.rootdir / "srv" / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    os.chmod(jail.rootdir / "srv" / "zero", 0o666)
    with (jail.rootdir / "srv" / "zero").open("rb") as device:
        assert device.read(1) == b"\0"
    outcome = jail.shell("head -c 1 /srv/zero && echo read", "--id-map", "identity")
    assert outcome.stdout == "started\n", str(outcome)


def test_mount_mask_hides_a_path(jail: Jail) -> None:
    """C-152"""
    seen = jail.shell("cat /etc/message; cat /proc/cpuinfo | wc -c")
    assert MESSAGE in seen.stdout
    assert int(seen.stdout.split()[-1]) > 0
    flags = ("--mount-mask", "/proc/cpuinfo", "--mount-mask", "/etc")
    hidden = jail.shell("cat /etc/message && echo read; cat /proc/cpuinfo && echo read", *flags)
    assert hidden.stdout == "started\n", str(hidden)
    missing = jail.shell("true", "--mount-mask", "/nowhere")
    assert (missing.exit_code, missing.stdout) == (125, ""), str(missing)
    assert "/nowhere does not exist in the container (--mount-mask)" in missing.stderr


def test_host_name_and_loopback(jail: Jail) -> None:
    """C-132, C-145"""
    ping = ("--cap-allow", "CAP_NET_RAW")
    down = jail.shell("hostname; ip link show lo; ping -c1 -W1 127.0.0.1 && echo answered", *ping)
    assert down.stdout.split()[1] == "paddock"
    assert "UP" not in down.stdout
    assert "answered" not in down.stdout, str(down)
    up = jail.shell(
        "hostname; ip link show lo; ping -c1 -W1 127.0.0.1 && echo answered",
        *ping,
        "-l",
        "--hostname",
        "web",
    )
    assert up.stdout.split()[1] == "web", str(up)
    assert "UP" in up.stdout
    assert "answered" in up.stdout
    assert os.uname().nodename not in ("paddock", "web")


@pytest.mark.parametrize("kind", ["toml", "conf"])
def test_limits_apply_to_the_whole_container(jail: Jail, kind: str) -> None:
    """C-132"""
    profile = jail.rootdir.parent / f"limits.{kind}"
    limits = {"open_files": 20, "file_size_mb": 1, "processes": 8, "wall_s": 30}
    form, head = ("{} = {}\n", "[limits]\n") if kind == "toml" else ("limit {} {}\n", "")
    profile.write_text(head + "".join(form.format(*limit) for limit in limits.items()))
    profile.chmod(0o644)
    script = "ulimit -n; ulimit -f; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1 & done"
    free = jail.shell(script)
    assert free.started
    assert "fork" not in free.stderr, str(free)
    held = jail.shell(script, "--profile", profile)
    assert held.stdout.split()[:3] == ["started", "20", "2048"], str(held)
    assert "fork" in held.stderr, str(held)


def test_capabilities_are_none_but_those_that_are_named(jail: Jail) -> None:
    """C-133, C-134, C-135, C-151"""
    with jail.running() as running:
        sets = {
            name: int(status(running.command, name), 16)
            for name in ("CapBnd", "CapPrm", "CapEff", "CapAmb")
        }
        assert set(sets.values()) == {0}
        assert status(running.command, "Groups") == ""
        assert status(running.command, "NoNewPrivs") == "1"
        wait_for(
            lambda: int(status(running.init, "CapEff"), 16) == 0,
            "init has no child left",
        )
    with jail.running("--cap-allow", "CAP_NET_BIND_SERVICE") as running:
        for name in ("CapBnd", "CapPrm", "CapEff", "CapInh", "CapAmb"):
            assert int(status(running.command, name), 16) == CAP_NET_BIND_SERVICE, name
    bind = "nc -l -p 80 -w 1 < /dev/null; true"
    allowed = jail.shell(bind, "-l", "--cap-allow", "CAP_NET_BIND_SERVICE")
    assert allowed.started
    assert "Permission denied" not in allowed.stderr, str(allowed)
    refused = jail.shell(bind, "-l")
    assert refused.started
    assert "Permission denied" in refused.stderr, str(refused)


def test_the_groups_of_the_caller_are_given_up(jail: Jail) -> None:
    """C-134: root with several groups."""
    with_groups = ["setpriv", "--groups", "4,27", "--"]
    control = jail.raw([*with_groups, "id", "-G"])
    assert "27" in control.stdout.split(), str(control)
    outcome = jail.shell("grep Groups /proc/self/status; id -G", prefix=with_groups)
    assert outcome.stdout.split() == ["started", "Groups:", str(NOBODY)], str(outcome)


def test_the_environment_is_made_anew(jail: Jail) -> None:
    """C-136"""
    outcome = jail.inside(
        ["/bin/env"], env={"LD_PRELOAD": "/x", "A_TOKEN": "t", "TERM": "dumb", "PATH": "/evil:/bin"}
    )
    entries = dict(line.split("=", 1) for line in outcome.stdout.splitlines())
    assert entries["TERM"] == "dumb"
    assert entries["USER"] == "nobody"
    assert "/evil" not in entries["PATH"]
    assert not {"LD_PRELOAD", "A_TOKEN"} & set(entries), str(outcome)


@pytest.mark.parametrize("number", ["1", "22", "38"])
def test_container_does_not_start_without_a_seccomp_filter(
    jail: Jail, programs: Programs, number: str
) -> None:
    """C-137: a kernel that accepts no filter."""
    prefix: list[Word] = [programs.oldkernel, "--no-seccomp", number, "--"]
    outcome = jail.shell("touch /srv/ran", prefix=prefix)
    assert (outcome.exit_code, outcome.stdout) == (125, ""), str(outcome)
    assert "seccomp" in outcome.stderr or "system call filter" in outcome.stderr
    assert not (jail.rootdir / "srv" / "ran").exists()
    assert jail.shell("touch /srv/ran").exit_code == 0
    assert (jail.rootdir / "srv" / "ran").exists()


def test_system_calls_are_filtered(jail: Jail) -> None:
    flags = ("-u", "0", "-g", "0", "--cap-allow", "CAP_SYS_ADMIN", "--cap-allow", "CAP_SYS_CHROOT")
    outcome = jail.shell(
        "mount -t tmpfs x /tmp && echo mounted; chroot / true && echo rooted", *flags
    )
    assert outcome.stdout == "started\n", str(outcome)


def test_descriptors_of_the_caller_stay_outside(jail: Jail) -> None:
    """C-138"""
    fd = os.open("/etc", os.O_RDONLY)
    try:
        control = jail.tester.run(["ls", "-l", "/proc/self/fd"], pass_fds=[fd], as_root=True)
        assert f" {fd} -> /etc" in control.stdout
        outcome = jail.inside(["/bin/sh", "-c", "echo started; ls /proc/self/fd"], pass_fds=[fd])
    finally:
        os.close(fd)
    assert outcome.stdout.split() == ["started", "0", "1", "2", "3"], str(
        outcome
    )  # 3 is the descriptor of the listing


def test_landlock_enforces_grants_inside(jail: Jail) -> None:
    """C-139"""
    (jail.rootdir / "srv" / "data").mkdir()
    (jail.rootdir / "srv" / "data").chmod(0o777)
    script = (
        "touch /srv/data/a && echo wrote; touch /srv/b && echo wrote; cat /etc/message; "
        "cat /tmp/x; true"
    )
    (jail.rootdir / "tmp" / "x").write_text("readable\n")
    free = jail.shell(script)
    assert free.stdout.count("wrote") == 2, str(free)
    assert "readable" in free.stdout
    for name in ("data/a", "b"):
        (jail.rootdir / "srv" / name).unlink()
    sandboxed = jail.shell(script, "-r", "/bin", "-r", "/srv", "-r", "/etc", "-a", "/srv/data")
    assert sandboxed.stdout == f"started\nwrote\n{MESSAGE}\n", str(sandboxed)
    assert os.listdir(jail.rootdir / "srv") == ["data"]
    assert (jail.rootdir / "srv" / "data" / "a").exists()


def test_a_grant_that_is_not_there_is_an_error_unless_optional(jail: Jail) -> None:
    missing = jail.shell("true", "-r", "/bin", "-r", "/usr/share")
    assert (missing.exit_code, missing.stdout) == (125, ""), str(missing)
    assert "/usr/share does not exist in the container (-r)" in missing.stderr
    assert jail.shell("true", "-r", "/bin", "-r", "/usr/share?").exit_code == 0


def test_a_link_that_a_command_could_have_made_widens_no_grant(jail: Jail) -> None:
    (jail.rootdir / "srv" / "link").symlink_to("/etc")
    (jail.rootdir / "link").symlink_to("etc")
    planted = jail.shell("cat /etc/message", "-r", "/bin", "-a", "/srv", "-r", "/srv/link")
    assert (planted.exit_code, planted.stdout) == (125, ""), str(planted)
    assert "symlink" in planted.stderr
    own = jail.shell("cat /etc/message", "-r", "/bin", "-r", "/link")
    assert own.stdout == f"started\n{MESSAGE}\n", str(own)


def test_killing_the_parent_ends_the_container(jail: Jail) -> None:
    """C-140"""
    with jail.running() as running:
        inside = [running.init, running.command]
        assert all(map(alive, inside))
        running.supervisor.send_signal(signal.SIGKILL)
        wait_for(lambda: not any(map(alive, inside)), "the container ends with its supervisor")


def test_the_end_of_the_command_is_the_end_of_all_it_started(jail: Jail) -> None:
    outcome = jail.shell("(trap '' TERM HUP; setsid sleep 60 & ) ; touch /srv/started; exit 3")
    assert outcome.exit_code == 3, str(outcome)
    assert (jail.rootdir / "srv" / "started").exists()
    mine = [
        pid for pid in os.listdir("/proc") if pid.isdigit() and _root_of(pid) == str(jail.rootdir)
    ]
    assert mine == []


def _root_of(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/root")
    except OSError:
        return ""


@contextmanager
def network_namespace() -> Iterator[str]:
    ip, name = (
        shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin"),
        f"paddock-{secrets.token_hex(4)}",
    )
    need("ip", ip is not None, "no ip on this machine")
    assert ip
    subprocess.run([ip, "netns", "add", name], check=True, capture_output=True)
    try:
        yield name
    finally:
        subprocess.run([ip, "netns", "del", name], check=True)


def test_an_existing_network_namespace_is_joined(jail: Jail) -> None:
    """C-149"""
    with network_namespace() as name:
        inode = os.stat(f"/run/netns/{name}").st_ino
        for given in (name, f"/run/netns/{name}"):
            with jail.running("--netns", given) as running:
                assert os.stat(f"/proc/{running.command}/ns/net").st_ino == inode
        both = jail.shell("true", "--netns", name, "-l")
        assert both.exit_code == 125
        assert "loopback" in both.stderr
    gone = jail.shell("true", "--netns", name)
    assert (gone.exit_code, gone.stdout) == (125, ""), str(gone)
    assert f"/run/netns/{name}" in gone.stderr
    none = jail.shell("true", "--netns", "/etc/passwd")
    assert (none.exit_code, none.stdout) == (125, ""), str(none)


@contextmanager
def control_group(tree: str) -> Iterator[Path]:
    place = Path("/sys/fs/cgroup", tree)
    need("cgroup", (place / "cgroup.procs").exists(), f"no control groups at {place}")
    group = place / f"paddock-{secrets.token_hex(4)}"
    group.mkdir()
    try:
        yield group
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
        group.rmdir()


def test_control_groups_of_both_versions_are_entered(jail: Jail) -> None:
    """C-150"""
    with (
        control_group("pids") as pids,
        control_group("freezer") as freezer,
        control_group("unified") as unified,
    ):
        groups = (pids, freezer, unified)
        flags = [word for group in groups for word in ("--cgroup", str(group))]
        with jail.running(*flags) as running:
            for group in groups:
                assert str(running.command) in (group / "cgroup.procs").read_text().split(), group
                assert (
                    str(running.supervisor.pid) not in (group / "cgroup.procs").read_text().split()
                ), group
        # Inside, each group is the root of its hierarchy: no name of the host is visible.
        seen = jail.shell("cat /proc/self/cgroup", *flags)
        assert {line.split(":")[2] for line in seen.stdout.splitlines()[1:]} == {"/"}, str(seen)
        (pids / "pids.max").write_text("4")
        limited = jail.shell("for i in 1 2 3 4 5 6; do sleep 0.1 & done; wait; echo done", *flags)
        assert "fork" in limited.stderr, str(limited)


@pytest.mark.parametrize("place", ["/etc", "/sys/fs/cgroup/pids/no-such-group"])
def test_container_does_not_start_if_a_control_group_cannot_be_entered(
    jail: Jail, place: str
) -> None:
    """C-150"""
    outcome = jail.shell("touch /srv/ran", "--cgroup", place)
    assert (outcome.exit_code, outcome.stdout) == (125, ""), str(outcome)
    assert place in outcome.stderr
    assert not (jail.rootdir / "srv" / "ran").exists()


def test_journal_is_written_on_the_host(jail: Jail) -> None:
    """C-127, C-148"""
    outcome = jail.shell(f"ls {jail.journal}", "--audit")
    assert outcome.started
    assert "No such file" in outcome.stderr, str(outcome)
    assert [event["event"] for event in jail.events()] == ["session.start", "session.end"]
    exposed = jail.shell("true", "--audit-log", jail.rootdir / "srv")
    assert (exposed.exit_code, exposed.stdout) == (125, ""), str(exposed)
    assert "which Paddock itself needs" in exposed.stderr


def test_the_sample_starts_a_shell(jail: Jail) -> None:
    """C-146: flags win over the profile."""
    profile = jail.rootdir.parent / "container.conf"
    profile.write_text(EXAMPLE.read_text().replace("/srv/jail", str(jail.rootdir)))
    profile.chmod(0o644)
    words = [
        "/bin/sh",
        "-c",
        "echo started; hostname; id -u; cat /proc/cpuinfo; touch /tmp/x /etc/x; ls /tmp",
    ]
    outcome = jail.raw(
        [
            jail.installation.paddock,
            "jail",
            "--profile",
            profile,
            "--audit-log",
            jail.journal,
            "--",
            *words,
        ]
    )
    assert outcome.stdout.split() == ["started", "jail", str(NOBODY), "x"], str(outcome)
    over: list[Word] = [
        jail.installation.paddock,
        "jail",
        "--profile",
        profile,
        "--audit-log",
        jail.journal,
        "-u",
        "5",
    ]
    outcome = jail.raw([*over, "--hostname", "other", "--", *words])
    assert outcome.stdout.split()[:3] == ["started", "other", "5"], str(outcome)


def test_container_steps_run_in_order(jail: Jail) -> None:
    """C-124"""
    need_program("strace")
    profile = jail.rootdir.parent / "order.conf"
    profile.write_text("hostname order\nloopback on\n")
    profile.chmod(0o644)
    log = jail.rootdir.parent / "strace"
    calls = (
        "openat,clone,clone3,vfork,write,pivot_root,umount2,sethostname,prlimit64,prctl,"
        "setgroups,setresgid,setresuid,"
    )
    calls += "capset,seccomp,close_range,execve,move_mount,sendto,unshare"
    prefix: list[str | Path] = ["strace", "-f", "-s", "256", "-o", log, "-e", f"trace={calls}"]
    with control_group("pids") as group:
        flags = ("--profile", profile, "--cgroup", group, "--mount-mask", "/proc/cpuinfo", "-l")
        outcome = jail.raw([*prefix, *jail.command(["/bin/true"], *flags)])
    assert outcome.exit_code == 0, str(outcome)
    lines = log.read_text().splitlines()
    steps = [
        ("profile", rf"openat\(.*{re.escape(profile.name)}"),
        ("user", r"openat\(.*/etc/passwd"),
        ("journal", r"openat\(.*\.jsonl"),
        ("user namespace", r"clone\(.*CLONE_NEWUSER.*CLONE_NEWPID"),
        ("users", r'write\(.*"0 2147418112 65536'),
        ("control group", r"openat\(.*cgroup\.procs"),
        ("loopback", r"sendto\("),
        ("root", r"pivot_root\("),
        ("old root", r'umount2\("\."'),
        ("host name", r"sethostname\("),
        ("bounding set", r"prctl\(PR_CAPBSET_DROP"),
        ("limits", r"prlimit64\(.*RLIMIT_CORE, \{"),
        ("keep", r"prctl\(PR_SET_KEEPCAPS, 1"),
        ("groups", r"setgroups\(0"),
        ("group", rf"setresgid\({NOBODY}"),
        ("uid", rf"setresuid\({NOBODY}"),
        ("capabilities", r"capset\("),
        ("descriptors", r"close_range\(3,.*CLOEXEC"),
        ("filter", r"seccomp\(SECCOMP_SET_MODE_FILTER"),
        ("command", r'execve\("/bin/true"'),
    ]
    seen: dict[str, int] = {}
    at = -1
    for name, pattern in steps:
        found = next(
            (
                number
                for number, line in enumerate(lines)
                if number > at and re.search(pattern, line)
            ),
            None,
        )
        assert found is not None, f"{name} does not come after line {at}: {lines[at]}"
        at = seen[name] = found
    # Another process writes it, so it comes before or after the users.
    own = next(
        number
        for number, line in enumerate(lines)
        if re.search(r"unshare\(.*CLONE_NEWNS.*CLONE_NEWNET", line)
    )
    assert seen["user namespace"] < own < seen["loopback"]


def test_a_bad_profile_is_found_before_anything_is_made(jail: Jail) -> None:
    """C-125"""
    need_program("strace")
    profile = jail.rootdir.parent / "bad.conf"
    profile.write_text("rotdir /srv\n")
    profile.chmod(0o644)
    log = jail.rootdir.parent / "strace"
    prefix: list[str | Path] = ["strace", "-f", "-o", log, "-e", "trace=clone,clone3,unshare,vfork"]
    outcome = jail.raw([*prefix, *jail.command(["/bin/true"], "--profile", profile)])
    assert outcome.exit_code == 125, str(outcome)
    assert "CLONE_NEW" not in log.read_text()
    assert "bad.conf:1: unknown directive 'rotdir'" in outcome.stderr
