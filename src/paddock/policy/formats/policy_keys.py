"""All sections and keys of a policy file.

The readers refuse every other key. The renderer writes in this order. A test checks that
``examples/example.toml`` shows each of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from paddock.policy.model import Access

VERSION = 1

GRANT_KEYS: Mapping[str, Access] = {
    "read_globs": Access.READ,
    "write_globs": Access.WRITE,
    "allow_globs": Access.ALLOW,
    "exec_globs": Access.EXEC,
}

# A grant is a string, or a table with more settings.
GRANT_TABLE_KEYS = ("path", "execute", "create")

LIMITS = ("memory_mb", "processes", "cpu_s", "open_files", "file_size_mb", "wall_s", "tmp_mb")
MAX_LIMIT = 2**53

KEYS: Mapping[str, tuple[str, ...]] = {
    "meta": (
        "version",
        "inherit",
        "workdir",
        "default_action",
        "on_policy_error",
        "on_supervisor_timeout_ms",
        "ask_timeout_s",
    ),
    "filesystem": (
        *GRANT_KEYS,
        "reads",
        "deny_globs",
        "protect_globs",
        "open_protected",
        "workspace",
        "require_enforced",
        "no_bootstrap_reads",
        "widen",
    ),
    "network": (
        "mode",
        "default",
        "allowed_hosts",
        "denied_hosts",
        "allowed_local_ports",
        "kernel_pin",
        "inspect",
        "routes",
    ),
    "syscalls": ("block", "allow", "sockets", "namespaces", "trace"),
    "env": ("pass", "deny", "set"),
    "limits": LIMITS,
    "audit": ("enabled", "dir"),
    "tools": (
        "read_only",
        "allowed_paths",
        "denied_paths",
        "path_rules",
        "command_rules",
        "denied_commands",
        "require_approval_for_writes",
        "require_approval_for_execute",
        "unknown_tools",
        "log_all_commands",
    ),
    "shell": ("network", *GRANT_KEYS, "deny_globs", "block", "on_failure", "env"),
    "container": (
        "rootdir",
        "uid",
        "gid",
        "username",
        "netns",
        "loopback",
        "cgroup",
        "cap_allow",
        "mount_mask",
        "hostname",
        "id_map",
    ),
}

SHELL_ENV_KEYS = ("deny",)

ROUTE_KEYS = (
    "upstream",
    "credential",
    "credential_key",
    "inject_mode",
    "inject_name",
    "endpoint_rules",
    "env",
    "inspect",
    "body_methods",
    "upstream_addresses",
    "shared_addresses",
)
ENDPOINT_KEYS = ("method", "path")

MATCH_KEYS = (
    "exe",
    "exe_basename",
    "exe_glob",
    "exe_sha256",
    "argv_regex",
    "argv_contains",
    "argv_host_in",
    "cwd_glob",
    "uid",
    "parent_exe",
    "parent_argv",
)
NOT = "_not"
RULE_PATHS = (
    "exe",
    "exe_glob",
    "cwd_glob",
    "parent_exe",
)  # expanded, with links followed
RULE_KEYS = ("id", "action", "reason", *MATCH_KEYS, *(key + NOT for key in MATCH_KEYS))

PATH_RULE_KEYS = ("id", "action", "path", "op", "reason")
COMMAND_RULE_KEYS = ("id", "action", "exe", "argv_regex", "command_regex", "reason")

SECTIONS = (*KEYS, "rule")

CONTAINER_LISTS = ("cgroup", "cap-allow", "mount-mask")  # may be repeated
ID_MAPS = ("shifted", "identity")
MAX_HOSTNAME_CHARS = 64

_CAPABILITIES = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE \
NET_BIND_SERVICE
    NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE \
SYS_PACCT SYS_ADMIN
    SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL \
SETFCAP MAC_OVERRIDE
    MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""
CAPABILITIES = frozenset(f"CAP_{name}" for name in _CAPABILITIES.split())
