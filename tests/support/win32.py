"""The functions of kernel32 and advapi32 that Paddock calls, on Linux. It records every call, and
processes are real.

A process begins when its thread is resumed, not when it is created. So all calls in between come
before its first instruction. A mark in the environment tells the job of a process.
"""

# ruff: noqa: N802 (names of Windows)

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paddock.executors.win32 import ExtendedLimits, Libraries, MandatoryLabel, StartupInfo

MARK = "PADDOCK_FAKE_JOB"
KILL_ON_CLOSE = 0x2000
MEDIUM = bytes.fromhex("010100000000001000200000")


@dataclass
class Created:
    """The arguments of one process creation."""

    words: list[str]
    cwd: str
    environment: dict[str, str]
    standard: tuple[int, int, int]
    flags: int
    token: int | None
    inherited: tuple[int, ...]
    job: int | None = None
    process: subprocess.Popen[bytes] | None = None


@dataclass
class FakeWindows:
    """``failing`` maps calls that fail to their error number. With ``lies`` the call that sets the
    integrity level reports success and does nothing.
    """

    failing: dict[str, int] = field(default_factory=dict)
    lies: bool = False
    calls: list[str] = field(default_factory=list)
    limits: list[bytes] = field(default_factory=list)
    labels: list[tuple[int, bytes]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    created: list[Created] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._next = 0x100
        self._open: dict[int, Any] = {}
        self._error = 0
        self._kept: list[Any] = []
        self._sid = MEDIUM
        self._list: tuple[int, ...] = ()
        self._alive: dict[int, int] = {}

    @property
    def libraries(self) -> Libraries:
        return Libraries(self, self, lambda: self._error)

    @property
    def open_handles(self) -> int:
        return len(self._open)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name[0].isupper():
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            if name in self.failing:
                self._error = self.failing[name]
                return 0
            return getattr(self, f"_{name}")(*arguments)

        return call

    # Pipes, as asyncio needs them on Linux.

    def to_it(self) -> tuple[Any, int]:
        read, write = os.pipe()
        return os.fdopen(write, "wb", buffering=0), self._handle(read)

    def from_it(self) -> tuple[Any, int]:
        read, write = os.pipe()
        return os.fdopen(read, "rb", buffering=0), self._handle(write)

    # Jobs.

    def _CreateJobObjectW(self, *_: Any) -> int:
        return self._handle(ExtendedLimits())

    def _SetInformationJobObject(self, job: int, kind: int, limits: Any, size: int) -> int:
        assert (kind, size) == (9, 144)
        self._open[job] = limits._obj
        self.limits.append(bytes(limits._obj))
        return 1

    def _QueryInformationJobObject(
        self, job: int, kind: int, answer: Any, size: int, _: Any
    ) -> int:
        assert (kind, size) == (1, 48)
        answer._obj.active = 0 if self._empty(job) else 1
        return 1

    def _AssignProcessToJobObject(self, job: int, process: int) -> int:
        self._open[process].job = job
        return 1

    def _TerminateJobObject(self, job: int, code: int) -> int:
        deadline = time.monotonic() + 60
        while not self._empty(job):
            assert time.monotonic() < deadline
            for pid in self._marked(job):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        return 1

    def _empty(self, job: int) -> bool:
        """Every process of the job holds the other end of its pipe."""
        if job not in self._alive:
            return True
        hung_up = select.poll()
        hung_up.register(self._alive[job], 0)
        return bool(hung_up.poll(0))

    def _marked(self, job: int) -> list[int]:
        mark = f"{MARK}={os.getpid()}.{id(self)}.{job}".encode()
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/environ", "rb") as environment:
                        if mark in environment.read().split(b"\0"):
                            found.append(int(name))
                except OSError:
                    continue
        return found

    # Tokens.

    def _GetCurrentProcess(self) -> int:
        return -1

    def _OpenProcessToken(self, process: int, rights: int, answer: Any) -> int:
        assert (process, rights) == (-1, 0x8B)
        answer._obj.value = self._handle("own")
        return 1

    def _DuplicateTokenEx(
        self, own: Any, access: int, security: Any, level: int, kind: int, answer: Any
    ) -> int:
        assert (self._open[own.value], access, security, level, kind) == ("own", 0, None, 2, 1)
        answer._obj.value = self._handle("duplicate")
        return 1

    def _ConvertStringSidToSidW(self, text: Any, answer: Any) -> int:
        assert bytes(text) == "S-1-16-4096\0".encode("utf-16-le")
        buffer = ctypes.create_string_buffer(bytes.fromhex("010100000000001000100000"), 12)
        self._kept.append(buffer)
        answer._obj.value = ctypes.addressof(buffer)
        return 1

    def _GetLengthSid(self, sid: Any) -> int:
        return 12

    def _SetTokenInformation(self, token: Any, kind: int, label: Any, size: int) -> int:
        assert (self._open[token.value], kind, size) == ("duplicate", 25, 28)
        sid = ctypes.string_at(label._obj.Sid, 12)
        self.labels.append((label._obj.Attributes, sid))
        self._sid = MEDIUM if self.lies else sid
        return 1

    def _GetTokenInformation(
        self, token: Any, kind: int, buffer: Any, size: int, needed: Any
    ) -> int:
        sid = ctypes.create_string_buffer(self._sid, 12)
        self._kept.append(sid)
        label = MandatoryLabel(ctypes.addressof(sid), 0x20)
        ctypes.memmove(buffer._obj, ctypes.byref(label), ctypes.sizeof(label))
        return 1

    def _GetSidSubAuthority(self, sid: int, at: int) -> int:
        return sid + 8 + 4 * at

    def _LocalFree(self, memory: Any) -> None:
        return None

    # Processes.

    def _SetHandleInformation(self, handle: int, mask: int, flags: int) -> int:
        assert (mask, flags) == (1, 1)
        os.set_inheritable(self._open[handle], True)
        return 1

    def _InitializeProcThreadAttributeList(
        self, attributes: Any, count: int, flags: int, size: Any
    ) -> int:
        size._obj.value = 48
        return 0 if attributes is None else 1

    def _UpdateProcThreadAttribute(
        self, attributes: Any, flags: int, what: int, value: Any, size: int, *_: Any
    ) -> int:
        assert (what, size) == (0x00020002, 24)
        self._list = tuple(value._obj)
        return 1

    def _DeleteProcThreadAttributeList(self, attributes: Any) -> None:
        return None

    def _CreateProcessW(self, *rest: Any) -> int:
        return self._create(None, *rest)

    def _CreateProcessAsUserW(self, token: int, *rest: Any) -> int:
        assert self._open[token] == "duplicate"
        return self._create(token, *rest)

    def _create(
        self,
        token: int | None,
        program: Any,
        line: Any,
        process_security: Any,
        thread_security: Any,
        inherit: int,
        flags: int,
        environment: Any,
        cwd: Any,
        startup: Any,
        made: Any,
    ) -> int:
        assert (program, process_security, thread_security, inherit) == (None, None, None, 1)
        info: StartupInfo = startup._obj
        assert (info.cb, info.dwFlags) == (112, 0x100)
        given = [entry for entry in bytes(environment).decode("utf-16-le").split("\0") if entry]
        text = bytes(line).decode("utf-16-le").rstrip("\0")
        self.lines.append(text)
        created = Created(
            words=split(text),
            cwd=bytes(cwd).decode("utf-16-le").rstrip("\0"),
            environment=dict(entry.split("=", 1) for entry in given),
            standard=(info.hStdInput, info.hStdOutput, info.hStdError),
            flags=flags,
            token=token,
            inherited=self._list,
        )
        self.created.append(created)
        if not os.path.isdir(created.cwd):
            self._error = 267
            return 0
        found = shutil.which(created.words[0])
        if found is None:
            self._error = 193 if os.path.exists(created.words[0]) else 2
            return 0
        made._obj.hProcess = self._handle(created)
        made._obj.hThread = self._handle(created)
        made._obj.dwProcessId = 4711
        return 1

    def _ResumeThread(self, thread: int) -> int:
        created: Created = self._open[thread]
        stdin, stdout, stderr = (self._open[handle] for handle in created.standard)
        mark = {MARK: f"{os.getpid()}.{id(self)}.{created.job}"}
        assert created.job is not None
        self._alive[created.job], held = os.pipe()
        created.process = subprocess.Popen(
            created.words,
            cwd=created.cwd,
            env={**created.environment, **mark},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=[held],
            start_new_session=True,
        )
        os.close(held)
        return 1

    def _TerminateProcess(self, process: int, code: int) -> int:
        return 1

    def _WaitForSingleObject(self, process: int, patience: int) -> int:
        created: Created = self._open[process]
        assert created.process is not None
        created.process.wait()
        return 0

    def _GetExitCodeProcess(self, process: int, answer: Any) -> int:
        created: Created = self._open[process]
        assert created.process is not None
        code = created.process.wait()
        answer._obj.value = code if code >= 0 else 0xC0000000 - code
        return 1

    def _CloseHandle(self, handle: int) -> int:
        it = self._open.pop(handle)
        if isinstance(it, int):
            os.close(it)
        elif isinstance(it, ExtendedLimits) and it.BasicLimitInformation.LimitFlags & KILL_ON_CLOSE:
            self._TerminateJobObject(handle, 0)
            if handle in self._alive:
                os.close(self._alive.pop(handle))
        return 1

    def _handle(self, it: Any) -> int:
        self._next += 4
        self._open[self._next] = it
        return self._next


def split(line: str) -> list[str]:
    """Splits a command line as CommandLineToArgvW does, if it follows the quoting rules."""
    words: list[str] = []
    word, quoted, at, some = "", False, 0, False
    while at < len(line):
        backslashes = len(line[at:]) - len(line[at:].lstrip("\\"))
        following = line[at + backslashes : at + backslashes + 1]
        if backslashes:
            word += "\\" * (backslashes // 2 if following == '"' else backslashes)
            at += backslashes
            some = True
            if following == '"' and backslashes % 2:
                word += '"'
                at += 1
            continue
        one = line[at]
        at += 1
        if one == '"':
            quoted, some = not quoted, True
        elif one in " \t" and not quoted:
            if some:
                words.append(word)
            word, some = "", False
        else:
            word, some = word + one, True
    return [*words, word] if some else words
