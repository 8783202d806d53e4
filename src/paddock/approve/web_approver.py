"""The web approver: a page on loopback shows the pending questions, and a person answers.

Knowledge of the address is the permission to answer: the first part of every path is a token of 256
bits, new for each server. It is not a cookie, because browsers send cookies to every port of the
host, and a command may serve a page on one. The Host header must be our own, so that no foreign
page can reach the server under a DNS name that points to loopback.

All shown text is escaped in ``question_text.py``. The page inserts it as text, never as markup.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator
from functools import lru_cache
from http import HTTPStatus
from importlib import resources
from typing import Any

from paddock.approve.loopback_http import HttpServer, PageRequest, Response
from paddock.approve.question_text import QuestionText, text_of_question
from paddock.approve.questions import Verdict
from paddock.approve.remember_answer import approval_for, keep, written
from paddock.approve.server_queue import PendingQuestion, Queue, SettledQuestion
from paddock.errors import PaddockError
from paddock.policy import Origin
from paddock.policy.trust.approved import approved_path

BY = "web"
HOST = "127.0.0.1"
MAX_SHOWN_QUESTIONS = 50  # and as many answers
MAX_LINE_CHARS = 2000  # characters of a line, until the page requests the whole text
MAX_LINES = 60

_text_of_question = lru_cache(maxsize=4 * MAX_SHOWN_QUESTIONS)(
    text_of_question
)  # every change shows all questions again

_FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
}
_HEADERS = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src "
        "data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


class Web:
    def __init__(self, queue: Queue, origin: Origin) -> None:
        self._queue = queue
        self._origin = origin
        self._token = secrets.token_urlsafe(32)
        self._hosts: tuple[str, ...] = ()
        self._server = HttpServer(self._handle)

    async def open(self, port: int) -> str:
        """Returns the address of the page. Port 0: any free port."""
        port = await self._server.listen(HOST, port)
        self._hosts = (f"{HOST}:{port}", f"localhost:{port}")
        return f"http://{HOST}:{port}/{self._token}/"

    async def close(self) -> None:
        await self._server.close()

    async def _handle(self, request: PageRequest) -> Response:
        if request.headers.get("host") not in self._hosts:
            return _plain(
                HTTPStatus.MISDIRECTED_REQUEST, "the Host header does not name this server"
            )
        _, _, rest = request.target.partition("/")
        token, slash, name = rest.partition("/")
        if not slash or not hmac.compare_digest(
            token.encode("latin-1"), self._token.encode("ascii")
        ):
            return _plain(
                HTTPStatus.FORBIDDEN, "open the address that `paddock approvals serve` printed"
            )
        # Browsers that send Origin reveal requests of foreign pages.
        if (
            request.headers.get("origin", f"http://{request.headers['host']}")
            != f"http://{request.headers['host']}"
        ):
            return _plain(HTTPStatus.FORBIDDEN, "another page sent this request")
        match request.method, name:
            case "GET", name if name in _FILES:
                return _file(name)
            case "GET", "events":
                headers = (*_HEADERS, ("Content-Type", "text/event-stream"))
                return Response(status=HTTPStatus.OK, headers=headers, stream=self._events())
            case "POST", "whole" | "rule" | "answer":
                return await self._handle_question(name, request)
            case _:
                return _plain(HTTPStatus.NOT_FOUND, "this page does not exist")

    async def _events(self) -> AsyncIterator[bytes]:
        with self._queue.changes() as changes:
            while True:
                yield b"data: " + json.dumps(self._state()).encode("ascii") + b"\n\n"
                await anext(changes)
                changes.all_at_once()

    def _state(self) -> dict[str, Any]:
        pending, history = self._queue.pending(), self._queue.history()
        return {
            "now": time.time(),
            "pending": [_pending(one) for one in pending[:MAX_SHOWN_QUESTIONS]],
            "more": max(0, len(pending) - MAX_SHOWN_QUESTIONS),
            "history": [_settled(one) for one in history[-MAX_SHOWN_QUESTIONS:][::-1]],
        }

    async def _handle_question(self, name: str, request: PageRequest) -> Response:
        try:
            text = json.loads(request.body)
            number, verdict = text["id"], text.get("verdict")
            pending = next(one for one in self._queue.pending() if one.id == number)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return _plain(HTTPStatus.BAD_REQUEST, "the request is not valid")
        except StopIteration:
            return _plain(HTTPStatus.GONE, "this question is no longer open")
        try:
            match name:
                case "whole":
                    return _json(_question(pending, whole=True))
                case "rule":
                    return _json(
                        {
                            "place": approved_path(self._origin),
                            "rule": await asyncio.to_thread(self._rule, pending),
                        }
                    )
                case _:
                    return await self._store_answer(pending, verdict)
        except PaddockError as error:
            return _plain(HTTPStatus.CONFLICT, f"{error.message}: no rule was written")

    async def _store_answer(self, pending: PendingQuestion, verdict: object) -> Response:
        if verdict == "always":
            await asyncio.to_thread(self._rule, pending, write=True)
            verdict = Verdict.SESSION.value
        if verdict not in [one.value for one in Verdict]:
            return _plain(HTTPStatus.BAD_REQUEST, "the request is not an answer")
        if not self._queue.answer(pending.id, Verdict(verdict), BY):
            return _plain(HTTPStatus.GONE, "this question is no longer open")
        return _json({})

    def _rule(self, pending: PendingQuestion, *, write: bool = False) -> str:
        approval = approval_for(pending.question, self._origin)
        if write:
            keep(approval, self._origin)
        return written(approval)


def _pending(pending: PendingQuestion) -> dict[str, Any]:
    return {
        **_question(pending),
        "id": pending.id,
        "asker": pending.asker,
        "asked_at": pending.asked_at,
        "ends_at": pending.asked_at + pending.question.timeout_s,
    }


def _question(pending: PendingQuestion, *, whole: bool = False) -> dict[str, Any]:
    """``cut``: the question has more text."""
    everything = _text_of_question(pending.question, whole=True)
    some = everything if whole else _some(_text_of_question(pending.question))
    return {
        "title": some.title,
        "lines": some.lines,
        "facts": some.facts,
        "diff": some.diff,
        "more_lines": len(everything.lines)
        - len(some.lines)
        + len(everything.diff)
        - len(some.diff),
        "cut": some != everything,
    }


def _some(content: QuestionText) -> QuestionText:
    return QuestionText(
        title=content.title,
        lines=tuple(map(_cut, content.lines[:MAX_LINES])),
        facts=tuple((label, _cut(text)) for label, text in content.facts),
        diff=tuple(map(_cut, content.diff[:MAX_LINES])),
    )


def _settled(settled: SettledQuestion) -> dict[str, Any]:
    return {
        "line": _cut(" ".join(_text_of_question(settled.pending.question).lines), 200),
        "verdict": settled.verdict.value if settled.verdict else "taken back",
        "by": settled.by,
        "after_s": round(settled.after_s, 1),
        "at": settled.pending.asked_at + settled.after_s,
        "id": settled.pending.id,
    }


def _cut(text: str, longest: int = MAX_LINE_CHARS) -> str:
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters are not shown here … {text[-half:]}"


def _file(name: str) -> Response:
    file, kind = _FILES[name]
    body = (resources.files("paddock.approve") / "page" / file).read_bytes()
    return Response(status=HTTPStatus.OK, headers=(*_HEADERS, ("Content-Type", kind)), body=body)


def _json(value: object) -> Response:
    headers = (*_HEADERS, ("Content-Type", "application/json"))
    return Response(status=HTTPStatus.OK, headers=headers, body=json.dumps(value).encode("ascii"))


def _plain(status: HTTPStatus, text: str) -> Response:
    headers = (*_HEADERS, ("Content-Type", "text/plain; charset=utf-8"))
    return Response(status=status, headers=headers, body=text.encode("utf-8", "backslashreplace"))
