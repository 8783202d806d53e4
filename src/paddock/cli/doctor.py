"""paddock doctor: try every mechanism, print the tier, exit 0 only if the default profile can be
enforced.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from paddock.cli.options import Parser
from paddock.cli.show_plan import not_covered
from paddock.cli.terminal_output import complain, say
from paddock.errors import EXIT_PADDOCK, PaddockError
from paddock.host import Host, Probe, Usable, measure, try_everything
from paddock.plan import Plan, compile_plan
from paddock.plan.tier import opening
from paddock.policy import Origin, Request, load
from paddock.policy.model import Tier


def execute(arguments: list[str]) -> int:
    parser = Parser(
        "doctor",
        "Test whether this machine can enforce the sandbox. `held`: the kernel blocked the test "
        "inside the sandbox, and allowed it outside.",
    )
    parser.add_argument(
        "--tier",
        choices=[one.value for one in Tier],
        help="test this tier instead of the strongest one",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    origin = Origin.of_process()
    host = measure(
        uid=origin.uid,
        user=origin.user,
        home=origin.home,
        cwd=origin.cwd,
        previously_writable=(),
        journals=(),
        search_path=origin.environ.get("PATH", ""),
    )
    probes = try_everything()
    plan, refusal = _default_profile(origin, host, Tier(options.tier) if options.tier else None)
    enforced = plan is not None and all(probe.held for probe in probes if _needed(probe, plan))
    tier = plan.tier if plan and enforced else None
    if options.json:
        say(
            json.dumps(
                {
                    "kernel": host.kernel,
                    "arch": host.arch,
                    "landlock_abi": host.landlock_abi,
                    "tier": tier.value if tier else None,
                    "namespaces": {
                        "usable": host.namespaces.usable,
                        "refusal": _refusal(host.namespaces),
                        "opened_by": opening(host),
                    },
                    "overlay": {"usable": host.overlay.usable, "refusal": _refusal(host.overlay)},
                    "not_covered": list(not_covered(plan)) if plan and enforced else None,
                    "default_profile": enforced,
                    "refusal": refusal.message if refusal else None,
                    "tried": [
                        {
                            "mechanism": p.mechanism,
                            "held": p.held,
                            "detail": p.detail,
                            "needs": p.needs,
                        }
                        for p in probes
                    ],
                }
            )
        )
        return 0 if enforced else EXIT_PADDOCK
    say(f"Linux {host.kernel} {host.arch}, Landlock ABI {host.landlock_abi or 'none'}")
    width = max(len(probe.mechanism) for probe in probes)
    for probe in probes:
        result = (
            "held"
            if probe.held
            else ("FAILED" if plan is None or _needed(probe, plan) else "not here")
        )
        needs = "" if probe.held else f" (needs {probe.needs})"
        say(f"  {probe.mechanism:{width}}  {result:8}  {probe.detail}{needs}")
    for subject, tried in (
        ("full tier", host.namespaces),
        ("copy-on-write workspaces", host.overlay),
    ):
        if not tried.usable:
            say(f"this machine has no {subject}: {tried.refusal}")
    if opened := opening(host):
        say(
            f"to get the full tier, {opened}. There denied names inside a grant are unreadable, "
            "and a run has its own processes and network."
        )
    if plan and tier:
        say(f"tier: {tier.value}. This machine can enforce the default profile (ai-agent).")
        say(f"not enforced in this tier: {'; '.join(not_covered(plan))}")
        say(f"network, if a policy restricts it: {_network(probes, tier)}")
        return 0
    if refusal:
        complain(
            f"this machine cannot enforce the default profile: {refusal.message}", refusal.hint
        )
    else:
        complain("this machine cannot enforce the default profile: see the lines marked FAILED")
    return EXIT_PADDOCK


def _needed(probe: Probe, plan: Plan) -> bool:
    """Whether the plan needs this mechanism. The others were tried for the report only."""
    kind, _, subject = probe.mechanism.partition(" ")
    match kind:
        case "landlock":
            known = {*plan.landlock.handled, *plan.landlock.scoped} if plan.landlock else set()
            optional = {"refer": "refer", "truncate": "truncate", "ioctl_dev": "ioctl_dev"}
            optional |= {"signal scope": "signal", "abstract socket scope": "abstract_unix_socket"}
            if subject == "tcp ports":
                return _pins(plan)
            return bool(plan.landlock) and optional.get(subject, "read_file") in known
        case "user":
            if subject == "namespace":
                return plan.tier is Tier.FULL
            return subject == "notification" and (plan.gate is not None or plan.judges_writes)
        case "ptrace":
            return plan.gate is not None
        case "network":
            return plan.network is not None and plan.tier is Tier.FULL
        case "socket":
            return _pins(plan)
        case _:
            return True


_REQUIRED_MECHANISMS = {
    Tier.FULL: ("network namespace", "network filter"),
    Tier.LANDLOCK: ("user notification", "socket of another process"),
}


def _network(probes: Sequence[Probe], tier: Tier) -> str:
    held = {probe.mechanism for probe in probes if probe.held}
    by = (
        "every connection, by name"
        if tier is Tier.FULL
        else "through the proxy only; the supervisor connects for the command (kernel_pin)"
    )
    missing = [mechanism for mechanism in _REQUIRED_MECHANISMS[tier] if mechanism not in held]
    return f"--block-net only; no {', no '.join(missing)}" if missing else by


def _pins(plan: Plan) -> bool:
    """The supervisor connects for the command, because no network namespace confines it."""
    return plan.network is not None and plan.tier is Tier.LANDLOCK


def _refusal(tried: Usable) -> str | None:
    return None if tried.usable else tried.refusal


def _default_profile(
    origin: Origin, host: Host, tier: Tier | None
) -> tuple[Plan | None, PaddockError | None]:
    # Tested in a neutral directory: an unsuitable current directory is not a fault of the machine.
    neutral = replace(origin, cwd="/nonexistent")
    try:
        return compile_plan(load(Request(profiles=("ai-agent",), tier=tier), neutral), host), None
    except PaddockError as error:
        return None, error
