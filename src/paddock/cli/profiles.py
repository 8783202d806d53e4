"""paddock profiles: which profiles there are, where each comes from, what one says."""

from __future__ import annotations

import json
import sys

from paddock.cli.options import Parser
from paddock.cli.text import printable, say
from paddock.policy import Origin
from paddock.policy.search import find, profiles


def execute(arguments: list[str]) -> int:
    parser = Parser("profiles", "List profiles, or show one as it is written.")
    parser.add_argument("name", nargs="?", help="show this one")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(arguments)
    origin = Origin.of_process()
    if options.name:
        sys.stdout.write(printable(find(options.name, origin).text))
        return 0
    found = profiles(origin)
    if options.json:
        say(json.dumps([{"name": one.name, "file": one.path, "about": one.about} for one in found]))
        return 0
    width = max(len(one.name) for one in found)
    for one in found:
        say(f"{one.name:{width}}  {one.about}")
        say(f"{'':{width}}  {one.shown}")
    return 0
