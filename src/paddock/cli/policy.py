"""paddock policy show: prints the settings for tool calls, key by key."""

from __future__ import annotations

import json

from paddock.cli.options import Parser, add_tool_options, tool_flags_of
from paddock.cli.terminal_output import say
from paddock.policy import Origin
from paddock.policy.formats.agent_config import configured, shown


def execute(arguments: list[str]) -> int:
    parser = Parser(
        "policy",
        "Show the policy for tool calls: built-in values, your configuration, --config and flags.",
    )
    parser.add_argument("action", choices=["show"])
    parser.add_argument("--origin", action="store_true", help="print the source of each value")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_tool_options(parser)
    options = parser.parse_args(arguments)
    # Imported here, because the lists belong to the tool policy.
    from paddock.tools.policy.tool_policy import default_denied_paths

    builtin = [pattern for _, _, patterns in default_denied_paths() for pattern in patterns]
    found = list(
        shown(configured(Origin.of_process(), options.config, flags=tool_flags_of(options)))
    )
    found = [
        (key, [*builtin, *value], f"built in, {source}" if value else source)
        if key == "denied_paths"
        else (key, value, source)
        for key, value, source in found
    ]
    if options.json:
        say(json.dumps({key: {"value": value, "origin": source} for key, value, source in found}))
        return 0
    for key, value, source in found:
        say(f"{key} = {json.dumps(value)}" + (f"  ({source})" if options.origin else ""))
    return 0
