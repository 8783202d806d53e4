"""paddock why: prints the decision for one path (from the kernel), one program (from the gate), one
host (from the network) or one tool call (from the tool policy), and the line that caused it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from dataclasses import asdict

from paddock.cli.options import (
    Parser,
    add_policy_options,
    add_tool_options,
    request_of,
    tool_flags_of,
)
from paddock.cli.terminal_output import say
from paddock.errors import PolicyError, UsageError
from paddock.explain.ask_host_table import LOOPBACK, judge_host
from paddock.explain.exec_answer import answer_exec
from paddock.explain.file_answer import FileAttempt, answer, judge_for
from paddock.explain.file_rules import Operation
from paddock.launch.prepare import prepare
from paddock.plan.denied_paths import is_openable, remedy_of
from paddock.plan.http_routes import DOMAIN
from paddock.plan.path_containment import with_parents
from paddock.plan.plan import NetworkReach
from paddock.policy import Origin, Policy, load
from paddock.policy.glob import Glob, written
from paddock.policy.hosts import allowed_host, read_host
from paddock.policy.model import COMMAND_LINE, Action, Source

_QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"])*["]""", re.DOTALL)
_FLAG_HOST = Source(file=COMMAND_LINE, key="--host")
_SHELL = frozenset(";&|<>()`\n")
_FLAG = {Operation.READ: "--read", Operation.WRITE: "--allow", Operation.EXEC: "--exec"}


def execute(arguments: list[str]) -> int:
    parser = Parser(
        "why",
        "Show whether the sandbox allows a path, a program or a host, or whether [tools] allows "
        "a call. Exit 0: allowed; 1: denied.",
    )
    add_policy_options(parser, without="--exec")  # here --exec is the question; the grant is -x
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--path", help="ask about this file or directory")
    asked.add_argument(
        "--tool", metavar="NAME", help="ask about this tool call; add its arguments with --argument"
    )
    asked.add_argument(
        "--exec",
        dest="program",
        metavar="COMMAND",
        help='ask about this command with its arguments: "git push"',
    )
    asked.add_argument(
        "--host",
        metavar="HOST[:PORT]",
        help="ask about a connection to this host (default: port 443)",
    )
    parser.add_argument(
        "--op",
        choices=[one.value for one in _FLAG],
        help="ask about this operation on the path (default: read)",
    )
    parser.add_argument("--cwd", metavar="DIR", help="start the program in this directory")
    parser.add_argument(
        "--argument",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="add this argument of the tool call",
    )
    add_tool_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if options.path is None and options.op:
        raise UsageError("why: --op needs --path")
    if options.program is None and options.cwd:
        raise UsageError("why: --cwd needs --exec")
    if options.host is not None:
        return _host(options)
    if options.tool is None and (
        options.argument or options.config or any(tool_flags_of(options).given())
    ):
        raise UsageError(
            "why: --argument, --config, --denied-paths and the other tool options need --tool"
        )
    if options.tool is not None:
        return _tool(options)
    if options.program is not None:
        return _program(options)
    return _path(options)


def _path(options: argparse.Namespace) -> int:
    operation = Operation(options.op or "read")
    origin = Origin.of_process()
    path = _absolute(options.path, origin)
    prepared = prepare(request_of(options, command=None), origin)
    judge = judge_for(prepared.plan, to_make=prepared.to_make())
    answered = answer(prepared.plan, path, operation, judge)
    judgement, attempt = answered.judgement, answered.attempt
    if options.json:
        say(
            json.dumps(
                {
                    "path": path,
                    "real_path": judgement.path,
                    "op": operation.value,
                    "allowed": answered.allowed,
                    "fence_allows": judgement.allowed,
                    "reason": answered.reason,
                    "grants": [
                        {"path": g.path, "access": g.access, "source": g.source}
                        for g in judgement.grants
                    ],
                    "tried": {"outcome": attempt.outcome, "errno": attempt.errno},
                }
            )
        )
        return 0 if answered.allowed else 1
    leads = f" (leads to {judgement.path})" if judgement.path != path else ""
    say(f"{'allowed' if answered.allowed else 'denied'}: {operation.value} {path}{leads}")
    say(f"  because: {answered.reason}")
    say(f"  kernel:  {_kernel(attempt, by_init=judgement.by_init)}")
    if judgement.closed and (remedy := _remedy(prepared.policy, judgement.path)):
        say(f"  {remedy}")
    pattern = written(judgement.path)
    if not judgement.allowed and not judgement.closed and pattern is not None:
        flags = [
            *(word for name in options.profile for word in ("--profile", name)),
            *(word for name in options.policy for word in ("--policy", name)),
            *(_FLAG[operation], pattern),
        ]
        say(f"  to allow it: paddock run {shlex.join(flags)} …")
    return 0 if answered.allowed else 1


def _remedy(policy: Policy, path: str) -> str | None:
    """What opens a path that a deny closes; None: no deny of the policy closes it."""
    denies = [
        deny
        for deny in policy.filesystem.denies
        if any(Glob.parse(deny.pattern).matches(one) for one in with_parents(path))
    ]
    held = next((deny for deny in denies if not is_openable(deny)), None)
    if held:
        return remedy_of(held)
    if not denies:
        return None
    flags = [word for deny in denies for word in ("--open-protected", deny.pattern)]
    return f"to allow it: paddock run {shlex.join(flags)} …"


def _program(options: argparse.Namespace) -> int:
    origin = Origin.of_process()
    prepared = prepare(request_of(options, command=None), origin)
    plan = prepared.plan
    cwd = os.path.realpath(_absolute(options.cwd, origin)) if options.cwd else plan.workdir
    words = _words(options.program)
    answered = answer_exec(plan, words, cwd, origin.environ)
    decision, rule = answered.decision, answered.decision.rule if answered.decision else None
    if options.json:
        say(
            json.dumps(
                {
                    "argv": words,
                    "cwd": cwd,
                    "exe": answered.chain[0] if answered.chain else None,
                    "interpreters": answered.chain[1:],
                    "allowed": answered.allowed,
                    "action": decision.action.value if decision else None,
                    "cause": decision.cause if decision else None,
                    "rule": asdict(rule) if rule else None,
                    "approved": asdict(decision.approved)
                    if decision and decision.approved
                    else None,
                    "reason": answered.reason,
                    "files_refuse": os.strerror(answered.failure) if answered.failure else None,
                }
            )
        )
        return 0 if answered.allowed else 1
    decision_text = "allowed" if answered.allowed else "asked about" if answered.asked else "denied"
    leads = f" ({' run by '.join(answered.chain)})" if answered.chain else ""
    say(f"{decision_text}: {shlex.join(words)}{leads}")
    say(f"  because: {answered.reason}")
    if answered.failure is None and rule and rule.reason:
        say(f"  reason:  {rule.reason}")
    if answered.hint:
        say(f"  hint:    {answered.hint}")
    return 0 if answered.allowed else 1


def _host(options: argparse.Namespace) -> int:
    host, port = _host_and_port(options.host)
    plan = prepare(request_of(options, command=None), Origin.of_process()).plan
    decision = judge_host(plan, host, port)
    rule = decision.rule
    if options.json:
        say(
            json.dumps(
                {
                    "host": host.strip("[]"),
                    "port": port,
                    "allowed": decision.allowed,
                    "action": decision.action.value,
                    "rule": asdict(rule) if rule else None,
                    "reason": decision.reason,
                }
            )
        )
        return 0 if decision.allowed else 1
    decision_text = {Action.ALLOW: "allowed", Action.ASK: "asked about", Action.DENY: "denied"}[
        decision.action
    ]
    say(f"{decision_text}: {host}:{port}")
    because = [
        f"{rule.host} ({rule.source})" if rule else "",
        decision.reason or ("" if rule else "the default applies"),
    ]
    say(f"  because: {': '.join(part for part in because if part)}")
    for route in plan.network.http.routes if plan.network and plan.network.http else ():
        if f"{route.name}.{DOMAIN}" == host.lower().removesuffix("."):
            endpoints = (
                "every endpoint"
                if route.endpoints is None
                else f"{len(route.endpoints)} endpoint rules"
            )
            say(f"  leads to: {route.upstream}, {endpoints}")
    flag = host.strip("[]") if port in (80, 443) else f"{host}:{port}"
    if (
        not decision.allowed
        and rule is None
        and plan.network
        and plan.network.mode is NetworkReach.FILTERED
    ):
        if host.lower().removesuffix(".") in LOOPBACK:
            say(f"  to allow it: allowed_local_ports = [{port}], in [network] of a policy")
        elif _may(flag):
            say(f"  to allow it: paddock run --allow-domain {shlex.quote(flag)} …")
    return 0 if decision.allowed else 1


def _may(flag: str) -> bool:
    """Whether a policy can allow this."""
    try:
        allowed_host(flag, _FLAG_HOST)
    except PolicyError:
        return False
    return True


def _host_and_port(written: str) -> tuple[str, int]:
    """As a program would write it. The core decides whether it is a valid host."""
    host, colon, port = written.rpartition(":")
    if not colon or written.endswith("]") or (":" in host and not host.endswith("]")):
        host, port = written, "443"
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise UsageError(
            f"why: not a port: {port!r}", hint="--host HOST[:PORT], an IPv6 address in brackets"
        )
    if host.startswith("[") != host.endswith("]"):
        raise UsageError(
            f"why: not a host: {host!r}", hint="--host HOST[:PORT], an IPv6 address in brackets"
        )
    if not host.isascii():
        host = read_host(host, _FLAG_HOST).value.host
    return f"[{host}]" if ":" in host and not host.startswith("[") else host, int(port)


def _tool(options: argparse.Namespace) -> int:
    from paddock.policy.formats.agent_config import configured
    from paddock.tools.policy.calls import ToolCall
    from paddock.tools.policy.tool_policy import ToolPolicy

    origin = Origin.of_process()
    written = load(request_of(options, command=None), origin).tools
    chosen = configured(origin, options.config, policy=written, flags=tool_flags_of(options))
    policy = ToolPolicy.of(chosen.tools, cwd=origin.cwd, home=origin.home)
    arguments: dict[str, str] = {}
    for given in options.argument:
        name, equals, value = given.partition("=")
        if not equals or name in arguments:
            raise UsageError(f"why: --argument {given}: write NAME=VALUE, each name once")
        arguments[name] = value
    cwd = _absolute(options.cwd, origin) if options.cwd else None
    decision = policy.check(ToolCall(name=options.tool, arguments=arguments, cwd=cwd))
    if options.json:
        shown = {
            "action": decision.action.value,
            "step": int(decision.step),
            "rule_id": decision.rule_id,
        }
        say(
            json.dumps(
                {"tool": options.tool, **shown, "reason": decision.reason, "final": decision.final}
            )
        )
    else:
        decision_text = {Action.ALLOW: "allowed", Action.ASK: "asked about", Action.DENY: "denied"}[
            decision.action
        ]
        say(f"{decision_text}: {options.tool} {shlex.join(options.argument)}")
        say(f"  because: {decision.reason} ({decision.rule_id}, step {int(decision.step)})")
    return 0 if decision.action is Action.ALLOW else 1


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"why: {command!r} is not a command: {error}") from None
    if not words or _SHELL.intersection(_QUOTED.sub("", command)):
        raise UsageError(
            "why: --exec takes one command, without shell operators",
            hint="ask about each command separately",
        )
    return words


def _absolute(written: str, origin: Origin) -> str:
    """Not normalised: only the kernel knows the meaning of ``..`` behind a link."""
    if written == "~" or written.startswith("~/"):
        written = origin.home + written[1:]
    return os.path.join(origin.cwd, written)


def _kernel(attempt: FileAttempt, *, by_init: bool) -> str:
    if by_init:
        return "not tested: only a run judges names that are written"
    match attempt.outcome:
        case "allowed":
            return "tested in this sandbox: it opened"
        case "denied":
            return f"tested in this sandbox: {attempt.errno}"
        case "missing":
            return "tested in this sandbox: no such file"
        case _:
            return "not tested: this kernel cannot test it without doing it"
