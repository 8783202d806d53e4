"""paddock jail: runs a command in a container with its own root directory."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import replace

from paddock.cli.options import Parser, add_policy_options, request_of
from paddock.cli.terminal_output import say
from paddock.errors import UsageError
from paddock.launch.prepare_container import prepare_container
from paddock.policy import Origin
from paddock.policy.command_line import DirectiveFlag, Request
from paddock.policy.formats.policy_keys import ID_MAPS

_USAGE = "paddock jail [options] -- COMMAND …"


def execute(arguments: list[str]) -> int:
    parser = Parser("jail", f"Run a command in a container: {_USAGE}")
    _add_container_options(parser)
    add_policy_options(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the numbered steps, and run nothing"
    )
    parser.add_argument("--json", action="store_true", help="with --dry-run: print JSON")
    parser.add_argument(
        "--quiet", action="store_true", help="print no start line; warnings are still printed"
    )
    options, command = parser.split_command(arguments)
    if command is None and not {"-h", "--help"} & set(options):
        raise UsageError("jail: put -- before the command", hint=_USAGE)
    parsed = parser.parse_args(options)
    if parsed.json and not parsed.dry_run:
        raise UsageError("jail: --json needs --dry-run", hint="add --dry-run")
    if not command or not command[0]:
        raise UsageError("jail: the command is empty", hint=_USAGE)
    request = _request(parsed, command[0])
    prepared = prepare_container(request, Origin.of_process(), to_run=not parsed.dry_run)
    if not parsed.dry_run:
        prepared.run(command, quiet=parsed.quiet)
    preflight = prepared.preflight()
    if parsed.json:
        say(
            json.dumps(
                {
                    "command": command,
                    "sha256": prepared.plan.sha256(),
                    "plan": prepared.plan.as_json(),
                }
            )
        )
    else:
        from paddock.cli.show_container import show_steps

        say(f"command      {shlex.join(command)}")
        show_steps(prepared.plan, preflight, command)
    return 0


_OPTION_TEXTS = (
    (("--rootdir",), "rootdir", "DIR", "use this directory as the container's root"),
    (
        ("-U", "--username"),
        "username",
        "NAME",
        "run as this user, whose name is looked up on this machine",
    ),
    (
        ("--netns",),
        "netns",
        "NAME",
        "join this network namespace, by its `ip netns` name or its path (needs root)",
    ),
    (("--cgroup",), "cgroup", "DIR", "enter this control group; repeatable"),
    (("--cap-allow",), "cap-allow", "CAP", "keep this capability; repeatable"),
    (("--mount-mask",), "mount-mask", "PATH", "hide this path in the container; repeatable"),
    (("--hostname",), "hostname", "NAME", "set this host name in the container (default: paddock)"),
)


def _add_container_options(parser: Parser) -> None:
    add = parser.add_argument
    for names, key, metavar, help_text in _OPTION_TEXTS:
        add(*names, dest="container", action=_Directive, key=key, metavar=metavar, help=help_text)
    for name, key in (("-u", "uid"), ("-g", "gid")):
        help_text = f"run with this {key} instead of the user's"
        add(
            name,
            f"--{key}",
            dest="container",
            action=_Directive,
            key=key,
            type=_number,
            metavar="N",
            help=help_text,
        )
    add(
        "--id-map",
        dest="container",
        action=_Directive,
        key="id-map",
        choices=ID_MAPS,
        help="choose how the container's user ids map to the host's",
    )
    add(
        "-l",
        "--loopback",
        dest="container",
        action=_Directive,
        key="loopback",
        nargs=0,
        help="bring the loopback device up in the container",
    )


class _Directive(argparse.Action):
    """A flag is the profile directive of the same name. It overrides the profile."""

    def __init__(self, *, key: str, **rest: object) -> None:
        super().__init__(**rest)  # type: ignore[arg-type]
        self.key = key

    def __call__(
        self,
        parser: object,
        namespace: argparse.Namespace,
        values: object,
        option: str | None = None,
    ) -> None:
        value = True if self.nargs == 0 else values
        assert isinstance(value, str | int)  # argparse reads only these types
        given = getattr(namespace, self.dest, None) or []
        setattr(
            namespace,
            self.dest,
            [*given, DirectiveFlag(key=self.key, value=value, flag=option or "")],
        )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 2**32 - 1):
        raise argparse.ArgumentTypeError(f"not a user id: {text!r}")
    return int(text)


def _request(options: argparse.Namespace, command: str) -> Request:
    if options.cow or options.resume or options.open_protected or options.tier:
        raise UsageError(
            "jail: only `paddock run` accepts --cow, --resume, --open-protected and --tier"
        )
    return replace(request_of(options, command=command), container=tuple(options.container or ()))
