"""The order in which test files start.

Each worker takes the next whole file. A long file that starts last keeps one worker busy while the
other one waits, so the longest files start first. The seconds are estimates: CPU time measured on a
busy machine times 0.7, plus guessed waits. Only
their order matters.
"""

from __future__ import annotations

from collections.abc import Sequence

SECONDS = {
    "system/files/aftermath/test_random_programs.py": 68,
    "system/limits/test_limits.py": 68,
    "contract/test_contract.py": 57,
    "system/files/aftermath/test_kept_programs.py": 42,
    "system/files/test_build_tools.py": 38,
    "system/approvals/test_ask_exec.py": 31,
    "system/exec/test_exec_races.py": 29,
    "system/files/test_why_against_kernel.py": 29,
    "cli/test_why_exec.py": 28,
    "system/files/faults/test_run_faults.py": 28,
    "unit/policy/test_what_tools_read.py": 23,
    "system/exec/test_exec_attacks.py": 22,
    "system/files/test_write_races.py": 22,
    "system/files/test_guard.py": 21,
    "system/workspace/test_renames.py": 20,
    "system/workspace/test_moved_by_host.py": 19,
    "system/exec/test_exec_callers.py": 19,
    "contract/test_container.py": 19,
    "system/network/test_served_runs.py": 18,
    "system/journal/test_journal.py": 17,
    "system/exec/test_ways_around.py": 16,
    "system/exec/test_real_programs.py": 16,
    "system/files/test_later_runs.py": 15,
    "system/files/test_judged_calls.py": 20,
    "system/shells/test_interception.py": 15,
    "system/workspace/test_histories.py": 15,
    "system/files/test_deep_trees.py": 14,
    "unit/shell/test_denied_commands.py": 13,
    "system/files/test_tool_calls.py": 13,
    "system/approvals/test_approvals_page.py": 13,
    "system/files/test_covered_names.py": 12,
    "cli/test_documents.py": 12,
    "cli/test_companion.py": 12,
    "system/files/test_git_directories.py": 12,
    "cli/test_memo.py": 12,
    "system/network/test_unix_sockets.py": 11,
    "system/exec/test_exec_answers.py": 11,
    "system/files/faults/test_session_faults.py": 11,
    "system/processes/test_unruly_commands.py": 11,
    "system/files/test_why.py": 11,
    "cli/test_network_output.py": 10,
}


def order(paths: Sequence[str]) -> list[str]:
    """The same paths, relative to ``tests``: the longest first, then the others in their order."""
    return sorted(paths, key=lambda path: -SECONDS.get(path, 0))
