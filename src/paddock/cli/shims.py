"""paddock shims: intercepts shells that are found by PATH."""

from __future__ import annotations

import os

from paddock.cli.options import Parser
from paddock.cli.terminal_output import say
from paddock.errors import UsageError
from paddock.launch.shims import InstalledShims, default_dir, install, installed, remove
from paddock.policy import Origin, Request

_ADVISORY = (
    "Shims are advice, not a sandbox: a program that starts /bin/bash by its path, or by a #! "
    "line, avoids them.",
    "To enforce it, start the whole agent with `paddock run --intercept-shells -- COMMAND`.",
)


def execute(arguments: list[str]) -> int:
    parser = Parser(
        "shims",
        "Create links with the names of shells, which start sandboxed shells: paddock shims "
        "install [DIR]",
    )
    parser.add_argument("verb", choices=["install", "remove", "status"])
    parser.add_argument(
        "dir", nargs="?", metavar="DIR", help="default: ~/.local/state/paddock/shims"
    )
    parser.add_argument(
        "--shells",
        metavar="DIR",
        help="find the real shells in this directory (default: /bin/shells, else /bin)",
    )
    parser.add_argument(
        "--profile", action="append", default=[], metavar="NAME", help="default: ai-agent"
    )
    parser.add_argument(
        "--policy", action="append", default=[], metavar="FILE", help="a policy file"
    )
    parser.add_argument(
        "--in-run",
        action="store_true",
        help="for an agent in `paddock run`: apply only [shell] of the policy; without [shell], "
        "no network",
    )
    options = parser.parse_args(arguments)
    origin = Origin.of_process()
    directory = os.path.join(origin.cwd, options.dir) if options.dir else default_dir(origin)
    match options.verb:
        case "install":
            shells = os.path.join(origin.cwd, options.shells) if options.shells else None
            request = Request(profiles=tuple(options.profile), policies=tuple(options.policy))
            target = os.path.normpath(directory)
            done = install(
                target, shells and os.path.normpath(shells), request, origin, in_run=options.in_run
            )
            say(_line(done))
            say(f"put it first in PATH: export PATH={done.dir}:$PATH")
            for line in _ADVISORY:
                say(line)
        case "remove":
            if not remove(directory):
                raise UsageError(f"{directory} has no shims of Paddock")
            say(f"removed: {directory}")
        case _:
            found = installed(directory)
            if found is None:
                say(f"no shims in {directory}")
                return 1
            say(_line(found))
            first = origin.environ.get("PATH", "").split(":")[0]
            say(
                "PATH begins with it"
                if os.path.normpath(first or ".") == found.dir
                else "PATH does not begin with it"
            )
    return 0


def _line(shims: InstalledShims) -> str:
    return f"{shims.dir}: {', '.join(shims.names)}; the real shells are in {shims.shells}"
