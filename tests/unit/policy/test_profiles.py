"""The built-in profiles keep the promises of their opening comments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddock.policy import Policy, Request
from paddock.policy.glob import Glob, component_matches
from paddock.policy.model import Access
from paddock.policy.trust.origin import BUILTIN_DIR
from tests.unit.policy.user_dirs import UserDirs, patterns, words

NAMES = ("base", "read-only", "ai-agent", "strict", "dev")

CLASSIC_28 = words("""
ptrace perf_event_open process_vm_readv process_vm_writev mount umount2 pivot_root chroot unshare
setns reboot kexec_load kexec_file_load init_module finit_module delete_module keyctl add_key
request_key bpf userfaultfd acct swapon swapoff settimeofday clock_settime clock_adjtime adjtimex
""")
NEWER = words("""
open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr io_uring_setup
io_uring_enter io_uring_register open_by_handle_at name_to_handle_at pidfd_getfd kcmp syslog ioperm
iopl quotactl_fd
""")
SIX = {"personality", "lookup_dcookie", "vhangup", "quotactl", "mbind", "move_pages"}
# Threads, processes, memory, files, sockets, timers: calls that node, Python, Go, the JVM, git and
# compilers need.
NEEDED = words("""
read write openat openat2 close fstat newfstatat statx mmap mprotect munmap mremap madvise brk clone
clone3 fork vfork execve execveat wait4 waitid exit_group futex futex_waitv rseq set_robust_list
sched_setaffinity sched_getaffinity prctl arch_prctl seccomp landlock_create_ruleset getrandom
memfd_create socket connect sendmsg recvmsg epoll_wait epoll_pwait2 inotify_add_watch rename
renameat2 link symlink unlink chmod fchmodat2 utimensat setxattr flock fallocate copy_file_range
sendfile splice timer_create timerfd_create signalfd4 eventfd2 pidfd_open pidfd_send_signal
membarrier map_shadow_stack set_mempolicy get_mempolicy capget mlock mlockall io_setup mknodat
fanotify_init process_madvise uretprobe
""")
SEVEN = words("""
LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT DYLD_INSERT_LIBRARIES DYLD_LIBRARY_PATH _JAVA_OPTIONS
JAVA_TOOL_OPTIONS
""")
INJECTORS = words("""
BASH_ENV ENV PROMPT_COMMAND PYTHONSTARTUP PYTHONPATH NODE_OPTIONS PERL5OPT RUBYOPT GIT_SSH_COMMAND
GCONV_PATH
""")
SECRETS = words("""
.ssh/id_rsa .ssh/config .gnupg/x .aws/credentials .azure/x .config/gcloud/x .kube/config
.docker/config.json .git-credentials .config/git/credentials .netrc .config/gh/hosts.yml .npmrc
.pypirc .cargo/credentials.toml .m2/settings.xml .gradle/gradle.properties .password-store/x
.local/share/keyrings/x .config/google-chrome/Default/Cookies .mozilla/x .bash_history .zsh_history
.vault-token
""")


def load(dirs: UserDirs, name: str) -> Policy:
    return dirs.load(Request(profiles=(name,)))


def blocked(policy: Policy) -> set[str]:
    return {call.value for call in policy.syscalls.block}


@pytest.mark.parametrize("name", NAMES)
def test_a_built_in_profile_loads_without_files_and_notes(dirs: UserDirs, name: str) -> None:
    """C-019."""
    policy = load(dirs, name)
    assert policy.profiles[0] == name
    assert (policy.files, policy.notes) == ((), ())


@pytest.mark.parametrize("name", NAMES)
def test_a_built_in_profile_begins_with_its_purpose(name: str) -> None:
    text = Path(BUILTIN_DIR, f"{name}.toml").read_text()
    assert text.startswith(f"# {name}: ")
    assert all(line.isascii() or "…" in line for line in text.splitlines())


def test_there_are_no_other_built_in_profiles() -> None:
    assert sorted(os.listdir(BUILTIN_DIR)) == sorted(f"{name}.toml" for name in NAMES)


def test_every_profile_blocks_the_classic_calls(dirs: UserDirs) -> None:
    """C-032 to C-039, C-041, C-033."""
    assert len(CLASSIC_28) == 28
    assert blocked(load(dirs, "base")) >= {*CLASSIC_28, *NEWER}


def test_no_call_that_developer_tools_need_is_blocked(dirs: UserDirs) -> None:
    assert not {*NEEDED} & blocked(load(dirs, "strict"))


def test_strict_is_ai_agent_and_six_calls(dirs: UserDirs) -> None:
    """C-031."""
    strict, agent = load(dirs, "strict"), load(dirs, "ai-agent")
    assert blocked(strict) - blocked(agent) == SIX
    assert not SIX & blocked(agent)
    assert (strict.filesystem, strict.env) == (agent.filesystem, agent.env)


def test_base_grants_no_file(dirs: UserDirs) -> None:
    assert patterns(load(dirs, "base")) == []


def test_read_only_can_write_nothing_but_its_own_temp_and_devices(dirs: UserDirs) -> None:
    grants = load(dirs, "read-only").filesystem.grants
    writable = [g.pattern for g in grants if g.access in (Access.WRITE, Access.ALLOW)]
    assert writable[0] == "<tmp>/**"
    assert all(pattern.startswith("/dev/") for pattern in writable[1:])
    assert {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"} <= {
        *writable
    }


@pytest.mark.parametrize("profile", ["read-only", "ai-agent", "strict"])
def test_other_terminals_of_the_user_are_in_no_default_grant(dirs: UserDirs, profile: str) -> None:
    """A command could read the keys that are typed into them."""
    assert not [
        pattern
        for pattern in patterns(load(dirs, profile))
        if pattern.startswith(("/dev/pts", "/dev/ptmx"))
    ]


def test_ai_agent_adds_the_workspace(dirs: UserDirs) -> None:
    agent, reader = load(dirs, "ai-agent"), load(dirs, "read-only")
    (added,) = [g for g in agent.filesystem.grants if g not in reader.filesystem.grants]
    assert (added.access, added.pattern, added.workspace) == (
        Access.ALLOW,
        f"{dirs.work}/**",
        True,
    )


def test_the_system_is_readable(dirs: UserDirs) -> None:
    """C-020, with /dev and /run left to C-026 and C-028."""
    globs = [Glob.parse(pattern) for pattern in patterns(load(dirs, "ai-agent"), Access.READ)]
    for tree in (
        "/usr",
        "/lib",
        "/lib64",
        "/lib32",
        "/etc",
        "/bin",
        "/sbin",
        "/proc",
        "/sys",
        "/var/lib",
    ):
        assert any(glob.matches(f"{tree}/x") for glob in globs), tree
    for outside in (
        "/run/dbus/system_bus_socket",
        "/dev/sda",
        "/root/x",
        "/home/other/x",
        "/var/log/x",
        "/tmp/x",
    ):
        assert not any(glob.covers(outside) for glob in globs), outside


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_the_home_is_granted_but_for_named_tools(dirs: UserDirs, name: str) -> None:
    """C-024: every one of these paths may be missing."""
    for grant in load(dirs, name).filesystem.grants:
        if grant.pattern.startswith(f"{dirs.home}/"):
            assert grant.optional, grant.pattern
            assert grant.pattern != f"{dirs.home}/**"
    covering = [Glob.parse(grant.pattern) for grant in load(dirs, name).filesystem.grants]
    assert not any(glob.covers(f"{dirs.home}/.config/paddock/x.toml") for glob in covering)


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_closed_and_no_grant_reaches_it(dirs: UserDirs, secret: str) -> None:
    path = f"{dirs.home}/{secret}"
    for name in NAMES:
        policy = load(dirs, name)
        assert any(Glob.parse(deny.pattern).covers(path) for deny in policy.filesystem.denies), name
        assert not any(
            Glob.parse(grant.pattern).covers(path) for grant in policy.filesystem.grants
        ), name


@pytest.mark.parametrize("name", NAMES)
def test_no_grant_has_to_be_cut_around_a_secret(dirs: UserDirs, name: str) -> None:
    """An exception inside a grant removes the listing of a directory, so built-in grants contain no
    denied path.
    """
    policy = load(dirs, name)
    for deny in policy.filesystem.denies:
        assert Glob.parse(deny.pattern).exact != deny.optional, deny.pattern
        if deny.optional:  # a deny by name: mounts enforce it, or nothing does
            continue
        for grant in policy.filesystem.grants:
            glob = Glob.parse(grant.pattern)
            assert glob.exact, grant.pattern
            assert not glob.covers(Glob.parse(deny.pattern).prefix), (grant.pattern, deny.pattern)


def test_dev_writes_caches_and_no_directory_of_programs(dirs: UserDirs) -> None:
    writable = [Glob.parse(pattern) for pattern in patterns(load(dirs, "dev"), Access.ALLOW)]
    assert any(glob.covers(f"{dirs.home}/.cargo/registry/x") for glob in writable)
    for place in (
        ".cargo/bin/x",
        ".local/bin/x",
        "go/bin/x",
        ".bashrc",
        ".rustup/x",
        ".nvm/x",
        ".gitconfig",
        ".local/lib/x",
    ):
        assert not any(glob.covers(f"{dirs.home}/{place}") for glob in writable), place


@pytest.mark.parametrize("variable", [*SEVEN, *INJECTORS])
def test_a_variable_that_runs_code_is_denied(dirs: UserDirs, variable: str) -> None:
    """C-046, C-047."""
    denies = [deny.value for deny in load(dirs, "base").env.deny]
    assert any(component_matches(deny, variable) for deny in denies)


@pytest.mark.parametrize(
    "variable", ["PATH", "HOME", "TERM", "LANG", "LC_CTYPE", "USER", "SHELL", "TZ"]
)
def test_a_variable_that_programs_need_passes(dirs: UserDirs, variable: str) -> None:
    env = load(dirs, "ai-agent").env
    assert any(component_matches(entry.value, variable) for entry in env.pass_)
    assert not any(component_matches(deny.value, variable) for deny in env.deny)


def test_no_env_pass_of_a_profile_is_denied_by_the_profile(dirs: UserDirs) -> None:
    env = load(dirs, "dev").env
    for entry in env.pass_:
        assert not any(component_matches(deny.value, entry.value) for deny in env.deny), entry.value


def test_temporary_files_and_caches_go_with_the_run(dirs: UserDirs) -> None:
    values = {name: value.value for name, value in load(dirs, "ai-agent").env.set}
    assert values["TMPDIR"] == "<tmp>"
    assert values["XDG_CACHE_HOME"].startswith("<tmp>/")
    assert dict(load(dirs, "dev").env.set)["XDG_CACHE_HOME"].value == f"{dirs.home}/.cache"
