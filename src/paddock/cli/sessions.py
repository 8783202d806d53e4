"""paddock sessions: lists the copy-on-write sessions and their state."""

from __future__ import annotations

import json
import time
from typing import Any

from paddock.cli.changes import size_text
from paddock.cli.options import Parser
from paddock.cli.terminal_output import say
from paddock.errors import SessionError
from paddock.policy import Origin
from paddock.workspace.change import Obstacle, Type
from paddock.workspace.review import reviewed
from paddock.workspace.sessions import (
    BrokenDirectory,
    Session,
    kept_versions,
    listed,
    store_of,
)


def execute(arguments: list[str]) -> int:
    parser = Parser("sessions", "List copy-on-write sessions, newest first.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    store = store_of(Origin.of_process().state_dir)
    rows = [_row(session) for session in listed(store)]
    if options.json:
        say(json.dumps(rows))
        return 0
    for row in rows:
        say(_line(row))
    for path in kept_versions(store):
        say(f"kept by `paddock discard`, your own versions: {path}")
    return 0


def _row(session: Session | BrokenDirectory) -> dict[str, Any]:
    if isinstance(session, BrokenDirectory):
        return {"id": session.id, "place": session.path, "state": "broken", "error": session.reason}
    row: dict[str, Any] = {
        "id": session.id,
        "place": session.path,
        "state": "running" if session.running else "ended",
        "error": None,
        "workspace": session.workspace,
        "started_ns": session.started_ns,
        "command": list(session.command),
        "changes": None,
        "bytes": None,
        "unreadable": 0,
        "apply_interrupted": False,
    }
    try:
        with reviewed(session, renames=False) as review:
            row["changes"] = len(review.changes)
            files = (
                change.new
                for change in review.changes
                if change.new and change.new.type is Type.FILE
            )
            row["bytes"] = sum(file.size for file in files)
            row["unreadable"] = sum(
                change.obstacle is Obstacle.UNREADABLE for change in review.changes
            )
            row["apply_interrupted"] = review.record.unfinished is not None
    except SessionError as error:
        row["error"] = error.message
    except OSError as error:
        row["error"] = str(error.strerror)
    return row


def _line(row: dict[str, Any]) -> str:
    if row["state"] == "broken":
        return f"{row['id']}  {row['state']}: {row['error']}"
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["started_ns"] // 10**9))
    if row["error"]:
        details = row["error"]
    else:
        plural = "" if row["changes"] == 1 else "s"
        details = f"{row['changes']} change{plural}, {size_text(row['bytes'])}"
    if row["unreadable"]:
        details += f" ({row['unreadable']} cannot be examined)"
    interrupted = ", apply interrupted" if row["apply_interrupted"] else ""
    command = " ".join(row["command"])[:60]
    return (
        f"{row['id']}  {started}  {row['state']:7}  {details}{interrupted}  {row['workspace']}  "
        f"{command}"
    )
