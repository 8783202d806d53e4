"""Renders a Policy as canonical TOML: sorted, expanded, without sources.

Two policies with the same meaning render to the same bytes, in either input format. The text loads
back to the same policy in the same directory. Settings of the command line only (layers turned off,
a denied variable passed by name, events on stderr, a tier, a session) can not be written in a file;
a comment at the top names the flags.

In the text a built-in line becomes a line of the user. The full tier drops some built-in lines if
it enforces the same in another way, but never lines of the user. So the plan of the text blocks
more calls and protects more paths there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import TypeVar

from paddock.errors import PolicyError
from paddock.policy.formats.expand import CWD_TOKEN
from paddock.policy.formats.policy_keys import GRANT_KEYS, KEYS, LIMITS, NOT, RULE_PATHS, VERSION
from paddock.policy.inherit import FLOOR
from paddock.policy.model import (
    Audit,
    CommandRule,
    Destination,
    EndpointRule,
    Environment,
    Filesystem,
    Grant,
    Network,
    PathRule,
    Policy,
    Route,
    Rule,
    Setting,
    ShellSettings,
    Sourced,
    Syscalls,
    ToolSettings,
)
from paddock.policy.trust.approved import ToolApproval

_BARE_KEY = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")

FLAGS_NOTE = "# A file cannot express this; give it on the command line:"

TomlValues = Mapping[str, object]
V = TypeVar("V")


def to_toml(policy: Policy) -> str:
    tables: list[tuple[str, TomlValues]] = [("[meta]", _meta(policy))]
    tables.append(("[filesystem]", _filesystem(policy.filesystem)))
    if policy.network is not None:
        tables.append(("[network]", _network(policy.network)))
        tables += [
            (f"[network.routes.{_key(route.name)}]", _route(route))
            for route in _by_name(policy.network.whole_routes())
        ]
    tables.append(("[syscalls]", _syscalls(policy.syscalls)))
    tables.append(("[env]", _env(policy.env)))
    tables.append(
        (
            "[env.set]",
            {name: _undollar(value.value) for name, value in sorted(policy.env.set, key=_first)},
        )
    )
    limits = {limit.name: limit.value for limit in policy.limits}
    tables.append(("[limits]", {name: limits[name] for name in LIMITS if name in limits}))
    tables.append(("[audit]", _audit(policy.audit)))
    tables.append(("[tools]", _tools(policy.tools)))
    if policy.shell is not None:
        tables.append(("[shell]", _shell(policy.shell)))
        tables.append(("[shell.env]", _present(deny=_sorted(policy.shell.env_deny) or None)))
    tables.append(("[container]", _settings(policy.container, KEYS["container"])))
    tables += [("[[rule]]", _rule(rule)) for rule in policy.rules]
    must_stand = ("[network]", "[shell]")  # an empty section still means: filtered, intercepted
    blocks = [_table(header, values) for header, values in tables if values or header in must_stand]
    flags = " ".join(_only_flags(policy))
    return (f"{FLAGS_NOTE} {flags}\n\n" if flags else "") + "\n".join(blocks)


def rule_to_toml(rule: Rule) -> str:
    """One rule as written in a file."""
    return _table("[[rule]]", _rule(rule))


def approval_to_toml(approval: ToolApproval) -> str:
    values = {"tool": approval.tool, "cwd": approval.cwd, "subject": list(approval.subject)}
    return _table("[[tool]]", values)


def host_to_toml(host: Destination) -> str:
    """One host as written in approved.toml."""
    return _table("[[host]]", {"name": str(host)})


def _only_flags(policy: Policy) -> Iterator[str]:
    yield from (f"--env-pass {name}" for name in _sorted(policy.env.keep))
    yield from (f"--off {switch.value}" for switch in policy.off)
    if policy.audit.stderr:
        yield "--audit"
    if policy.tier:
        yield f"--tier {policy.tier.value}"
    if policy.resume:
        yield f"--resume {policy.resume}"
    if policy.observe:
        yield "--observe"
    if policy.intercept and policy.shell is None:
        yield "--intercept-shells"


def _meta(policy: Policy) -> TomlValues:
    meta = policy.meta
    return _present(
        version=VERSION,
        inherit=FLOOR,
        workdir=_plain(policy.workdir),
        default_action=_plain(meta.default_action),
        on_policy_error=_plain(meta.on_policy_error),
        on_supervisor_timeout_ms=_plain(meta.on_supervisor_timeout_ms),
        ask_timeout_s=_plain(meta.ask_timeout_s),
    )


def _filesystem(files: Filesystem) -> TomlValues:
    grants = {
        key: [
            _grant(grant) for grant in sorted(files.grants, key=_by_text) if grant.access is access
        ]
        for key, access in GRANT_KEYS.items()
    }
    return _present(
        **{key: patterns or None for key, patterns in grants.items()},
        deny_globs=sorted(_written_denies(files)) or None,
        protect_globs=_sorted_paths(files.protects) or None,
        open_protected=_sorted_paths(files.open_protected) or None,
        workspace=_plain(files.workspace),
        require_enforced=_plain(files.require_enforced),
        no_bootstrap_reads=_plain(files.no_bootstrap_reads),
        widen=_plain(files.widen),
    )


def _by_text(grant: Grant) -> tuple[str, bool, bool]:
    return _written(grant), grant.execute, grant.create


def _grant(grant: Grant) -> object:
    more = _present(execute=None if grant.execute else False, create=True if grant.create else None)
    return {"path": _written(grant), **more} if more else _written(grant)


def _written(grant: Grant) -> str:
    pattern = _undollar(grant.pattern)
    if grant.workspace:
        pattern = f"{CWD_TOKEN}/**" if pattern.endswith("/**") else CWD_TOKEN
    return f"{pattern}?" if grant.optional else pattern


def _written_denies(files: Filesystem) -> Iterator[str]:
    needed = {deny.pattern for deny in files.denies if not deny.optional}
    for deny in files.denies:
        if not deny.optional:
            yield _undollar(deny.pattern)
        elif deny.pattern not in needed:
            yield _undollar(deny.pattern) + "?"


def _network(network: Network) -> TomlValues:
    return _present(
        mode=_plain(network.mode),
        default=_plain(network.default),
        allowed_hosts=None if network.allowed_hosts is None else _hosts(network.allowed_hosts),
        denied_hosts=_hosts(network.denied_hosts) or None,
        allowed_local_ports=sorted(port.value for port in network.allowed_local_ports) or None,
        kernel_pin=_plain(network.kernel_pin),
        inspect=_sorted(network.inspect) or None,
    )


def _hosts(hosts: Iterable[Sourced[Destination]]) -> list[str]:
    return sorted({str(host.value) for host in hosts})


def _by_name(routes: Iterable[Route]) -> list[Route]:
    return sorted(routes, key=lambda route: route.name)


def _route(route: Route) -> TomlValues:
    return _present(
        upstream=str(route.upstream),
        credential=None if route.credential is None else _undollar(str(route.credential)),
        inject_mode=None if route.inject_mode is None else route.inject_mode.value,
        inject_name=route.inject_name,
        endpoint_rules=None
        if route.endpoint_rules is None
        else [_endpoint(rule) for rule in route.endpoint_rules],
        env={name: _undollar(value) for name, value in sorted(route.env)} or None,
        inspect=True if route.inspect else None,
        body_methods=list(route.body_methods) or None,
        upstream_addresses=list(route.upstream_addresses) or None,
        shared_addresses=True if route.shared_addresses else None,
    )


def _endpoint(rule: EndpointRule) -> TomlValues:
    return {"method": rule.method, "path": rule.path}


def _syscalls(syscalls: Syscalls) -> TomlValues:
    return _present(
        block=_sorted(syscalls.block) or None,
        allow=None if syscalls.allow is None else _sorted(syscalls.allow),
        sockets=_sorted(syscalls.sockets) or None,
        namespaces=_plain(syscalls.namespaces),
        trace=_plain(syscalls.trace),
    )


def _env(env: Environment) -> TomlValues:
    return _present(**{"pass": _sorted(env.pass_) or None, "deny": _sorted(env.deny) or None})


def _audit(audit: Audit) -> TomlValues:
    return _present(
        enabled=_plain(audit.enabled), dir=None if audit.dir is None else _undollar(audit.dir.value)
    )


def _tools(tools: ToolSettings) -> TomlValues:
    return _present(
        read_only=_plain(tools.read_only),
        allowed_paths=None if tools.allowed_paths is None else _sorted_paths(tools.allowed_paths),
        denied_paths=_sorted_paths(tools.denied_paths) or None,
        # Rules keep their order: the first match wins.
        path_rules=[_path_rule(rule) for rule in tools.path_rules] or None,
        command_rules=[_command_rule(rule) for rule in tools.command_rules] or None,
        denied_commands=_sorted(tools.denied_commands) or None,
        require_approval_for_writes=_plain(tools.require_approval_for_writes),
        require_approval_for_execute=_plain(tools.require_approval_for_execute),
        unknown_tools=_plain(tools.unknown_tools),
        log_all_commands=_plain(tools.log_all_commands),
    )


def _shell(shell: ShellSettings) -> TomlValues:
    files = _filesystem(Filesystem(grants=shell.grants, denies=shell.denies))
    return _present(
        network=_plain(shell.network),
        **files,
        block=_sorted(shell.block) or None,
        on_failure=_plain(shell.on_failure),
    )


def _path_rule(rule: PathRule) -> TomlValues:
    return _present(
        id=rule.id,
        action=rule.action.value,
        path=_undollar(rule.path),
        op=None if rule.op is None else rule.op.value,
        reason=rule.reason,
    )


def _command_rule(rule: CommandRule) -> TomlValues:
    return _present(
        id=rule.id,
        action=rule.action.value,
        exe=rule.exe,
        argv_regex=rule.argv_regex,
        command_regex=rule.command_regex,
        reason=rule.reason,
    )


def _settings(settings: tuple[Setting, ...], order: tuple[str, ...]) -> TomlValues:
    values = {setting.key.replace("-", "_"): setting.value for setting in settings}
    return {key: _setting(values[key]) for key in order if key in values}


def _setting(value: object) -> object:
    match value:
        case tuple():
            return sorted(_undollar(each) for each in value)
        case str():
            return _undollar(value)
        case _:
            return value


def _rule(rule: Rule) -> TomlValues:
    matches: dict[str, object] = {}
    for match in rule.matches:
        each: list[object] = [_match_value(match.key, value) for value in match.values]
        matches[match.key + NOT if match.negate else match.key] = (
            each[0] if len(each) == 1 else each
        )
    return _present(id=rule.id, action=rule.action.value, reason=rule.reason, **matches)


def _match_value(key: str, value: str) -> object:
    if key == "uid":
        return int(value)
    return _undollar(value) if key in RULE_PATHS else value


def _present(**values: object) -> TomlValues:
    return {key: value for key, value in values.items() if value is not None}


def _plain(sourced: Sourced[V] | None) -> object:
    if sourced is None:
        return None
    value: object = sourced.value
    if isinstance(value, Enum):
        return value.value
    return _undollar(value) if isinstance(value, str) else value


def _sorted(values: Iterable[Sourced[str]]) -> list[str]:
    return sorted({value.value for value in values})


def _sorted_paths(values: Iterable[Sourced[str]]) -> list[str]:
    return sorted({_undollar(value.value) for value in values})


def _first(pair: tuple[str, object]) -> str:
    return pair[0]


def _undollar(text: str) -> str:
    return text.replace("$", "$$")


def _table(header: str, values: TomlValues) -> str:
    return "".join(
        f"{line}\n"
        for line in (header, *(f"{_key(key)} = {_value(v)}" for key, v in values.items()))
    )


def _key(key: str) -> str:
    return key if key and _BARE_KEY.issuperset(key) else _string(key)


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return _string(value)
        case dict():
            return (
                "{ "
                + ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items())
                + " }"
            )
        case list() if len(value) > 1:
            return "[\n" + "".join(f"    {_value(each)},\n" for each in value) + "]"
        case list():
            return "[" + "".join(_value(each) for each in value) + "]"
        case _:
            raise TypeError(f"TOML cannot express a {type(value).__name__}")


def _string(text: str) -> str:
    return '"' + "".join(_letters(text)) + '"'


def _letters(text: str) -> Iterator[str]:
    for letter in text:
        code = ord(letter)
        if 0xD800 <= code <= 0xDFFF:
            raise PolicyError(f"not UTF-8, so TOML cannot express it: {text!r}")
        if letter in '"\\':
            yield "\\" + letter
        elif code < 0x20 or code == 0x7F:
            yield f"\\u{code:04x}"
        else:
            yield letter
