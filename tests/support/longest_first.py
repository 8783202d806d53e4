"""The order in which test files start.

Each worker takes the next whole file. A long file that starts last keeps one worker busy while the
other one waits, so the longest files start first. The seconds are from a quiet machine with two
processors, rounded; they only have to be right in relation to each other.
"""

from __future__ import annotations

from collections.abc import Sequence

SECONDS = {
    "system/files/aftermath/test_random_programs.py": 90,
    "system/files/test_deep_trees.py": 60,
    "contract/test_contract.py": 50,
    "cli/test_why_exec.py": 45,
    "system/files/aftermath/test_kept_programs.py": 45,
    "system/limits/test_limits.py": 45,
    "system/files/faults/test_run_faults.py": 40,
    "system/files/test_why_against_kernel.py": 36,
    "system/shells/test_interception.py": 35,
    "unit/shell/test_denied_commands.py": 30,
    "system/files/test_guard.py": 30,
    "system/exec/test_exec_attacks.py": 25,
    "unit/policy/test_what_tools_read.py": 25,
    "contract/test_container.py": 25,
    "system/workspace/test_moved_by_host.py": 25,
    "system/exec/test_exec_races.py": 25,
    "system/workspace/test_histories.py": 20,
    "system/files/test_tool_calls.py": 20,
    "system/files/test_judged_calls.py": 20,
    "system/approvals/test_approvals_page.py": 15,
    "system/network/test_served_runs.py": 15,
    "system/exec/test_ways_around.py": 15,
    "system/approvals/test_ask_exec.py": 15,
    "system/files/faults/test_scan_faults.py": 15,
    "system/processes/test_unruly_commands.py": 12,
    "system/exec/test_real_programs.py": 12,
    "system/files/test_why.py": 11,
    "system/workspace/test_renames.py": 10,
}


def order(paths: Sequence[str]) -> list[str]:
    """The same paths, relative to ``tests``: the longest first, the others as they are."""
    return sorted(paths, key=lambda path: -SECONDS.get(path, 0))
