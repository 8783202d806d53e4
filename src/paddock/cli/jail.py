"""paddock jail: runs a command in a container with its own root directory."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import replace

from paddock.cli.options import Parser, add_policy_options, request_of, split_command
from paddock.cli.terminal_output import say
from paddock.errors import UsageError
from paddock.launch.prepare_container import prepare_container
from paddock.policy import Origin
from paddock.policy.formats.schema import ID_MAPS
from paddock.policy.request import DirectiveFlag, Request

_USAGE = "paddock jail [options] -- COMMAND …"


def execute(arguments: list[str]) -> int:
    options, command = split_command(arguments)
    parser = Parser("jail", f"Run a command in a container: {_USAGE}")
    _add_container_options(parser)
    add_policy_options(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the steps, numbered; run nothing"
    )
    parser.add_argument("--json", action="store_true", help="with --dry-run: for programs")
    parser.add_argument(
        "--quiet", action="store_true", help="no start line; warnings are still said"
    )
    if command is None and not {"-h", "--help"} & set(options):
        raise UsageError("jail: put -- before the command", hint=_USAGE)
    parsed = parser.parse_args(options)
    if parsed.json and not parsed.dry_run:
        raise UsageError("jail: --json shows a plan, it does not run one", hint="add --dry-run")
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
        from paddock.cli.steps import show_steps

        say(f"command      {shlex.join(command)}")
        show_steps(prepared.plan, preflight, command)
    return 0


_OPTION_TEXTS = (
    (("--rootdir",), "rootdir", "DIR", "the container's root directory"),
    (("-U", "--username"), "username", "NAME", "the user to run as, looked up on this machine"),
    (
        ("--netns",),
        "netns",
        "NAME",
        "join this network namespace, of `ip netns` or by its path (root)",
    ),
    (("--cgroup",), "cgroup", "DIR", "enter this control group; may be repeated"),
    (("--cap-allow",), "cap-allow", "CAP", "keep this capability; may be repeated"),
    (("--mount-mask",), "mount-mask", "PATH", "hide this path inside; may be repeated"),
    (("--hostname",), "hostname", "NAME", "the name of the machine inside (default: paddock)"),
)


def _add_container_options(parser: Parser) -> None:
    add = parser.add_argument
    for names, key, metavar, help_text in _OPTION_TEXTS:
        add(*names, dest="container", action=_Directive, key=key, metavar=metavar, help=help_text)
    for name, key in (("-u", "uid"), ("-g", "gid")):
        help_text = f"the {key} to run as, in place of the user's"
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
        help="who its users are outside",
    )
    add(
        "-l",
        "--loopback",
        dest="container",
        action=_Directive,
        key="loopback",
        nargs=0,
        help="bring lo up inside",
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
        raise argparse.ArgumentTypeError(f"not a number of a user: {text!r}")
    return int(text)


def _request(options: argparse.Namespace, command: str) -> Request:
    if options.cow or options.resume or options.open_protected or options.tier:
        raise UsageError("jail: --cow, --resume, --open-protected and --tier are for `paddock run`")
    return replace(request_of(options, command=command), container=tuple(options.container or ()))
