"""Parses the sections of a TOML policy. One function for each, in the order of policy_keys.KEYS."""

from __future__ import annotations

from dataclasses import replace

from paddock.frozen import dataclass
from paddock.policy.formats.checked_table import Table
from paddock.policy.formats.checked_values import Values
from paddock.policy.formats.expand import wrong
from paddock.policy.formats.policy_keys import (
    CAPABILITIES,
    GRANT_KEYS,
    GRANT_TABLE_KEYS,
    ID_MAPS,
    KEYS,
    LIMITS,
    MAX_HOSTNAME_CHARS,
    MAX_LIMIT,
    SHELL_ENV_KEYS,
    VERSION,
)
from paddock.policy.formats.suggest import did_you_mean
from paddock.policy.glob import Glob
from paddock.policy.hosts import allowed_host, read_host
from paddock.policy.model import (
    Access,
    Action,
    Audit,
    Environment,
    Filesystem,
    Grant,
    Limit,
    Meta,
    Network,
    NetworkMode,
    OnFailure,
    Reads,
    Setting,
    ShellSettings,
    Source,
    Sourced,
    Syscalls,
    Widen,
    Workspace,
)

# The directories that `reads = "all"` opens. Not /run, which contains sockets of services: a
# connection needs no write right. Not /tmp and /dev, which are private to the run. Not /boot and
# the homes of others, which other users can not list.
_MACHINE = ("/bin", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/media", "/mnt", "/nix", "/opt",
            "/proc", "/sbin",
            "/snap", "/srv", "/sys", "/usr", "/var", "~")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sections:
    values: Values

    def meta(self, table: Table) -> Meta:
        table.allow_only(KEYS["meta"])
        version = table.integer("version", low=-(2**63), high=2**63)
        if version is not None and version.value != VERSION:
            raise table.wrong(
                "version",
                f"version {version.value} is unknown; this Paddock reads version {VERSION}",
            )
        on_error = table.choice("on_policy_error", Action)
        if on_error is not None and on_error.value is Action.ALLOW:
            raise table.wrong(
                "on_policy_error",
                "Paddock never allows a program that it cannot check",
                hint="write 'deny'",
            )
        return Meta(
            default_action=table.choice("default_action", Action),
            on_policy_error=on_error,
            on_supervisor_timeout_ms=table.integer("on_supervisor_timeout_ms", low=1),
            ask_timeout_s=table.integer("ask_timeout_s", low=1),
        )

    def inherit(self, table: Table) -> tuple[Sourced[str], ...]:
        names = table.string_or_strings("inherit")
        if "inherit" in table and not names:
            raise table.wrong(
                "inherit", "no profile is given", hint='remove the key, or write inherit = "base"'
            )
        for name in names:
            if not name.value:
                raise wrong(name.source, "the name is empty")
        return names

    def workdir(self, table: Table) -> Sourced[str] | None:
        written = table.string("workdir")
        if written is None:
            return None
        return Sourced(self.values.path(written.value, written.source), written.source)

    def filesystem(self, table: Table) -> Filesystem:
        table.allow_only(KEYS["filesystem"])
        written = [
            (access, one)
            for key, access in GRANT_KEYS.items()
            for one in table.strings_or_tables(key)
        ]
        grants = [self._grant(access, one) for access, one in written]
        reads = table.choice("reads", Reads)
        if reads is not None and reads.value is Reads.ALL:
            grants += [
                self.values.grant(Access.READ, f"{path}/**?", reads.source) for path in _MACHINE
            ]
        return Filesystem(
            grants=tuple(grants),
            denies=tuple(self.values.deny(d.value, d.source) for d in table.strings("deny_globs")),
            protects=tuple(
                self.values.protected(p.value, p.source) for p in table.strings("protect_globs")
            ),
            open_protected=tuple(
                self.values.opened(o.value, o.source) for o in table.strings("open_protected")
            ),
            workspace=table.choice("workspace", Workspace),
            require_enforced=table.boolean("require_enforced"),
            no_bootstrap_reads=table.boolean("no_bootstrap_reads"),
            widen=table.choice("widen", Widen),
        )

    def _grant(self, access: Access, written: Sourced[str] | Table) -> Grant:
        if isinstance(written, Sourced):
            return self.values.grant(access, written.value, written.source)
        written.allow_only(GRANT_TABLE_KEYS)
        path = written.string("path")
        if path is None:
            raise written.wrong("path", "a grant needs a path")
        grant = self.values.grant(access, path.value, path.source)
        execute, create = written.boolean("execute"), written.boolean("create")
        return replace(
            grant,
            execute=execute is None or _executes(access, execute),
            create=create is not None and create.value and _creatable(grant, create.source),
        )

    def network(self, table: Table) -> Network:
        from paddock.policy.routes import inspected, route

        table.allow_only(KEYS["network"])
        routes = table.table("routes")
        return Network(
            mode=table.choice("mode", NetworkMode),
            default=table.choice("default", Action),
            allowed_hosts=tuple(
                allowed_host(one.value, one.source) for one in table.strings("allowed_hosts")
            )
            if "allowed_hosts" in table
            else None,
            denied_hosts=tuple(
                read_host(one.value, one.source) for one in table.strings("denied_hosts")
            ),
            allowed_local_ports=table.integers("allowed_local_ports", low=1, high=65535),
            kernel_pin=table.boolean("kernel_pin"),
            routes=()
            if routes is None
            else tuple(route(routes, name, self.values) for name in routes.values),
            inspect=tuple(inspected(host) for host in table.strings("inspect")),
        )

    def syscalls(self, table: Table) -> Syscalls:
        table.allow_only(KEYS["syscalls"])

        def names(key: str) -> tuple[Sourced[str], ...]:
            return tuple(
                self.values.syscall(name.value, name.source) for name in table.strings(key)
            )

        return Syscalls(
            block=names("block"),
            allow=names("allow") if "allow" in table else None,
            sockets=tuple(
                self.values.socket(family.value, family.source)
                for family in table.strings("sockets")
            ),
            namespaces=table.boolean("namespaces"),
            trace=table.boolean("trace"),
        )

    def env(self, table: Table) -> Environment:
        table.allow_only(KEYS["env"])
        settings = table.table("set")
        pairs: list[tuple[str, Sourced[str]]] = []
        for name in () if settings is None else settings.values:
            written = settings.string(name) if settings is not None else None
            if written is not None:
                pairs.append(self.values.env_setting(name, written.value, written.source))
        return Environment(
            pass_=tuple(self.values.env_name(n.value, n.source) for n in table.strings("pass")),
            deny=tuple(self.values.env_name(n.value, n.source) for n in table.strings("deny")),
            set=tuple(pairs),
        )

    def limits(self, table: Table) -> tuple[Limit, ...]:
        table.allow_only(KEYS["limits"])
        limits: list[Limit] = []
        for name in LIMITS:
            value = table.integer(name, low=1, high=MAX_LIMIT)
            if value is not None:
                limits.append(Limit(name=name, value=value.value, source=value.source))
        return tuple(limits)

    def audit(self, table: Table) -> Audit:
        table.allow_only(KEYS["audit"])
        enabled = table.boolean("enabled")
        if enabled is not None and not enabled.value:
            raise table.wrong(
                "enabled",
                "a file cannot turn the journal off",
                hint="give it on the command line: --off audit",
            )
        directory = table.string("dir")
        return Audit(
            enabled=enabled,
            dir=None
            if directory is None
            else self.values.journal(directory.value, directory.source),
        )

    def shell(self, table: Table, source: Source) -> ShellSettings:
        table.allow_only(KEYS["shell"])
        network = table.choice("network", NetworkMode)
        if network is not None and network.value is not NetworkMode.NONE:
            raise table.wrong(
                "network",
                f"a shell cannot have its own network: {network.value.value!r}",
                hint='write "none", or remove the key: then shells have the network of the sandbox',
            )
        env = table.table("env")
        if env is not None:
            env.allow_only(SHELL_ENV_KEYS)
        return ShellSettings(
            network=network,
            grants=tuple(
                self.values.grant(access, one.value, one.source)
                for key, access in GRANT_KEYS.items()
                for one in table.strings(key)
            ),
            denies=tuple(
                self.values.deny(one.value, one.source) for one in table.strings("deny_globs")
            ),
            block=tuple(
                self.values.syscall(one.value, one.source) for one in table.strings("block")
            ),
            env_deny=()
            if env is None
            else tuple(self.values.env_name(one.value, one.source) for one in env.strings("deny")),
            on_failure=table.choice("on_failure", OnFailure),
            source=source,
        )

    def container(self, table: Table) -> tuple[Setting, ...]:
        table.allow_only(KEYS["container"])
        return tuple(
            Setting(
                key=key.replace("_", "-"),
                value=self._container_value(table, key),
                source=table.source(key),
            )
            for key in KEYS["container"]
            if key in table
        )

    def _container_value(self, table: Table, key: str) -> object:
        match key:
            case "uid" | "gid":
                number = table.integer(key, low=0, high=2**32 - 2)
                return None if number is None else number.value
            case "loopback":
                flag = table.boolean(key)
                return flag is not None and flag.value
            case "cgroup" | "cap_allow" | "mount_mask":
                return tuple(
                    self.container_word(key, word.value, word.source) for word in table.strings(key)
                )
            case _:
                word = table.string(key)
                return None if word is None else self.container_word(key, word.value, word.source)

    def container_word(self, key: str, written: str, source: Source) -> str:
        """One text value of the container section, in either format."""
        match key.replace("-", "_"):
            case "rootdir" | "cgroup" | "mount_mask":
                return self.values.path(written, source)
            case "cap_allow":
                name = written.upper()
                if name not in CAPABILITIES:
                    raise wrong(
                        source,
                        f"unknown capability {written!r}",
                        hint=did_you_mean(name, CAPABILITIES),
                    )
                return name
            case "netns" if written.startswith("/"):
                return self.values.path(written, source)
            case "id_map":
                if written not in ID_MAPS:
                    raise wrong(source, f"{written!r} is not one of {', '.join(ID_MAPS)}")
                return written
            case "hostname" if len(written) > MAX_HOSTNAME_CHARS:
                raise wrong(source, f"a host name has at most {MAX_HOSTNAME_CHARS} characters")
            case _:
                word = self.values.expander.text(written, source)
                if (
                    not word
                    or not word.replace("-", "").replace("_", "").replace(".", "").isalnum()
                ):
                    raise wrong(source, f"not a plain name: {written!r}")
                return word


def _executes(access: Access, execute: Sourced[bool]) -> bool:
    if access is Access.EXEC and not execute.value:
        raise wrong(
            execute.source, "execute = false contradicts a grant to execute", hint="remove it"
        )
    if access is Access.WRITE and execute.value:
        raise wrong(
            execute.source,
            "a write grant cannot have execute",
            hint="read_globs and allow_globs do",
        )
    return execute.value or access is Access.WRITE


def _creatable(grant: Grant, source: Source) -> bool:
    glob = Glob.parse(grant.pattern)
    if grant.access not in (Access.WRITE, Access.ALLOW):
        raise wrong(
            source, "create needs a grant that allows writing", hint="write_globs and allow_globs"
        )
    if grant.optional:
        raise wrong(
            source, "a created directory cannot be optional", hint="remove the trailing '?'"
        )
    if glob.root != "/" or not glob.exact:
        raise wrong(
            source,
            f"create needs one whole directory, not a pattern: {grant.pattern}",
            hint="write /x/**",
        )
    return True
