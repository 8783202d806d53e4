"""paddock why: the kernel's own answer for one path, or the gate's for one program, and the line that gave it."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from dataclasses import asdict

from paddock.cli.options import Parser, add_policy_options, request_of
from paddock.cli.text import say
from paddock.errors import UsageError
from paddock.plan.judge import Operation
from paddock.policy import Origin
from paddock.session import prepare
from paddock.session.answer import Tried, answer
from paddock.session.exec_answer import answer_exec

_QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"])*["]""", re.DOTALL)
_SHELL = frozenset(";&|<>()`\n")
_FLAG = {Operation.READ: "--read", Operation.WRITE: "--allow", Operation.EXEC: "--exec"}


def execute(arguments: list[str]) -> int:
    parser = Parser(
        "why",
        "What the fence answers for a path or a program, and because of which line. Exit 0: allowed, 1: not.",
    )
    add_policy_options(parser, without="--exec")  # which is the question here; the grant is -x
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--path")
    asked.add_argument("--exec", dest="program", metavar="COMMAND", help='one command with its arguments: "git push"')
    parser.add_argument("--op", choices=[one.value for one in _FLAG], help="on the path (default: read)")
    parser.add_argument("--cwd", metavar="DIR", help="where the program is started")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(arguments)
    if options.program is not None and options.op:
        raise UsageError("why: --op belongs to --path")
    if options.path is not None and options.cwd:
        raise UsageError("why: --cwd belongs to --exec")
    if options.program is not None:
        return _program(options)
    return _path(options)


def _path(options: argparse.Namespace) -> int:
    operation = Operation(options.op or "read")
    origin = Origin.of_process()
    path = _absolute(options.path, origin)
    prepared = prepare(request_of(options, command=None), origin)
    answered = answer(prepared.plan, path, operation, to_make=prepared.to_make())
    judgement, tried = answered.judgement, answered.tried
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
                    "grants": [{"path": g.path, "access": g.access, "source": g.source} for g in judgement.grants],
                    "tried": {"outcome": tried.outcome, "errno": tried.errno},
                }
            )
        )
        return 0 if answered.allowed else 1
    leads = f" (leads to {judgement.path})" if judgement.path != path else ""
    say(f"{'allowed' if answered.allowed else 'denied'}: {operation.value} {path}{leads}")
    say(f"  because: {answered.reason}")
    say(f"  kernel:  {_kernel(tried)}")
    if not judgement.allowed and not judgement.closed:
        profile = " ".join(f"--profile {shlex.quote(name)}" for name in options.profile or prepared.plan.profiles[:1])
        say(f"  to allow it: paddock run {profile} {_FLAG[operation]} {shlex.quote(judgement.path)} …")
    return 0 if answered.allowed else 1


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
                    "approved": asdict(decision.approved) if decision and decision.approved else None,
                    "reason": answered.reason,
                    "files_refuse": os.strerror(answered.failure) if answered.failure else None,
                }
            )
        )
        return 0 if answered.allowed else 1
    said = "allowed" if answered.allowed else "asked about" if answered.asked else "denied"
    leads = f" ({' run by '.join(answered.chain)})" if answered.chain else ""
    say(f"{said}: {shlex.join(words)}{leads}")
    say(f"  because: {answered.reason}")
    if answered.failure is None and rule and rule.reason:
        say(f"  reason:  {rule.reason}")
    if answered.hint:
        say(f"  hint:    {answered.hint}")
    return 0 if answered.allowed else 1


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"why: {command!r} is no command: {error}") from None
    if not words or _SHELL.intersection(_QUOTED.sub("", command)):
        raise UsageError("why: one command, without the shell around it", hint="ask about each command by itself")
    return words


def _absolute(written: str, origin: Origin) -> str:
    """Not normalised: what ``..`` means behind a link is for the kernel to say."""
    if written == "~" or written.startswith("~/"):
        written = origin.home + written[1:]
    return os.path.join(origin.cwd, written)


def _kernel(tried: Tried) -> str:
    match tried.outcome:
        case "allowed":
            return "tried behind this very fence: it opened"
        case "denied":
            return f"tried behind this very fence: {tried.errno}"
        case "missing":
            return "tried behind this very fence: there is no such file"
        case _:
            return "not tried: this kernel can not try it without doing it"
