"""paddock check: read and validate policy files as a run here would, and run nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paddock.cli.options import Parser
from paddock.cli.terminal_output import complain, say
from paddock.errors import PolicyError, UsageError
from paddock.explain.dry_run import require_startable, unready_credentials
from paddock.explain.unlistable_dirs import lost_in_policy
from paddock.launch.prepare import Prepared, prepare
from paddock.launch.prepare_container import prepare_container
from paddock.plan.plan import Level
from paddock.policy import Origin, Policy, Request, load, weak_points


def execute(arguments: list[str]) -> int:
    parser = Parser(
        "check",
        "Validate policy files, and print `policy ok: FILE` for each. Exit 125 if a run in this "
        "directory would refuse the file.",
    )
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="FILE",
        help="validate this file, as the argument FILE does",
    )
    parser.add_argument(
        "--strict", action="store_true", help="treat rules that are valid but weak as errors"
    )
    options = parser.parse_args(arguments)
    files = [*options.files, *options.policy]
    if not files:
        raise UsageError("check: no file is given", hint="paddock check paddock.toml")
    origin = Origin.of_process()
    for file in files:
        request = Request(policies=(file,), trust_required=False)
        policy = load(request, origin)
        if any(policy.tools.given()):
            # Imported here, because few policies have tool rules, and judging commands needs a
            # grammar.
            from paddock.tools.policy.tool_policy import ToolPolicy

            ToolPolicy.of(policy.tools, cwd=origin.cwd, home=origin.home)
        for note in (*policy.notes, *lost_in_policy(policy.filesystem)):
            complain(f"note: {note}")
        weak = list(weak_points(policy))
        for point in (*weak, *_of_a_run(request, policy, origin)):
            complain(f"warning: {point}")
        if weak and options.strict:
            raise PolicyError(f"{len(weak)} weak points (--strict)", where=file)
        say(f"policy ok: {file}")
    return 0


def _of_a_run(request: Request, policy: Policy, origin: Origin) -> Iterator[str]:
    """The warnings of a run with this policy; raises the error that would refuse it."""
    prepared = _prepared(request, policy, origin)
    if prepared is None:
        return
    require_startable(prepared, origin)
    yield from unready_credentials(prepared, origin)
    yield from (one.text for one in prepared.plan.notices if one.level is not Level.INFO)
    yield from prepared.preflight().warnings


def _prepared(request: Request, policy: Policy, origin: Origin) -> Prepared | None:
    """None: a policy of a container that leaves the rest to the command line."""
    if not policy.container:
        return prepare(request, origin)
    if not {"rootdir", "username"} <= {setting.key for setting in policy.container}:
        return None
    return prepare_container(replace(request, container=()), origin)
