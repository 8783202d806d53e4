"""paddock check: read and validate policy files, run nothing."""

from __future__ import annotations

from paddock.cli.options import Parser
from paddock.cli.terminal_output import complain, say
from paddock.errors import PolicyError, UsageError
from paddock.explain.unlistable_dirs import lost_in_policy
from paddock.policy import Origin, Request, load, weak_points


def execute(arguments: list[str]) -> int:
    parser = Parser("check", "Validate policy files, and print `policy ok: FILE` for each.")
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
        policy = load(Request(policies=(file,), trust_required=False), origin)
        if any(policy.tools.given()):
            # Imported here, because few policies have tool rules, and judging commands needs a
            # grammar.
            from paddock.tools.policy.tool_policy import ToolPolicy

            ToolPolicy.of(policy.tools, cwd=origin.cwd, home=origin.home)
        weak = list(weak_points(policy))
        for note in (*policy.notes, *lost_in_policy(policy.filesystem)):
            complain(f"note: {note}")
        for point in weak:
            complain(f"warning: {point}")
        if weak and options.strict:
            raise PolicyError(f"{len(weak)} weak points (--strict)", where=file)
        say(f"policy ok: {file}")
    return 0
