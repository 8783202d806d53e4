"""paddock run: runs a command in the sandbox, or refuses."""

from __future__ import annotations

import json
from dataclasses import replace

from paddock.cli.options import Parser, add_policy_options, request_of
from paddock.cli.terminal_output import complain, say
from paddock.errors import UsageError
from paddock.launch.prepare import prepare
from paddock.launch.write_memo import Memo, watched
from paddock.policy import Origin
from paddock.workspace.stale_temp import sweep


def execute(arguments: list[str]) -> int:
    parser = Parser(
        "run",
        "Run a command in the sandbox: paddock run [options] -- COMMAND … You may leave out `--`. "
        "A GLOB is a path, or a pattern such as '~/docs/**'. Flags add to the profile and to "
        "./paddock.toml; --only starts without them.",
    )
    add_policy_options(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print what the sandbox would allow, and run nothing"
    )
    parser.add_argument("--json", action="store_true", help="with --dry-run: print JSON")
    parser.add_argument(
        "--observe",
        action="store_true",
        help="print at the end each path that the sandbox denied, and the flag that allows it",
    )
    parser.add_argument(
        "--publish",
        action="append",
        default=[],
        metavar="[HOST:]INSIDE",
        help="open a port of the sandbox on 127.0.0.1 and ::1 of this machine: 3000, or 3000:8080 "
        "for port 8080 of the sandbox",
    )
    parser.add_argument(
        "--intercept-shells",
        action="store_true",
        help="apply [shell] of the policy to shells and the programs that they start; without "
        "[shell], these have no network",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="print no start line; warnings are still printed"
    )
    options, command = parser.split_command(arguments)
    if command is None and not {"-h", "--help"} & set(options):
        raise UsageError(
            "run: put -- before the command", hint="paddock run [options] -- COMMAND …"
        )
    parsed = parser.parse_args(options)
    if parsed.json and not parsed.dry_run:
        raise UsageError("run: --json needs --dry-run", hint="add --dry-run")
    if not command or not command[0]:
        raise UsageError("run: the command is empty", hint="paddock run [options] -- COMMAND …")
    origin, consulted = watched(Origin.of_process())
    memo = Memo.ahead_of(origin, options, command[0])
    request = replace(
        request_of(parsed, command=command[0]),
        observe=parsed.observe,
        publish=tuple(parsed.publish),
        intercept_shells=parsed.intercept_shells,
    )
    prepared = prepare(request, origin, to_run=not parsed.dry_run)
    if not parsed.dry_run:
        memo.keep(prepared, consulted, quiet=parsed.quiet)
        sweep(origin.uid)
        prepared.run(command, quiet=parsed.quiet)
    from paddock.explain.dry_run import rehearse

    preflight = prepared.preflight()
    not_started = rehearse(prepared, command, origin)
    if parsed.json:
        say(
            json.dumps(
                {
                    "command": command,
                    "exit_code": not_started.exit_code if not_started else None,
                    "refusal": not_started.message if not_started else None,
                    "sha256": prepared.plan.sha256(),
                    "plan": prepared.plan.as_json(),
                }
            )
        )
    else:
        from paddock.cli.show_plan import show_plan

        show_plan(prepared, preflight, command)
    if not_started is None:
        return 0
    complain(not_started.message, not_started.hint)
    return not_started.exit_code
