"""What the package offers, by name."""

from __future__ import annotations

import inspect
import subprocess
import sys

import paddock


def test_the_names_are_these() -> None:
    assert paddock.__all__ == [
        "Bug", "CoreError", "HostError", "JournalError", "PaddockError", "PolicyError", "Question", "Result",
        "SessionError", "UsageError", "Verdict", "__version__", "run_sync",
    ]  # fmt: skip
    for name in paddock.__all__:
        assert getattr(paddock, name) is not None
    assert not hasattr(paddock, "nothing")


def test_run_sync_is_called_like_this() -> None:
    assert str(inspect.signature(paddock.run_sync)) == (
        "(command: 'str | Sequence[str]', *, profile: 'str | None' = None, "
        "policy: 'str | os.PathLike[str] | None' = None, "
        "approver: 'Callable[[Question], Verdict] | None' = None, quiet: 'bool' = True) -> 'Result'"
    )
    assert [verdict.value for verdict in paddock.Verdict] == ["once", "session", "deny"]


def test_importing_it_costs_no_start_of_the_command_line() -> None:
    shown = "import sys, paddock; print([name for name in sys.modules if name.startswith('paddock')])"
    loaded = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "['paddock.errors', 'paddock']"
