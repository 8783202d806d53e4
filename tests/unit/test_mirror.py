"""``tests/unit`` mirrors ``src/paddock``, file for file. This file lists the exceptions.

A source file without its own file in ``tests/unit`` is listed under the test file that runs it. A
unit test file without a source file is listed in ``WITHOUT_SOURCE`` with its reason.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src" / "paddock"
PACKAGE_FILES = ("__init__.py", "__main__.py")

RUN_BY = {
    # approve
    "cli/test_companion.py": ("approve/terminal_approver.py", "cli/companion.py"),
    "system/approvals/test_random_terminals.py": ("approve/foreground.py",),
    "system/approvals/test_approvals_server.py": (
        "approve/approvals_socket.py", "approve/loopback_http.py", "approve/web_approver.py",
        "cli/approvals.py",
    ),
    "unit/approve/test_tool_approvals.py": ("approve/forwarding_approvers.py",),
    "unit/approve/test_messages.py": ("approve/questions.py",),
    # cli
    "cli/test_audit.py": ("cli/audit.py",),
    "cli/test_bad_input.py": ("cli/terminal_output.py",),
    "cli/test_commands.py": (
        "cli/check.py", "cli/doctor.py", "cli/explain.py", "cli/profiles.py", "cli/run.py",
        "cli/show_plan.py", "cli/trust.py", "host/measure.py",
    ),
    "cli/test_dry_run.py": ("cli/show_container.py", "explain/dry_run.py"),
    "cli/test_init_and_policy.py": ("cli/init.py", "cli/policy.py"),
    "cli/test_jail.py": ("cli/jail.py", "launch/prepare_container.py"),
    "cli/test_memo.py": ("launch/write_memo.py",),
    "cli/test_network_output.py": ("explain/ask_host_table.py",),
    "cli/test_sandbox.py": ("cli/sandbox.py", "executors/sandbox.py"),
    "cli/test_why_exec.py": (
        "cli/why.py", "explain/ask_gate.py", "explain/exec_answer.py", "explain/find_program.py",
    ),
    "unit/cli/test_toml_of_flags.py": (
        "cli/options.py", "policy/formats/flags.py", "policy/command_line.py",
    ),
    # executors, session, testing
    "contract/test_container.py": (
        "executors/container.py", "executors/orphan_containers.py", "executors/container_covers.py",
    ),
    "contract/test_contract.py": (
        "executors/exec_server.py", "executors/host.py", "executors/output.py",
        "executors/process_tree.py", "executors/ssh.py", "testing/checks/endings.py",
        "testing/checks/inputs.py", "testing/checks/results.py", "testing/checks/shells.py",
        "testing/executor.py", "testing/executor_under_test.py",
    ),
    "system/processes/test_session.py": (
        "session/run_sync.py", "session/sandbox.py", "session/shutdown.py", "session/tools.py",
    ),
    "system/processes/test_session_denials.py": ("executors/denials.py",),
    "system/workspace/test_session_worktrees.py": ("session/worktree.py",),
    "unit/executors/test_interface.py": (
        "executors/asyncio_process.py", "executors/run.py", "executors/background_shells.py",
        "executors/private_dir.py",
    ),
    "unit/executors/test_windows.py": ("executors/win32.py",),
    # explain, host, journal, launch
    "system/files/test_created_directories.py": ("launch/create_missing.py",),
    "system/files/test_observe.py": ("cli/observer.py",),
    "system/files/test_why_against_kernel.py": ("explain/file_answer.py", "launch/found_covers.py"),
    "system/journal/test_journal.py": ("journal/recorder.py", "launch/journal_check.py"),
    "system/processes/test_plan_trust.py": ("core/canonical.py",),
    "system/shells/test_shims.py": ("cli/shims.py", "launch/shims.py"),
    "unit/explain/test_observer.py": ("explain/read_plan.py",),
    "unit/host/git/test_linked_worktree.py": (
        "host/git/file_snapshot.py", "host/git/worktree_links.py",
    ),
    "unit/journal/test_event_text.py": ("journal/reader.py",),
    # http
    "system/network/test_http_process.py": ("cli/http.py",),
    "system/network/test_inspection.py": ("http/http2.py", "http/inspection.py"),
    "system/network/test_route_requests.py": (
        "http/connection.py", "http/exchange.py", "http/http1.py", "http/server.py",
        "http/upstream.py", "http/websocket.py",
    ),
    "unit/http/test_message.py": ("http/headers.py",),
    # plan
    "unit/plan/test_compile.py": ("plan/seccomp.py", "plan/workspace.py"),
    "unit/plan/test_files.py": (
        "plan/denied_paths.py", "plan/grants.py", "plan/landlock_files.py",
        "plan/path_containment.py", "plan/rights.py",
    ),
    "unit/policy/test_routes.py": ("plan/http_routes.py",),
    # policy
    "unit/policy/formats/test_agent_config.py": (
        "permissions.py", "policy/formats/safety_config.py",
    ),
    "unit/policy/formats/test_toml.py": (
        "policy/formats/checked_table.py", "policy/formats/policy_keys.py",
        "policy/formats/toml_sections.py",
    ),
    "unit/policy/test_advice.py": ("policy/rule_advice.py",),
    "unit/policy/test_fuzz.py": ("policy/formats/expand.py", "policy/formats/checked_values.py"),
    "unit/policy/trust/test_file_trust.py": ("policy/trust/trusted_list.py",),
    "unit/policy/test_hosts.py": ("policy/formats/suggest.py",),
    "unit/policy/trust/test_path_list.py": ("policy/trust/journal_history.py",),
    # shell, text
    "unit/shell/test_denied_commands.py": (
        "shell/assignments.py", "shell/command_effects.py", "shell/evaluated_values.py",
        "shell/expansion.py", "shell/parse_tree.py", "shell/known_node_pairs.py",
        "shell/posix_differences.py", "shell/program_arguments.py", "shell/shell_state.py",
        "shell/unparsed_text.py", "shell/find_commands.py", "shell/words.py", "shell/wrappers.py",
    ),
    # tools
    "unit/tools/policy/test_tool_policy.py": (
        "tools/policy/calls.py", "tools/policy/path_arguments.py",
    ),
    "unit/tools/test_dispatch.py": ("tools/commands.py", "tools/result.py"),
    "system/files/test_tool_writes.py": ("tools/name_in_sandbox.py",),
    "unit/tools/test_file_tools.py": ("tools/name_in_open_dir.py",),
    # workspace
    "system/workspace/test_conflicts.py": ("cli/apply.py", "workspace/conflicts.py"),
    "system/workspace/test_histories.py": (
        "workspace/copy.py", "workspace/system_calls.py", "workspace/dir_fd_access.py",
    ),
    "system/workspace/test_hostile_changes.py": ("cli/changes.py", "cli/diff.py"),
    "system/workspace/test_interrupted_apply.py": ("workspace/stale_temp.py",),
    "system/workspace/test_masks.py": ("workspace/masked_names.py",),
    "system/workspace/test_protected_changes.py": (
        "workspace/git_state.py", "workspace/repositories.py", "workspace/review.py",
        "workspace/trusted_outside.py",
    ),
    "system/workspace/test_renames.py": ("workspace/renames.py",),
    "system/workspace/test_sessions.py": (
        "cli/session_arguments.py", "cli/discard.py", "cli/sessions.py", "workspace/sessions.py",
    ),
    "unit/workspace/test_apply_record.py": ("workspace/change.py",),
    "unit/workspace/test_replace_file.py": ("workspace/apply.py",),
}  # fmt: skip

NO_LOGIC = {
    "errors.py": "exception types",
    "host/facts.py": "types",
    "plan/plan.py": "types; every test of the plan builds them",
    "policy/formats/fragment.py": "one type",
    "policy/model.py": "types; every test of a policy builds them",
    "shell/dialect.py": "one enum",
    "version.py": "one constant",
}

WITHOUT_SOURCE = {
    "cli/test_toml_of_flags.py": "from flags to a policy file and back, over several files",
    "policy/test_examples.py": "the files in examples/",
    "policy/test_fuzz.py": "random bytes for every parser of a policy",
    "policy/test_profiles.py": "the built-in profiles",
    "policy/test_shell.py": "the section [shell], over several files",
    "policy/test_what_tools_read.py": "the lists of names against real tools",
    "shell/test_random_texts.py": "the whole package against real shells",
    "shell/test_real_shells.py": "the whole package against real shells",
    "test_api.py": "what the package exports",
    "test_document_links.py": "the links in the documents",
    "test_hints.py": "the commands and options in messages",
    "test_layers.py": "the imports of both languages",
    "test_messages.py": "the messages of both languages",
    "test_mirror.py": "this file",
    "test_promises.py": "SECURITY.md",
    "test_type_names.py": "the names of all types",
    "tools/policy/test_allowed_commands.py": "lines of shell that the policy of tools allows",
}


def sources() -> set[str]:
    found = (path for path in SOURCE.rglob("*.py") if path.name not in PACKAGE_FILES)
    return {str(path.relative_to(SOURCE)) for path in found}


def unit_tests() -> set[str]:
    unit = TESTS / "unit"
    return {str(path.relative_to(unit)) for path in unit.rglob("test_*.py")}


def mirrored(source: str) -> str:
    path = Path(source)
    return str(path.with_name(f"test_{path.name}"))


def listed() -> Counter[str]:
    return Counter([*(source for group in RUN_BY.values() for source in group), *NO_LOGIC])


def test_every_source_file_has_a_test_file_or_a_reason() -> None:
    tests = unit_tests()
    without = {source for source in sources() if mirrored(source) not in tests}
    assert sorted(without - listed().keys()) == [], "add a unit test file, or list the file here"
    assert sorted(listed().keys() - without) == [], "these have a test file, or are gone"
    assert [source for source, times in listed().items() if times > 1] == []


def test_every_unit_test_file_has_a_source_file_or_a_reason() -> None:
    without = unit_tests() - {mirrored(source) for source in sources()}
    assert without == WITHOUT_SOURCE.keys()


def test_every_test_file_that_is_named_exists() -> None:
    assert [path for path in RUN_BY if not (TESTS / path).is_file()] == []


def test_no_two_system_tests_have_the_same_file_name() -> None:
    """Documents name a test file by its name alone."""
    names = Counter(
        path.name
        for path in TESTS.rglob("test_*.py")
        if "unit" not in path.parts and "support" not in path.parts
    )
    unit = {Path(path).name for path in unit_tests()}
    assert [name for name, times in names.items() if times > 1 or name in unit] == []
