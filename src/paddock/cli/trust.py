"""paddock trust: records that the user trusts one content of one policy file, or the hosts in the
file of a package manager. A changed policy or another host must be trusted again. It also shows and
undoes what Paddock remembers: trusted files, and places that commands could write.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

from paddock.cli.options import Parser
from paddock.cli.terminal_output import say
from paddock.errors import UsageError
from paddock.host.registries import agreement, named_in
from paddock.policy import Origin, Request, load
from paddock.policy.formats.agent_config import read_config
from paddock.policy.model import Destination, Sourced
from paddock.policy.trust.file_trust import agree, read_policy, trust, untrust
from paddock.policy.trust.writable_history import WritableHistory
from paddock.text.path_walk import Tree, follow


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
        "--list",
        action="store_true",
        help="show the trusted files, and the places that commands could write",
    )
    parser.add_argument(
        "--forget",
        metavar="PATH",
        help="no longer trust this file; or, for a place that commands could write, trust what is "
        "there now",
    )
    options = parser.parse_args(arguments)
    origin = Origin.of_process()
    if options.list:
        return _list(origin)
    if options.forget is not None:
        return _forget(os.path.abspath(os.path.join(origin.cwd, options.forget)), origin)
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


def _list(origin: Origin) -> int:
    for path in dict.fromkeys(path for _, path in origin.trusted.entries):
        say(f"trusted: {path}")
    for tree in origin.writable_history.trees:
        gone = (
            "" if os.path.lexists(tree.path) and not tree.is_replaced() else " (renamed, or gone)"
        )
        say(f"a command could write: {tree.path}{gone}")
    return 0


def _forget(path: str, origin: Origin) -> int:
    untrusted = untrust(path, origin)
    if untrusted:
        say(f"no longer trusted: {path}")
    history = origin.writable_history
    if any(tree.path == path for tree in history.trees):
        history = WritableHistory.forget(origin.state_dir, path)
        say(
            f"forgotten that a command could write {path}; a run that can write it records it again"
        )
        below = Tree(path=path)
        for tree in history.trees:
            if below.names(tree.path):
                say(f"a command could still write: {tree.path}")
    elif not untrusted:
        above = history.holding(follow(path))
        raise UsageError(
            f"nothing is remembered about {path}",
            hint=f"a command could write {above.path}: if none left a file there that can do harm, "
            f"type `paddock trust --forget {shlex.quote(above.path)}`"
            if above
            else "type `paddock trust --list` to see what is remembered",
        )
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
