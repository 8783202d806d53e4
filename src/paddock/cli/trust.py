"""paddock trust: records that the user trusts one content of one policy file, or the hosts in the
file of a package manager. A changed policy or another host must be trusted again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from paddock.cli.options import Parser
from paddock.cli.terminal_output import say
from paddock.errors import UsageError
from paddock.host.registries import agreement, named_in
from paddock.policy import Origin, Request, load
from paddock.policy.formats.agent_config import read_config
from paddock.policy.model import Destination, Sourced
from paddock.policy.trust.file_trust import agree, read_policy, trust, untrust


def execute(arguments: list[str]) -> int:
    parser = Parser(
        "trust",
        "Allow paddock to use this policy file with its present content. Paddock asks for this "
        "if an agent could have written the file. Lock files can be trusted too: @npm and other "
        "groups use their hosts.",
    )
    parser.add_argument(
        "file",
        nargs="?",
        default="./paddock.toml",
        metavar="FILE",
        help="default: ./paddock.toml",
    )
    parser.add_argument(
        "--revoke", action="store_true", help="remove the file from the list of trusted files"
    )
    options = parser.parse_args(arguments)
    origin = Origin.of_process()
    if options.revoke:
        if not untrust(options.file, origin):
            raise UsageError(f"{options.file} was not trusted")
        say(f"no longer trusted: {options.file}")
        return 0
    hosts = named_in(os.path.join(origin.cwd, options.file))
    if hosts is not None:
        return _hosts(options.file, hosts, origin)
    # A file that does not load is not trusted.
    if options.file.endswith(".json"):
        text = read_policy(os.path.join(origin.cwd, options.file), origin, shown=options.file).text
        read_config(text, options.file, origin)
    else:
        load(Request(policies=(options.file,), trust_required=False), origin)
    digest = trust(options.file, origin)
    say(f"trusted: {options.file} (sha256 {digest})")
    return 0


def _hosts(file: str, hosts: Iterable[Sourced[Destination]], origin: Origin) -> int:
    named = {host.value: host.source for host in hosts}
    if not named:
        raise UsageError(f"{file} does not name a host")
    agree(
        (agreement(host) for host in named), os.path.abspath(os.path.join(origin.cwd, file)), origin
    )
    for host, source in named.items():
        say(f"trusted: {host} ({source})")
    return 0
