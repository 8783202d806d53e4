"""The nine steps in their order, the sources of policies, and invalid policies."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from paddock import (
    Action,
    CommandRule,
    Decision,
    Effect,
    PathRule,
    PolicyError,
    Step,
    ToolCall,
    ToolPolicy,
    ToolSpec,
)
from paddock.policy.formats.agent_config import configured, tool_flags
from paddock.policy.formats.safety_config import read_safety_config
from paddock.policy.merge import merge
from paddock.policy.model import Policy
from paddock.tools.policy.path_arguments import guess
from paddock.tools.policy.tool_policy import default_denied_paths
from tests.unit.policy.user_dirs import UserDirs

ALLOW, DENY, ASK = Action.ALLOW, Action.DENY, Action.ASK
FREE: dict[str, Any] = {
    "allowed_paths": None, "require_approval_for_writes": False,
    "require_approval_for_execute": False, "cwd": "/w", "home": "/home/ada",
}  # fmt: skip


def policy(**settings: Any) -> ToolPolicy:
    return ToolPolicy(**{**FREE, **settings})


def bash(command: str) -> ToolCall:
    return ToolCall(name="bash", arguments={"command": command})


def read(path: str) -> ToolCall:
    return ToolCall(name="read_file", arguments={"path": path})


def write(path: str) -> ToolCall:
    return ToolCall(name="write_file", arguments={"path": path, "content": ""})


def decided(decision: Decision) -> tuple[Action, int]:
    return decision.action, int(decision.step)


ENV = PathRule(action=ALLOW, path="**/.env")
X_DENY, X_ALLOW, X_ASK = (PathRule(action=action, path="/w/x") for action in (DENY, ALLOW, ASK))
GIT_DENY, GIT_ALLOW, GIT_ASK = (
    CommandRule(action=action, exe="git") for action in (DENY, ALLOW, ASK)
)
RM_ALLOW = CommandRule(action=ALLOW, exe="rm")

# In each row two steps disagree, or one decides alone. The earlier step decides.
ORDER: list[tuple[dict[str, Any], ToolCall, Action, int]] = [
    # 1 before all
    ({"read_only": True}, write("/w/x"), DENY, 1),
    ({"read_only": True}, bash("ls"), DENY, 1),
    ({"read_only": True}, read("/w/x"), ALLOW, 9),
    ({"read_only": True}, ToolCall(name="list_directory", arguments={"path": "/w"}), ALLOW, 9),
    ({"read_only": True, "path_rules": [X_ALLOW]}, write("/w/x"), DENY, 1),
    ({"read_only": True, "path_rules": [X_DENY]}, write("/w/x"), DENY, 1),
    ({"read_only": True}, write("/w/.env"), DENY, 1),
    ({"read_only": True, "allowed_paths": ["/a/**"]}, write("/w/x"), DENY, 1),
    ({"read_only": True, "command_rules": [GIT_ALLOW]}, bash("git status"), DENY, 1),
    ({"read_only": True}, bash("rm -rf /"), DENY, 1),
    ({"read_only": True, "require_approval_for_writes": True}, write("/w/x"), DENY, 1),
    # 2 before 3: a rule wins over the user's list, but not over the built-in list
    ({"path_rules": [X_DENY]}, read("/w/x"), DENY, 2),
    ({"path_rules": [X_DENY], "denied_paths": ["/w/x"]}, read("/w/x"), DENY, 2),
    ({"path_rules": [X_ALLOW], "denied_paths": ["/w/x"]}, read("/w/x"), ALLOW, 9),
    ({"path_rules": [ENV]}, read("/w/.env"), DENY, 3),
    ({"path_rules": [X_ASK], "denied_paths": ["/w/x"]}, read("/w/x"), DENY, 3),
    # 2 before 4
    ({"path_rules": [X_DENY], "allowed_paths": ["/a/**"]}, read("/w/x"), DENY, 2),
    ({"path_rules": [X_ALLOW], "allowed_paths": ["/a/**"]}, read("/w/x"), ALLOW, 9),
    ({"path_rules": [X_ASK], "allowed_paths": ["/a/**"]}, read("/w/x"), DENY, 4),
    # 2 before 8
    ({"path_rules": [X_ASK]}, read("/w/x"), ASK, 2),
    ({"path_rules": [X_ASK], "require_approval_for_writes": True}, write("/w/x"), ASK, 2),
    ({"path_rules": [X_ALLOW], "require_approval_for_writes": True}, write("/w/x"), ALLOW, 9),
    # 2: the first match decides, and only for its own subject
    ({"path_rules": [X_ALLOW, X_DENY]}, read("/w/x"), ALLOW, 9),
    ({"path_rules": [X_DENY, X_ALLOW]}, read("/w/x"), DENY, 2),
    ({"path_rules": [PathRule(action=DENY, path="/w/x", op=Effect.WRITE)]}, read("/w/x"), ALLOW, 9),
    ({"path_rules": [PathRule(action=DENY, path="/w/x", op=Effect.WRITE)]}, write("/w/x"), DENY, 2),
    # 3 before 4 and 8
    ({}, read("/w/.env"), DENY, 3),
    ({"denied_paths": ["/w/x"]}, read("/w/x"), DENY, 3),
    ({"denied_paths": ["/w/x"], "allowed_paths": ["/a/**"]}, read("/w/x"), DENY, 3),
    ({"denied_paths": ["/w/x"], "require_approval_for_writes": True}, write("/w/x"), DENY, 3),
    # 4 before 8: outside is denied, not asked
    ({"allowed_paths": ["/a/**"]}, read("/w/x"), DENY, 4),
    ({"allowed_paths": ["/a/**"], "require_approval_for_writes": True}, write("/w/x"), DENY, 4),
    ({"allowed_paths": []}, read("/w/x"), DENY, 4),
    ({"allowed_paths": ["/w/**"]}, read("/w/x"), ALLOW, 9),
    # 5 before 6: again the built-in list stays
    ({"command_rules": [GIT_DENY]}, bash("git status"), DENY, 5),
    ({"command_rules": [GIT_DENY], "denied_commands": ["git status"]}, bash("git status"), DENY, 5),
    (
        {"command_rules": [GIT_ALLOW], "denied_commands": ["git status"]},
        bash("git status"),
        ALLOW,
        9,
    ),
    ({"command_rules": [RM_ALLOW]}, bash("rm -rf /"), DENY, 6),
    ({"command_rules": [GIT_ASK], "denied_commands": ["git status"]}, bash("git status"), DENY, 6),
    ({"command_rules": [GIT_ALLOW, GIT_DENY]}, bash("git status"), ALLOW, 9),
    ({"command_rules": [GIT_DENY, GIT_ALLOW]}, bash("git status"), DENY, 5),
    # 5 before 7 and 8
    ({"command_rules": [GIT_ASK], "allowed_paths": ["/w/**"]}, bash("git status"), ASK, 5),
    ({"command_rules": [GIT_ALLOW], "allowed_paths": ["/w/**"]}, bash("git status"), ALLOW, 9),
    (
        {"command_rules": [GIT_ALLOW], "require_approval_for_execute": True},
        bash("git status"),
        ALLOW,
        9,
    ),
    # 6 before 7 and 8
    ({"allowed_paths": ["/w/**"]}, bash("mkfs /dev/x"), DENY, 6),
    ({"require_approval_for_execute": True}, bash("mkfs /dev/x"), DENY, 6),
    ({"allowed_paths": ["/w/**"]}, bash("$X"), ASK, 6),
    # 7 before 8
    ({"allowed_paths": ["/w/**"]}, bash("ls"), ASK, 7),
    ({"allowed_paths": ["/w/**"], "require_approval_for_execute": True}, bash("ls"), ASK, 7),
    ({"allowed_paths": ["/w/**"], "writes_confined": True}, bash("ls"), ALLOW, 9),
    (
        {"allowed_paths": ["/w/**"], "writes_confined": True, "require_approval_for_execute": True},
        bash("ls"),
        ASK,
        8,
    ),
    # 8, each for its own
    ({"require_approval_for_writes": True}, write("/w/x"), ASK, 8),
    ({"require_approval_for_writes": True}, read("/w/x"), ALLOW, 9),
    ({"require_approval_for_writes": True}, bash("ls"), ALLOW, 9),
    ({"require_approval_for_execute": True}, bash("ls"), ASK, 8),
    ({"require_approval_for_execute": True}, write("/w/x"), ALLOW, 9),
    ({}, ToolCall(name="other", arguments={"a": 1}), ASK, 8),
    ({"unknown_tools": "deny"}, ToolCall(name="other", arguments={"a": 1}), DENY, 8),
    ({"unknown_tools": "allow"}, ToolCall(name="other", arguments={"a": 1}), ALLOW, 9),
    ({"unknown_tools": "allow", "read_only": True}, ToolCall(name="other", arguments={}), DENY, 1),
    # 9
    ({}, read("/w/x"), ALLOW, 9),
    ({}, bash("ls"), ALLOW, 9),
]


@pytest.mark.parametrize(("settings", "call", "action", "step"), ORDER)
def test_the_earlier_step_decides(
    settings: dict[str, Any], call: ToolCall, action: Action, step: int
) -> None:
    """A-006 to A-016, A-050, A-052, A-055"""
    decision = policy(**settings).check(call)
    assert decided(decision) == (action, step), decision
    assert decision.final is (action is not ASK)
    assert decision.rule_id
    assert decision.reason


def test_every_step_of_the_order_has_a_test() -> None:
    assert {step for *_, step in ORDER} == set(range(1, 10))


def test_actions_compare_equal_to_strings() -> None:
    assert policy().check(read("/w/x")).action == "allow"
    rule = PathRule(action="deny", path="/w/x")  # type: ignore[arg-type]
    assert policy(path_rules=[rule]).check(read("/w/x")).action == "deny"


def test_default_policy_asks(tmp_path: Path) -> None:
    """A-062"""
    careful = ToolPolicy(cwd=tmp_path, home=tmp_path)
    assert decided(careful.check(write("x"))) == (ASK, 8)
    assert decided(careful.check(bash("ls"))) == (ASK, 7)
    assert decided(careful.check(read("/usr/bin/env"))) == (DENY, 4)
    assert decided(careful.check(read("x"))) == (ALLOW, 9)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/shadow",
        "/etc/passwd",
        "/etc/sudoers",
        "/etc/sudoers.d/x",
        "/w/.env",
        "/w/a/b/.env.local",
        "/w/.env.example",
        "/w/credentials",
        "/w/credentials.json",
        "/w/secrets",
        "/w/secrets.yml",
        "/w/x/secrets/a.txt",
        "/w/a.pem",
        "/w/a.key",
        "/w/a.p12",
        "/w/a.pfx",
        "/home/ada/.ssh",
        "/home/ada/.ssh/config",
        "/w/id_rsa",
        "/w/id_dsa",
        "/w/id_ecdsa",
        "/w/id_ed25519",
        "/home/ada/.aws/credentials",
        "/home/ada/.azure/x",
        "/home/ada/.config/gcloud/x",
        "/home/ada/.netrc",
        "/w/.npmrc",
        "/home/ada/.pypirc",
        "/proc/1/environ",
    ],
)
@pytest.mark.parametrize("tool", ["read_file", "write_file", "edit_file", "list_directory"])
def test_a_file_of_the_built_in_list_is_denied_to_every_tool(path: str, tool: str) -> None:
    """A-018 to A-025"""
    more = {"write_file": {"content": ""}, "edit_file": {"old_text": "", "new_text": ""}}.get(
        tool, {}
    )
    decision = policy(path_rules=[PathRule(action=ALLOW, path="/**")]).check(
        ToolCall(name=tool, arguments={"path": path, **more})
    )
    assert decided(decision) == (DENY, 3)
    assert decision.rule_id.startswith("denied-paths.")


@pytest.mark.parametrize(
    "path",
    [
        "README.md",
        "src/environment.py",
        "keys.py",
        "pem.txt",
        ".envoy",
        "ssh.md",
        "aws.py",
        "passwd",
        "secret.py",
    ],
)
def test_a_file_with_a_similar_name_is_not_denied(path: str) -> None:
    assert policy().check(read(f"/w/{path}")).action is ALLOW


def test_a_built_in_pattern_can_be_removed_by_name() -> None:
    """A-009"""
    lifted = policy(lift_defaults=["**/.env"])
    assert lifted.check(read("/w/.env")).action is ALLOW
    assert lifted.check(read("/w/.env.local")).action is DENY
    with pytest.raises(PolicyError, match="not one of the built-in"):
        policy(lift_defaults=["**/*"])


def test_a_tool_is_judged_by_its_effects_and_not_by_its_name() -> None:
    """A-017"""
    stores = ToolSpec(name="store", effects=frozenset({Effect.WRITE}), paths=("where",))
    silent = ToolSpec(name="silent")
    mine = policy(tools=[stores, silent], read_only=True)
    assert decided(mine.check(ToolCall(name="store", arguments={"where": "/w/x"}))) == (DENY, 1)
    assert decided(mine.check(ToolCall(name="silent", arguments={}))) == (DENY, 1)
    asked = policy(
        tools=[stores, silent], require_approval_for_writes=True, require_approval_for_execute=True
    )
    assert (
        asked.check(ToolCall(name="store", arguments={"where": "/w/x"})).rule_id == "approve-writes"
    )
    assert asked.check(ToolCall(name="silent", arguments={})).rule_id == "approve-execute"
    assert (
        policy(tools=[stores]).check(ToolCall(name="store", arguments={"where": "/w/.env"})).step
        is Step.DENIED_PATHS
    )


# Rules about commands.


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("git status", ALLOW),
        ("git status && git status", ALLOW),
        ("git   'status'", ALLOW),
        ("git status 2>/dev/null", ALLOW),
        ("git status; rm -rf x", ASK),
        ("git status | sh", ASK),
        ("git status > ~/.bashrc", ASK),
        ("GIT_DIR=/x git status", ASK),
        ("PATH=/x; git status", ASK),
        ("git() { evil; }; git status", ASK),
        ("git status $(evil)", ASK),
        ("git $X", ASK),
        ("git status `evil`", ASK),
        ("sudo git status", ASK),
        ("bash -c 'git status'", ASK),
        ("git push", ASK),
        ("git status (", ASK),
        ("cd /elsewhere && git status", ASK),
        ("git status <(evil)", ASK),
        ("git status &\nevil", ASK),
    ],
)
def test_an_allowed_command_covers_nothing_that_stands_beside_it(line: str, action: Action) -> None:
    rule = CommandRule(action=ALLOW, exe="git", argv_regex=r"^git status\b")
    assert (
        policy(command_rules=[rule], require_approval_for_execute=True).check(bash(line)).action
        is action
    )


@pytest.mark.parametrize(
    ("line", "action"), [("ls", ALLOW), ("./ls", ASK), ("/w/bin/ls", ASK), ("bin/ls", ASK)]
)
def test_a_program_that_is_allowed_by_its_name_is_the_one_of_path(
    line: str, action: Action
) -> None:
    """The agent may have written a program of that name."""
    listing = policy(
        command_rules=[CommandRule(action=ALLOW, exe="ls")], require_approval_for_execute=True
    )
    assert listing.check(bash(line)).action is action


@pytest.mark.parametrize(
    ("written", "opened"),
    [
        ("~root/x", f"{os.path.expanduser('~root')}/x"),
        ("file:///etc/x", "/etc/x"),
        (" /etc/x", "/etc/x"),
    ],
)
def test_an_argument_named_as_a_path_is_judged_as_written_and_as_a_handler_may_open_it(
    written: str, opened: str
) -> None:
    for name in ("where", "path"):  # the control: an argument without the name of a path
        found = guess(
            ToolCall(name="own", arguments={name: written}), annotated=(), cwd="/w", home="/h"
        ).paths
        assert opened in found, name
        assert (written in found) == (name == "path")


@pytest.mark.parametrize(
    "line",
    [
        "git push",
        "ls; git push",
        "sudo git push",
        "sh -c 'git push'",
        "echo $(git push)",
        "/usr/bin/git push",
    ],
)
def test_a_denied_command_is_found_wherever_it_stands(line: str) -> None:
    rule = CommandRule(
        action=DENY, exe="git", argv_regex=r"\bpush\b", id="no-push", reason="not from here"
    )
    decision = policy(command_rules=[rule]).check(bash(line))
    assert (decision.action, decision.rule_id, decision.reason) == (
        DENY,
        "no-push",
        "not from here",
    )


def test_a_rule_about_the_line_sees_all_of_it() -> None:
    asks = policy(command_rules=[CommandRule(action=ASK, command_regex=r"git\s+push")])
    assert asks.check(bash("ls && git  push")).step is Step.COMMAND_RULES
    assert asks.check(bash("git push ( oops")).action is ASK


def test_a_rule_with_a_slow_expression_ends() -> None:
    slow = policy(command_rules=[CommandRule(action=DENY, argv_regex=r"^(a+)+$")])
    assert slow.check(bash("a" * 50_000 + "!")).action is ALLOW


# The subject of an approval.


def scope(line: str, cwd: str = "/w") -> object:
    return policy().check(ToolCall(name="bash", arguments={"command": line}, cwd=cwd)).scope


def test_an_approval_is_about_exactly_this_command() -> None:
    """A-094"""
    assert scope("git status") == scope("git   status") == scope("git status # why not")
    for other in (
        "git status; rm -rf ~",
        "git status x",
        "git status > x",
        "git 'status '",
        "X=1 git status",
        "git statu",
        "git status &",
        "git status | cat",
        "(git status)",
        "git status\nls",
    ):
        assert scope(other) != scope("git status"), other
    assert scope("git status", cwd="/w/sub") != scope("git status")
    assert scope('echo "a  b"') != scope('echo "a b"')
    assert scope("cat <<E\na\nE") != scope("cat <<E\nb\nE")
    assert scope("a b | c") != scope("a | b c")
    assert scope("a 2>b") != scope("a 2 >b")
    assert scope("a 2>b") == scope("a 2> b")


@pytest.mark.parametrize(
    "line",
    [
        "ls >&x",
        "ls >& x",
        "ls 2>&x",
        'ls >&"x"',
        "ls >&1x",
        "ls >&$x",
        "ls >&~/.bashrc",
        "ls &>x",
        "ls </dev/tcp/h/80",
    ],
)
def test_a_rule_that_allows_covers_no_file_that_is_written(line: str) -> None:
    listing = policy(
        command_rules=[CommandRule(action=ALLOW, exe="ls")], require_approval_for_execute=True
    )
    assert listing.check(bash(line)).action is not ALLOW
    for harmless in ("ls", "ls 2>&1", "ls >&2", "ls 2>/dev/null", "ls 2>&-", "ls </etc/hosts"):
        assert listing.check(bash(harmless)).action is ALLOW


def test_an_approval_is_about_exactly_this_file() -> None:
    mine = policy(require_approval_for_writes=True)
    assert mine.check(write("/w/x")).scope == mine.check(write("/w/./y/../x")).scope
    assert mine.check(write("/w/x")).scope != mine.check(write("/w/y")).scope
    assert mine.check(write("/w/x")).scope != mine.check(read("/w/x")).scope


def test_an_approval_of_an_unknown_tool_is_about_all_arguments() -> None:
    mine = policy(
        tools=[ToolSpec(name="store", effects=frozenset({Effect.WRITE}), paths=("where",))]
    )

    def scope_of(**arguments: str) -> object:
        return mine.check(ToolCall(name="store", arguments=arguments)).scope

    assert scope_of(where="/w/x", what="a") == scope_of(what="a", where="/w/./x")
    assert scope_of(where="/w/x", what="a") != scope_of(where="/w/x", what="b")


# The sources of policies.

TOML = """
[tools]
read_only = false
allowed_paths = ["<cwd>/**", "/shared/**"]
denied_paths = ["**/private/**"]
path_rules = [{ action = "deny", path = "<cwd>/gen/**", op = "write", reason = "made by the \
build", id = "gen" }]
command_rules = [{ action = "ask", exe = "git", argv_regex = "push" }]
denied_commands = ["terraform destroy"]
require_approval_for_writes = false
require_approval_for_execute = false
"""


def test_toml_and_json_give_the_same_policy(dirs: UserDirs) -> None:
    """A-036, A-057, A-083"""
    import tomllib

    toml = dirs.load_text(TOML).tools
    text = json.dumps(
        {"provider": {"name": "x"}, "safety": tomllib.loads(TOML)["tools"], "max_steps": 30}
    )
    safety = read_safety_config(text, "x.json", dirs.origin).tools
    calls = [
        (read(f"{dirs.work}/x"), ALLOW, 9),
        (read("/shared/x"), ALLOW, 9),
        (read("/other/x"), DENY, 4),
        (read(f"{dirs.work}/private/x"), DENY, 3),
        (read(f"{dirs.work}/a.pem"), DENY, 3),
        (write(f"{dirs.work}/gen/x"), DENY, 2),
        (bash("git push"), ASK, 5),
        (bash("terraform destroy"), DENY, 6),
        (bash("rm -rf /"), DENY, 6),
        (bash("ls"), ALLOW, 9),
    ]
    for tools in (toml, safety):
        made = ToolPolicy.of(tools, cwd=dirs.work, home=dirs.home, writes_confined=True)
        for call, action, step in calls:
            assert decided(made.check(call)) == (action, step), call
    alone = read_safety_config('{"read_only": true}', "x.json", dirs.origin).tools
    assert ToolPolicy.of(alone, cwd=dirs.work).check(write("x")).step is Step.READ_ONLY


def test_lists_of_files_and_of_the_command_line_only_add(dirs: UserDirs) -> None:
    """A-037, A-038"""
    under = dirs.load_text("[tools]\ndenied_paths = ['/a']\ndenied_commands = ['x y']\n")
    over = dirs.load_text("[tools]\ndenied_paths = []\ndenied_commands = []\n", "q.toml")
    tools = merge(
        Policy(profiles=(), tools=under.tools), Policy(profiles=(), tools=over.tools)
    ).tools
    made = ToolPolicy.of(tools, cwd=dirs.work, home=dirs.home)
    for path in ("/a", "/w/.env", "/w/a.pem"):
        assert made.check(read(path)).step is Step.DENIED_PATHS
    for line in ("x y", "rm -rf /"):
        assert made.check(bash(line)).step is Step.DENIED_COMMANDS


def test_the_flags_of_the_command_line_add_to_a_file(dirs: UserDirs) -> None:
    """A-037, A-039, A-078"""
    written = dirs.load_text("[tools]\ndenied_paths = ['/a']\n", "p.toml").tools
    flags = tool_flags(denied_paths=["/b", "c"], denied_commands=["terraform destroy"])
    tools = configured(dirs.origin, policy=written, flags=flags).tools
    assert [one.value for one in tools.denied_paths] == ["/a", "/b", "<cwd>/c"]
    made = ToolPolicy.of(tools, cwd=dirs.work, home=dirs.home)
    for path in ("/a", "/b", "c", ".env"):
        assert made.check(read(path)).step is Step.DENIED_PATHS
    assert made.check(bash("terraform destroy")).step is Step.DENIED_COMMANDS


def test_the_same_file_means_another_boundary_elsewhere(tmp_path: Path) -> None:
    """A-056"""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made = ToolPolicy(allowed_paths=["<cwd>/**"], cwd=tmp_path / name, home=tmp_path)
        assert made.check(read(f"{tmp_path}/{name}/x")).action is ALLOW
        assert made.check(read(f"{tmp_path}/three/x")).action is DENY


# Invalid policies.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"allowed_paths": ["src/**"]}, "not an absolute pattern"),
        ({"allowed_paths": ["**/src"]}, "has no directory"),
        ({"allowed_paths": ["/a/../b"]}, "'..' is not allowed"),
        ({"allowed_paths": "/a/**"}, "expected a list"),
        ({"denied_paths": [""]}, "not a pattern"),
        ({"denied_paths": ["/a/**b"]}, "must stand alone"),
        ({"denied_paths": ["x\0y"]}, "not a pattern"),
        ({"path_rules": [PathRule(action="maybe", path="/a")]}, "not one of allow, deny, ask"),  # type: ignore[arg-type]
        ({"path_rules": [PathRule(action=DENY, path="a")]}, r"path_rules\[0\]: not an absolute"),
        ({"path_rules": [PathRule(action=DENY, path="/a", op="eat")]}, "not one of read"),  # type: ignore[arg-type]
        ({"command_rules": [CommandRule(action=DENY)]}, "needs exe"),
        (
            {"command_rules": [CommandRule(action=DENY, argv_regex="(")]},
            r"command_rules\[0\].argv_regex: not a regular",
        ),
        (
            {"command_rules": [CommandRule(action=DENY, command_regex="(?=x)")]},
            "not a regular expression",
        ),
        ({"denied_commands": ["a | b"]}, "not one plain command"),
        ({"denied_commands": [" "]}, "not a pattern"),
        ({"unknown_tools": "perhaps"}, "not one of allow"),
        ({"cwd": "relative"}, "not absolute"),
    ],
)
def test_an_invalid_policy_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        policy(**settings)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (ToolCall(name="bash", arguments={}), "needs 'command'"),
        (ToolCall(name="bash", arguments={"command": 3}), "not text"),
        (ToolCall(name="bash", arguments={"command": " "}), "is empty"),
        (ToolCall(name="bash", arguments={"command": "a\0b"}), "NUL"),
        (ToolCall(name="bash", arguments={"command": "ls", "cmd": "x"}), "no argument 'cmd'"),
        (ToolCall(name="bash", arguments={"command": "ls", "timeout_s": "9"}), "not a number"),
        (ToolCall(name="read_file", arguments={}), "needs 'path'"),
        (ToolCall(name="read_file", arguments={"path": None}), "not text"),
        (ToolCall(name="read_file", arguments={"path": ""}), "empty"),
        (ToolCall(name="read_file", arguments={"path": "a\0"}), "NUL"),
        (ToolCall(name="read_file", arguments={"path": "x" * 10_000}), "looked up|may be a short"),
        (ToolCall(name="read_file", arguments={"path": "\ud800"}), "not valid text"),
        (ToolCall(name="read_file", arguments={"path": "x", "limit": True}), "not a whole number"),
        (ToolCall(name="write_file", arguments={"path": "x"}), "needs 'content'"),
        (ToolCall(name="read_file", arguments=["path"]), "not a mapping"),  # type: ignore[arg-type]
        (
            ToolCall(name="read_file", arguments={"path": "x"}, cwd="relative"),
            "not an absolute path",
        ),
    ],
)
def test_an_invalid_call_is_denied_with_a_reason(call: ToolCall, message: str) -> None:
    import re

    decision = policy().check(call)
    assert decided(decision) == (DENY, 0)
    assert re.search(message, decision.reason), decision.reason


def test_a_name_that_is_not_utf_8_is_a_name() -> None:
    path = os.fsdecode(b"/w/caf\xff")
    assert policy().check(read(path)).action is ALLOW
    assert policy(denied_paths=[path]).check(read(path)).action is DENY


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected an object"),
        ('{"safety": {"allowed_path": []}}', "safety.allowed_path: unknown key"),
        ('{"allowed_path": []}', "unknown"),
        ('{"safety": {"read_only": 1}}', "expected true or false"),
        ('{"safety": {"read_only": true, "read_only": false}}', "is given twice"),
        ('{"safety": {"allowed_paths": ["src"]}}', "not an absolute pattern"),
        (
            '{"safety": {"command_rules": [{"action": "deny", "argv_regex": "("}]}}',
            "not a regular expression",
        ),
        ('{"safety": {}, "sefety": {}}', "unknown section"),
        ('{"safety": {"sandbox": []}}', "expected a table"),
        ('{"safety": []}', "expected a table"),
    ],
)
def test_an_invalid_json_policy_is_refused(dirs: UserDirs, text: str, message: str) -> None:
    """A-086"""
    with pytest.raises(PolicyError, match=message):
        read_safety_config(text, "x.json", dirs.origin)


def test_every_built_in_group_of_patterns_is_valid() -> None:
    names = [name for name, _, _ in default_denied_paths()]
    assert names == [
        "system-files", "environment-files", "credentials", "key-material", "ssh", "cloud",
        "package-tokens",
    ]  # fmt: skip
    policy()
