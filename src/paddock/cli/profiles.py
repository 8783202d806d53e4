"""paddock profiles: lists the profiles with their sources, or prints one."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from paddock.cli.options import Parser
from paddock.cli.terminal_output import complain, say
from paddock.errors import EXIT_PADDOCK
from paddock.policy import Origin
from paddock.policy.profile_list import ListedProfile, listed, text_of
from paddock.text.printable import printable


def execute(arguments: list[str]) -> int:
    parser = Parser(
        "profiles",
        "List profiles, or print one profile as written. Exit 125 if a profile cannot be used.",
    )
    parser.add_argument("name", nargs="?", help="print this profile")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    origin = Origin.of_process()
    if options.name:
        sys.stdout.write(printable(text_of(options.name, origin)))
        return 0
    profiles = listed(origin)
    if options.json:
        say(json.dumps([_as_json(one) for one in profiles]))
    else:
        _print(profiles)
    wrong = [one.name for one in profiles if one.error]
    if wrong:
        sys.stdout.flush()
        complain(
            f"these profiles cannot be used: {', '.join(wrong)}",
            hint="correct the file, or delete it",
        )
        return EXIT_PADDOCK
    return 0


def _as_json(one: ListedProfile) -> dict[str, str | None]:
    error = one.error.message if one.error else None
    return {"name": one.name, "file": one.path, "about": one.about, "error": error}


def _print(profiles: Sequence[ListedProfile]) -> None:
    width = max(len(one.name) for one in profiles)
    for one in profiles:
        say(f"{one.name:{width}}  {f'error: {one.error.message}' if one.error else one.about}")
        say(f"{'':{width}}  {one.shown}")
