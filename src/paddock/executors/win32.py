"""The Windows calls: a job, a token, a process with both. Structures, calls, and their order.

Types are written by their size on 64-bit Windows, so that a structure is the same on every system
(``long`` is not). Texts are UTF-16 bytes. The libraries are passed as ``Libraries``: those of
Windows, or replacements of a test.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_int32,
    c_int64,
    c_size_t,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    sizeof,
)
from dataclasses import dataclass
from typing import Any

JOB_ACTIVE_PROCESS, JOB_MEMORY, JOB_DIE_ON_UNHANDLED, JOB_KILL_ON_CLOSE = 0x8, 0x200, 0x400, 0x2000
JOB_BASIC_ACCOUNTING, JOB_EXTENDED_LIMITS = 1, 9
TOKEN_RIGHTS = 0x1 | 0x2 | 0x8 | 0x80  # assign primary, duplicate, query, adjust default
TOKEN_PRIMARY, SECURITY_IMPERSONATION, TOKEN_INTEGRITY = 1, 2, 25
LOW_INTEGRITY, LOW_RID = "S-1-16-4096", 0x1000
SE_GROUP_INTEGRITY = 0x20
HANDLE_FLAG_INHERIT = 1
# Suspended until it is in its job; no window; the environment is UTF-16; with the attributes below.
CREATION = 0x4 | 0x08000000 | 0x400 | 0x00080000
USE_STD_HANDLES = 0x100
HANDLE_LIST = 0x00020002
INFINITE = 0xFFFFFFFF
ERROR_FILE_NOT_FOUND, ERROR_PATH_NOT_FOUND, ERROR_ACCESS_DENIED = 2, 3, 5
ERROR_BAD_EXE_FORMAT, ERROR_FILENAME_TOO_LONG, ERROR_DIRECTORY = 193, 206, 267


class IoCounters(Structure):
    _fields_ = tuple(
        (name, c_uint64) for name in ("reads", "writes", "others", "read", "written", "moved")
    )


class BasicLimits(Structure):
    _fields_ = (
        ("PerProcessUserTimeLimit", c_int64),
        ("PerJobUserTimeLimit", c_int64),
        ("LimitFlags", c_uint32),
        ("MinimumWorkingSetSize", c_size_t),
        ("MaximumWorkingSetSize", c_size_t),
        ("ActiveProcessLimit", c_uint32),
        ("Affinity", c_size_t),
        ("PriorityClass", c_uint32),
        ("SchedulingClass", c_uint32),
    )


class ExtendedLimits(Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION"""

    _fields_ = (
        ("BasicLimitInformation", BasicLimits),
        ("IoInfo", IoCounters),
        ("ProcessMemoryLimit", c_size_t),
        ("JobMemoryLimit", c_size_t),
        ("PeakProcessMemoryUsed", c_size_t),
        ("PeakJobMemoryUsed", c_size_t),
    )


class Accounting(Structure):
    """JOBOBJECT_BASIC_ACCOUNTING_INFORMATION"""

    _fields_ = (
        *((name, c_int64) for name in ("user", "kernel", "period_user", "period_kernel")),
        *((name, c_uint32) for name in ("faults", "processes", "active", "terminated")),
    )


class MandatoryLabel(Structure):
    """TOKEN_MANDATORY_LABEL"""

    _fields_ = (("Sid", c_void_p), ("Attributes", c_uint32))


class StartupInfo(Structure):
    """STARTUPINFOEXW"""

    _fields_ = (
        ("cb", c_uint32),
        *((name, c_void_p) for name in ("lpReserved", "lpDesktop", "lpTitle")),
        *(
            (name, c_uint32)
            for name in ("dwX", "dwY", "dwXSize", "dwYSize", "dwXCountChars", "dwYCountChars")
        ),
        ("dwFillAttribute", c_uint32),
        ("dwFlags", c_uint32),
        ("wShowWindow", c_uint16),
        ("cbReserved2", c_uint16),
        *(
            (name, c_void_p)
            for name in ("lpReserved2", "hStdInput", "hStdOutput", "hStdError", "lpAttributeList")
        ),
    )


class ProcessInformation(Structure):
    _fields_ = (
        ("hProcess", c_void_p),
        ("hThread", c_void_p),
        ("dwProcessId", c_uint32),
        ("dwThreadId", c_uint32),
    )


# Result, then arguments. Without them ctypes would truncate handles.
_H, _P, _D, _B = c_void_p, c_void_p, c_uint32, c_int32
KERNEL32: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "CreateJobObjectW": (_H, (_P, _P)),
    "SetInformationJobObject": (_B, (_H, _D, _P, _D)),
    "QueryInformationJobObject": (_B, (_H, _D, _P, _D, _P)),
    "AssignProcessToJobObject": (_B, (_H, _H)),
    "TerminateJobObject": (_B, (_H, _D)),
    "CreateProcessW": (_B, (_P, _P, _P, _P, _B, _D, _P, _P, _P, _P)),
    "TerminateProcess": (_B, (_H, _D)),
    "ResumeThread": (_D, (_H,)),
    "WaitForSingleObject": (_D, (_H, _D)),
    "GetExitCodeProcess": (_B, (_H, POINTER(_D))),
    "GetCurrentProcess": (_H, ()),
    "CloseHandle": (_B, (_H,)),
    "SetHandleInformation": (_B, (_H, _D, _D)),
    "InitializeProcThreadAttributeList": (_B, (_P, _D, _D, POINTER(c_size_t))),
    "UpdateProcThreadAttribute": (_B, (_P, _D, c_size_t, _P, c_size_t, _P, _P)),
    "DeleteProcThreadAttributeList": (None, (_P,)),
    "LocalFree": (_P, (_P,)),
}
ADVAPI32: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "OpenProcessToken": (_B, (_H, _D, POINTER(_H))),
    "DuplicateTokenEx": (_B, (_H, _D, _P, _D, _D, POINTER(_H))),
    "ConvertStringSidToSidW": (_B, (_P, POINTER(_P))),
    "GetLengthSid": (_D, (_P,)),
    "GetSidSubAuthority": (_P, (_P, _D)),
    "SetTokenInformation": (_B, (_H, _D, _P, _D)),
    "GetTokenInformation": (_B, (_H, _D, _P, _D, POINTER(_D))),
    "CreateProcessAsUserW": (_B, (_H, _P, _P, _P, _P, _B, _D, _P, _P, _P, _P)),
}


@dataclass(frozen=True, slots=True)
class Libraries:
    kernel32: Any
    advapi32: Any
    last_error: Callable[[], int]

    @classmethod
    def of_windows(cls) -> Libraries:
        if sys.platform != "win32":
            raise OSError("this is not Windows")
        kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
        advapi32 = ctypes.WinDLL("advapi32", use_last_error=True)
        for library, calls in ((kernel32, KERNEL32), (advapi32, ADVAPI32)):
            for name, (result, arguments) in calls.items():
                getattr(library, name).restype = result
                getattr(library, name).argtypes = arguments
        return cls(kernel32, advapi32, ctypes.get_last_error)


class CallFailed(OSError):  # noqa: N818
    def __init__(self, call: str, number: int) -> None:
        super().__init__(f"{call} failed: error {number}" if number else f"{call} had no effect")
        self.call, self.number = call, number


class Windows:
    """The calls. Each one succeeds or raises CallFailed."""

    def __init__(self, libraries: Libraries) -> None:
        self._kernel32, self._advapi32 = libraries.kernel32, libraries.advapi32
        self._last_error = libraries.last_error

    def make_job(self, *, memory_mb: int, processes: int) -> int:
        """The job and its processes end with its last handle, which this process holds."""
        job = self._kernel(self._kernel32.CreateJobObjectW(None, None), "CreateJobObjectW")
        limits = job_limits(memory_mb=memory_mb, processes=processes)
        try:
            self._kernel(
                self._kernel32.SetInformationJobObject(
                    job, JOB_EXTENDED_LIMITS, byref(limits), sizeof(limits)
                ),
                "SetInformationJobObject",
            )
        except CallFailed:
            self.close(job)
            raise
        return job

    def active(self, job: int) -> int:
        """The number of processes in the job."""
        found = Accounting()
        self._kernel(
            self._kernel32.QueryInformationJobObject(
                job, JOB_BASIC_ACCOUNTING, byref(found), sizeof(found), None
            ),
            "QueryInformationJobObject",
        )
        return int(found.active)

    def terminate(self, job: int) -> None:
        self._kernel(self._kernel32.TerminateJobObject(job, 1), "TerminateJobObject")

    def low_token(self) -> int:
        """A copy of our token at low integrity: it can write only to low objects."""
        own, made, sid = c_void_p(), c_void_p(), c_void_p()
        self._kernel(
            self._advapi32.OpenProcessToken(
                self._kernel32.GetCurrentProcess(), TOKEN_RIGHTS, byref(own)
            ),
            "OpenProcessToken",
        )
        try:
            self._kernel(
                self._advapi32.DuplicateTokenEx(
                    own, 0, None, SECURITY_IMPERSONATION, TOKEN_PRIMARY, byref(made)
                ),
                "DuplicateTokenEx",
            )
        finally:
            self.close(own.value)
        try:
            text = wide(LOW_INTEGRITY)
            self._kernel(
                self._advapi32.ConvertStringSidToSidW(text, byref(sid)), "ConvertStringSidToSidW"
            )
            try:
                label = MandatoryLabel(sid.value, SE_GROUP_INTEGRITY)
                size = sizeof(label) + self._advapi32.GetLengthSid(sid)
                self._kernel(
                    self._advapi32.SetTokenInformation(made, TOKEN_INTEGRITY, byref(label), size),
                    "SetTokenInformation",
                )
            finally:
                self._kernel32.LocalFree(sid)
            if self._integrity(made) != LOW_RID:
                # Wine reports success without doing it.
                raise CallFailed("SetTokenInformation", 0)
        except CallFailed:
            self.close(made.value)
            raise
        assert made.value is not None
        return made.value

    def _integrity(self, token: c_void_p) -> int:
        needed = c_uint32()
        buffer = (ctypes.c_ubyte * 256)()
        self._kernel(
            self._advapi32.GetTokenInformation(
                token, TOKEN_INTEGRITY, byref(buffer), sizeof(buffer), byref(needed)
            ),
            "GetTokenInformation",
        )
        label = MandatoryLabel.from_buffer(buffer)
        at = self._advapi32.GetSidSubAuthority(label.Sid, 0)
        return int(c_uint32.from_address(at).value)

    def start(
        self,
        line: str,
        *,
        token: int | None,
        job: int,
        cwd: str,
        environment: Mapping[str, str],
        handles: Sequence[int],
    ) -> tuple[int, int]:
        """Starts a process that is in the job before its first instruction. Returns its handle and
        pid. ``handles``: its stdin, stdout and stderr; it inherits nothing else.
        """
        for handle in handles:
            self._kernel(
                self._kernel32.SetHandleInformation(
                    handle, HANDLE_FLAG_INHERIT, HANDLE_FLAG_INHERIT
                ),
                "SetHandleInformation",
            )
        inherited = (c_void_p * len(handles))(*handles)
        size = c_size_t()
        self._kernel32.InitializeProcThreadAttributeList(
            None, 1, 0, byref(size)
        )  # reports the needed size, and fails
        attributes = (ctypes.c_ubyte * size.value)()
        self._kernel(
            self._kernel32.InitializeProcThreadAttributeList(byref(attributes), 1, 0, byref(size)),
            "InitializeProcThreadAttributeList",
        )
        try:
            self._kernel(
                self._kernel32.UpdateProcThreadAttribute(
                    byref(attributes),
                    0,
                    HANDLE_LIST,
                    byref(inherited),
                    sizeof(inherited),
                    None,
                    None,
                ),
                "UpdateProcThreadAttribute",
            )
            info = StartupInfo(cb=sizeof(StartupInfo), dwFlags=USE_STD_HANDLES)
            info.hStdInput, info.hStdOutput, info.hStdError = handles
            info.lpAttributeList = ctypes.addressof(attributes)
            made = ProcessInformation()
            rest = (
                None,
                wide(line),
                None,
                None,
                1,
                CREATION,
                block(environment),
                wide(cwd),
                byref(info),
                byref(made),
            )
            if token is None:
                self._kernel(self._kernel32.CreateProcessW(*rest), "CreateProcessW")
            else:
                self._kernel(
                    self._advapi32.CreateProcessAsUserW(token, *rest), "CreateProcessAsUserW"
                )
        finally:
            self._kernel32.DeleteProcThreadAttributeList(byref(attributes))
        try:
            self._kernel(
                self._kernel32.AssignProcessToJobObject(job, made.hProcess),
                "AssignProcessToJobObject",
            )
            if self._kernel32.ResumeThread(made.hThread) == INFINITE:
                raise CallFailed("ResumeThread", self._last_error())
        except CallFailed:
            self._kernel32.TerminateProcess(made.hProcess, 1)
            self.close(made.hProcess)
            raise
        finally:
            self.close(made.hThread)
        return made.hProcess, made.dwProcessId

    def wait(self, process: int) -> int:
        """Waits for its end and returns its exit code."""
        self._kernel32.WaitForSingleObject(process, INFINITE)
        code = c_uint32()
        self._kernel(self._kernel32.GetExitCodeProcess(process, byref(code)), "GetExitCodeProcess")
        return int(code.value)

    def close(self, handle: int | None) -> None:
        self._kernel32.CloseHandle(handle)

    def _kernel(self, answer: Any, call: str) -> int:
        if not answer:
            raise CallFailed(call, self._last_error())
        return int(answer)


def job_limits(*, memory_mb: int, processes: int) -> ExtendedLimits:
    """The limit of committed memory for the whole job. A limit of the working set would not bound
    committed memory.
    """
    limits = ExtendedLimits()
    basic = limits.BasicLimitInformation
    basic.LimitFlags = JOB_ACTIVE_PROCESS | JOB_MEMORY | JOB_DIE_ON_UNHANDLED | JOB_KILL_ON_CLOSE
    basic.ActiveProcessLimit = processes
    limits.JobMemoryLimit = memory_mb * 1024 * 1024
    return limits


def wide(text: str) -> Any:
    """With a NUL, in writable memory: CreateProcessW writes to it."""
    data = text.encode("utf-16-le", "surrogatepass") + b"\0\0"
    return (ctypes.c_ubyte * len(data)).from_buffer_copy(data)


def block(environment: Mapping[str, str]) -> Any:
    """In the order that Windows requires."""
    entries = sorted(environment.items(), key=lambda entry: entry[0].upper())
    return wide("".join(f"{name}={value}\0" for name, value in entries) or "\0")
