"""paddock doctor: try every mechanism, print the tier, exit 0 only if the default profile can be enforced."""

from __future__ import annotations

import json
from dataclasses import replace

from paddock.cli.options import Parser
from paddock.cli.text import complain, say
from paddock.errors import EXIT_PADDOCK, PaddockError
from paddock.host import Host, Probe, measure, try_everything
from paddock.plan import compile_plan
from paddock.policy import Origin, Request, load


def execute(arguments: list[str]) -> int:
    parser = Parser("doctor", "Try every mechanism of the fence on this machine.")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(arguments)
    origin = Origin.of_process()
    path = origin.environ.get("PATH", "")
    host = measure(uid=origin.uid, user=origin.user, home=origin.home, cwd=origin.cwd, reached=(), search_path=path)
    probes = try_everything()
    refusal = _default_profile(origin, host)
    enforced = refusal is None and all(probe.held for probe in probes if not _informative(probe))
    if options.json:
        say(
            json.dumps(
                {
                    "kernel": host.kernel,
                    "arch": host.arch,
                    "landlock_abi": host.landlock_abi,
                    "tier": "landlock" if enforced else None,
                    "default_profile": enforced,
                    "refusal": refusal.message if refusal else None,
                    "tried": [
                        {"mechanism": p.mechanism, "held": p.held, "detail": p.detail, "needs": p.needs} for p in probes
                    ],
                }
            )
        )
        return 0 if enforced else EXIT_PADDOCK
    say(f"Linux {host.kernel} {host.arch}, Landlock ABI {host.landlock_abi or 'none'}")
    width = max(len(probe.mechanism) for probe in probes)
    for probe in probes:
        verdict = "held" if probe.held else ("not here" if _informative(probe) else "FAILED")
        needs = "" if probe.held else f" (needs {probe.needs})"
        say(f"  {probe.mechanism:{width}}  {verdict:8}  {probe.detail}{needs}")
    if enforced:
        say("tier: landlock. The default profile (ai-agent) can be enforced here.")
        return 0
    if refusal:
        complain(f"the default profile can not be enforced: {refusal.message}", refusal.hint)
    else:
        complain("the default profile can not be enforced: see the lines marked FAILED")
    return EXIT_PADDOCK


def _informative(probe: Probe) -> bool:
    """Tried for the sake of the report; nothing of the default profile rests on it."""
    return probe.mechanism in ("user notification", "user namespace")


def _default_profile(origin: Origin, host: Host) -> PaddockError | None:
    # Judged from a neutral directory: whether *this* one is a good workspace is not the machine's fault.
    neutral = replace(origin, cwd="/nonexistent")
    try:
        compile_plan(load(Request(profiles=("ai-agent",)), neutral), host)
    except PaddockError as error:
        return error
    return None
