"""paddock explain: the merged policy and the plan, each grant with its source."""

from __future__ import annotations

import json
import sys

from paddock.cli.options import Parser, add_policy_options, request_of
from paddock.cli.show_plan import show_plan
from paddock.cli.terminal_output import say
from paddock.launch.prepare import prepare
from paddock.policy import Origin, load
from paddock.policy.render import to_toml


def execute(arguments: list[str]) -> int:
    parser = Parser("explain", "Print the merged policy and the plan, each grant with its source.")
    add_policy_options(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the plan as JSON")
    form.add_argument(
        "--toml", action="store_true", help="print the merged policy as one TOML file"
    )
    options = parser.parse_args(arguments)
    request, origin = request_of(options, command=None), Origin.of_process()
    if options.toml:
        sys.stdout.write(to_toml(load(request, origin)))
        return 0
    prepared = prepare(request, origin)
    if options.json:
        say(json.dumps({"sha256": prepared.plan.sha256(), "plan": prepared.plan.as_json()}))
    else:
        show_plan(prepared, prepared.preflight(), None)
    return 0
