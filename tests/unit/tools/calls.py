"""Tool calls of the tests. By default everything is allowed that no list denies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from paddock import ToolCall, ToolPolicy
from paddock.approve.inbox import Inbox
from paddock.approve.questions import ToolQuestion, Verdict
from paddock.tools.commands import CommandResult
from paddock.tools.dispatch import Tools
from paddock.tools.result import ToolResult


def lenient(cwd: Path, **settings: Any) -> ToolPolicy:
    return ToolPolicy(
        cwd=cwd,
        home=cwd,
        **{"require_approval_for_writes": False, "require_approval_for_execute": False, **settings},
    )


def call(tools: Tools | Path, name: str, **arguments: Any) -> ToolResult:
    chosen = tools if isinstance(tools, Tools) else Tools(lenient(tools))
    return asyncio.run(chosen.call(ToolCall(name=name, arguments=arguments)))


class Answers:
    """An approver that gives these answers in turn and records the questions."""

    def __init__(self, *answers: Verdict) -> None:
        self._answers = list(answers)
        self.asked: list[ToolQuestion] = []

    def serve(self, inbox: Inbox) -> None:
        while not inbox.closed:
            inbox.wait()
            inbox.read()
            for question in inbox.open():
                assert isinstance(question, ToolQuestion)
                self.asked.append(question)
                inbox.answer(question, self._answers.pop(0), "test")


class Echo:
    """An executor that runs nothing and returns its arguments."""

    def __init__(
        self, *, confines_writes: bool = True, result: CommandResult | None = None
    ) -> None:
        self.confines_writes = confines_writes
        self.result = result
        self.ran: list[tuple[str, str, float]] = []

    async def run(self, command: str, *, cwd: str, timeout_s: float) -> CommandResult:
        self.ran.append((command, cwd, timeout_s))
        return self.result or CommandResult(exit_code=0, stdout=command.encode(), stderr=b"")
