"""A program that prints many answers of a plan. It runs as the tester, outside the sandbox.

stdin is {"flags": the options of a run, "cases": [[path, operation], …]}. stdout is one JSON list
of {"allowed", "later", "reason"} in the same order.
"""

from __future__ import annotations

import json
import sys

from paddock.cli.options import Parser, add_policy_options, request_of
from paddock.explain.file_answer import judge_for
from paddock.explain.file_rules import Operation
from paddock.launch.prepare import prepare
from paddock.policy import Origin


def main() -> None:
    asked = json.load(sys.stdin)
    parser = Parser("why", "")
    add_policy_options(parser)
    prepared = prepare(
        request_of(parser.parse_args(asked["flags"]), command=None), Origin.of_process()
    )
    judge = judge_for(prepared.plan)
    judged = [judge(path, Operation(operation)) for path, operation in asked["cases"]]
    json.dump(
        [{"allowed": one.allowed, "later": one.later, "reason": one.reason} for one in judged],
        sys.stdout,
    )


if __name__ == "__main__":
    main()
