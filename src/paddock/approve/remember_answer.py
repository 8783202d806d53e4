"""Answer "always": writes a rule or a host into the user's own ``approved.toml``.
policy/trust/approved.py reads that file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from paddock.approve.questions import AnyQuestion, HostQuestion, Question, ToolQuestion
from paddock.core import process as core
from paddock.core.canonical import canonical
from paddock.errors import PolicyError
from paddock.policy import Origin
from paddock.policy.hosts import allowed_host
from paddock.policy.model import Action, Destination, Match, Rule, Source
from paddock.policy.render import approval_to_toml, host_to_toml, rule_to_toml
from paddock.policy.trust.approved import (
    Approved,
    ToolApproval,
    approved_path,
    load_approved,
    read_approved,
)

MAX_FILE_BYTES = 256 * 1024  # every plan with rules contains the whole file
_ID = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._+-")


Approval = Rule | Destination | ToolApproval


def approval_for(question: AnyQuestion, origin: Origin) -> Approval:
    """The entry that would be written. Raises PolicyError with the reason if there is none."""
    match question:
        case Question():
            return rule_for(question, origin)
        case HostQuestion():
            return host_for(question, origin)
        case ToolQuestion():
            return tool_for(question, origin)


def written(approval: Approval) -> str:
    match approval:
        case Rule():
            return rule_to_toml(approval)
        case Destination():
            return host_to_toml(approval)
        case ToolApproval():
            return approval_to_toml(approval)


def host_for(question: HostQuestion, origin: Origin) -> Destination:
    host = f"[{question.host}]" if ":" in question.host else question.host
    return allowed_host(
        f"{host}:{question.port}", Source(file=approved_path(origin), line=1, key="host[0]")
    ).value


def tool_for(question: ToolQuestion, origin: Origin) -> ToolApproval:
    from paddock.core.redact import Redactor

    shown = approved_path(origin)
    approval = ToolApproval(tool=question.tool, cwd=question.cwd, subject=question.subject)
    if not question.subject:
        raise PolicyError("the tool call has no argument that a rule can match", where=shown)
    if Redactor().all_of(list(question.subject)) != list(question.subject):
        raise PolicyError("the rule would contain text that looks like a secret", where=shown)
    if read_approved(approval_to_toml(approval), shown, origin).tools != (approval,):
        raise PolicyError("a rule cannot contain a name of this call", where=shown)
    return approval


def rule_for(question: Question, origin: Origin) -> Rule:
    """The rule for this program with these arguments in this directory only. Raises PolicyError
    with the reason if no rule can express it.
    """
    shown = approved_path(origin)
    expression = str(core.ask("exactly", question=canonical(question.argv)))
    matches = (("exe", question.exe), ("argv_regex", expression), ("cwd_glob", question.cwd))
    used_ids = {rule.id for rule in load_approved(origin).rules}
    name = (
        "".join(letter for letter in os.path.basename(question.exe) if letter in _ID) or "program"
    )
    number = next(
        number for number in range(1, len(used_ids) + 2) if f"{name}-{number}" not in used_ids
    )
    rule = Rule(
        id=f"{name}-{number}",
        action=Action.ALLOW,
        matches=tuple(Match(key=key, values=(value,), negate=False) for key, value in matches),
        reason=None,
        source=Source(file=shown, line=1, key="rule[0]"),
    )
    # Parsed as the policy reader parses it: a path with a "*" would match other paths too.
    read = read_approved(rule_to_toml(rule), shown, origin)
    if "*" in question.cwd or tuple(one.matches for one in read.rules) != (rule.matches,):
        raise PolicyError("a rule cannot contain a name of this call", where=shown)
    return rule


def keep(approval: Approval, origin: Origin) -> None:
    """Adds the entry to the file completely or not at all. Existing text stays unchanged."""
    path = approved_path(origin)
    try:
        with _locked(origin.config_dir):
            known = load_approved(origin)
            before, added = (
                _meant(known),
                approval.matches if isinstance(approval, Rule) else approval,
            )
            if added in before:
                return
            if known.file and (known.file.path != known.file.written or not os.path.isfile(path)):
                raise PolicyError("is a symbolic link, and Paddock would replace it", where=path)
            old = known.file.text if known.file else ""
            text = "\n\n".join(part for part in (old.rstrip("\n"), written(approval)) if part)
            if len(text.encode()) > MAX_FILE_BYTES:
                raise PolicyError(
                    f"would be longer than {MAX_FILE_BYTES} bytes with this rule",
                    where=path,
                    hint="delete old rules from this file",
                )
            if _meant(read_approved(text, path, origin)) != {*before, added}:
                raise PolicyError(
                    "cannot take another rule", where=path, hint="check the last lines of the file"
                )
            _replace(path, text)
    except OSError as error:
        raise PolicyError(f"cannot be written: {error.strerror}", where=path) from None


def _meant(approved: Approved) -> set[tuple[Match, ...] | Destination | ToolApproval]:
    """The entries that a file allows, without their ids."""
    rules = (rule.matches for rule in approved.rules)
    return {*rules, *(host.value for host in approved.hosts), *approved.tools}


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    os.makedirs(directory, mode=0o700, exist_ok=True)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _replace(path: str, text: str) -> None:
    """After a crash the file has its old or its new content."""
    fresh = f"{path}.{os.getpid()}"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        os.fchmod(fd, 0o600)  # independent of the umask
        file.write(text)
        file.flush()
        os.fsync(fd)
    os.replace(fresh, path)
