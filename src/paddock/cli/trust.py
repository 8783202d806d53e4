"""paddock trust: a person's word for one content of one policy file. A changed file has to be trusted again."""

from __future__ import annotations

from paddock.cli.options import Parser
from paddock.cli.text import say
from paddock.errors import UsageError
from paddock.policy import Origin, Request, load
from paddock.policy.trust import trust, untrust


def execute(arguments: list[str]) -> int:
    parser = Parser("trust", "Accept a policy file that lies where the sandbox could write it.")
    parser.add_argument("file", nargs="?", default="./paddock.toml", metavar="FILE")
    parser.add_argument("--revoke", action="store_true", help="take it back")
    options = parser.parse_args(arguments)
    origin = Origin.of_process()
    if options.revoke:
        if not untrust(options.file, origin):
            raise UsageError(f"{options.file} was not trusted")
        say(f"no longer trusted: {options.file}")
        return 0
    # Only a file that loads is worth trusting.
    load(Request(policies=(options.file,), trust_required=False), origin)
    digest = trust(options.file, origin)
    say(f"trusted: {options.file} (sha256 {digest})")
    return 0
