"""paddock why: the kernel's own answer for one path, and the line that gave it."""

from __future__ import annotations

import json
import os
import shlex

from paddock.cli.options import Parser, add_policy_options, request_of
from paddock.cli.text import say
from paddock.plan.judge import Operation
from paddock.policy import Origin
from paddock.session import prepare
from paddock.session.answer import Tried, answer

_FLAG = {Operation.READ: "--read", Operation.WRITE: "--allow", Operation.EXEC: "--exec"}


def execute(arguments: list[str]) -> int:
    parser = Parser("why", "What the fence answers for a path, and because of which line. Exit 0: allowed, 1: denied.")
    add_policy_options(parser)
    parser.add_argument("--path", required=True)
    parser.add_argument("--op", choices=[one.value for one in Operation], default="read")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(arguments)
    operation = Operation(options.op)
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
