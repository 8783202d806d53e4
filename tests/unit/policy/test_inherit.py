"""Inheritance: parents first, lists add up, limits of depth and cycles."""

from __future__ import annotations

import pytest

from paddock.policy import Request
from paddock.policy.model import Action
from paddock.policy.render import to_toml
from tests.unit.policy.user_dirs import UserDirs, patterns


def test_the_parent_comes_first_wherever_the_line_stands(dirs: UserDirs) -> None:
    """C-074."""
    dirs.user("parent.conf", "ro /parent\nworkdir /parent\n")
    first = dirs.load_text("inherit parent\nro /child\nworkdir /child\n", "first.conf")
    last = dirs.load_text("ro /child\nworkdir /child\ninherit parent\n", "last.conf")
    assert patterns(first) == patterns(last) == ["/parent", "/child"]
    assert to_toml(first) == to_toml(last)


def test_lists_add_up_and_scalars_are_replaced(dirs: UserDirs) -> None:
    """C-075, C-076."""
    dirs.user(
        "parent.toml",
        "[meta]\nask_timeout_s = 1\ndefault_action = 'deny'\n[filesystem]\nread_globs = ['/p']\n",
    )
    child = dirs.load_text(
        "[meta]\ninherit = 'parent'\nask_timeout_s = 2\n[filesystem]\nread_globs = ['/c']\n"
    )
    assert patterns(child) == ["/p", "/c"]
    assert child.meta.ask_timeout_s is not None
    assert child.meta.ask_timeout_s.value == 2
    assert child.meta.default_action is not None
    assert child.meta.default_action.value is Action.DENY


def test_several_parents_are_merged_in_their_order(dirs: UserDirs) -> None:
    dirs.user("a.conf", "ro /a\nworkdir /a\n")
    dirs.user("b.conf", "ro /b\nworkdir /b\n")
    policy = dirs.load_text("[meta]\ninherit = ['b', 'a']\n")
    assert patterns(policy) == ["/b", "/a"]
    assert policy.workdir is not None
    assert policy.workdir.value == "/a"
    assert policy.profiles[1:] == ("b", "base", "a")


def test_a_parent_met_twice_counts_once(dirs: UserDirs) -> None:
    """Else a parent of the second file would override changes of the first file."""
    dirs.user("common.conf", "inherit base\nworkdir /common\n")
    dirs.user("a.conf", "inherit common\nworkdir /a\n")
    dirs.user("b.conf", "inherit common\nro /b\n")
    policy = dirs.load(Request(profiles=("a", "b")))
    assert policy.workdir is not None
    assert policy.workdir.value == "/a"
    assert policy.profiles == ("a", "common", "base", "b")


def test_two_levels_load_and_three_do_not(dirs: UserDirs) -> None:
    """C-077."""
    dirs.user("d.conf", "ro /d\n")
    dirs.user("c.conf", "ro /c\n")
    dirs.user("b.conf", "inherit c\n")
    dirs.user("a.conf", "inherit b\n")
    assert patterns(dirs.load(Request(profiles=("a",)))) == ["/c"]
    dirs.user("c.conf", "inherit d\n")
    error = dirs.refuse_request(Request(profiles=("a",)))
    assert "more than 2 levels deep" in error.message
    assert "a.conf → " in error.message
    assert patterns(dirs.load(Request(profiles=("b",)))) == ["/d"]


def test_the_depth_counts_also_where_a_file_was_met_before(dirs: UserDirs) -> None:
    dirs.user("d.conf", "ro /d\n")
    dirs.user("c.conf", "inherit d\n")
    dirs.user("b.conf", "inherit c\n")
    dirs.user("a.conf", "inherit b\n")
    assert "levels deep" in dirs.refuse_request(Request(profiles=("c", "b", "a"))).message


def test_built_in_parents_do_not_count(dirs: UserDirs) -> None:
    dirs.user("c.conf", "inherit strict\n")
    dirs.user("b.conf", "inherit c\n")
    dirs.user("a.conf", "inherit b\n")
    assert dirs.load(Request(profiles=("a",))).profiles == (
        "a",
        "b",
        "c",
        "strict",
        "ai-agent",
        "read-only",
        "base",
    )


def test_a_built_in_between_written_files_does_not_hide_them(dirs: UserDirs) -> None:
    dirs.user("base.conf", "inherit base\n")
    dirs.user("read-only.conf", "inherit read-only\n")
    dirs.user("ai-agent.conf", "inherit ai-agent\n")
    assert dirs.load(Request(profiles=("ai-agent",)))
    dirs.user("top.conf", "inherit ai-agent\n")
    assert "levels deep" in dirs.refuse_request(Request(profiles=("top",))).message


@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("a", "b", "c")])
def test_a_cycle_is_an_error_that_names_the_chain(dirs: UserDirs, names: tuple[str, ...]) -> None:
    for name, parent in zip(names, (*names[1:], names[0]), strict=True):
        dirs.user(f"{name}.conf", f"inherit ./{parent}.conf\n")
    error = dirs.refuse_request(Request(profiles=("a",)))
    assert "inherit each other" in error.message
    assert error.message.count("a.conf") >= 2


def test_a_cycle_through_a_built_in_is_found(dirs: UserDirs) -> None:
    dirs.user("base.toml", "[meta]\ninherit = 'ai-agent'\n")
    error = dirs.refuse_request(Request(profiles=("base",)))
    assert "inherit each other" in error.message
    assert "built-in read-only" in error.message


def test_a_file_with_a_filesystem_section_inherits_base(dirs: UserDirs) -> None:
    """F-088: a note says so."""
    path = dirs.file("p.toml", "[filesystem]\nread_globs = ['/a']\n")
    policy = dirs.load_file(path)
    assert policy.profiles == (str(path), "base")
    assert patterns(policy) == ["/a"]
    assert policy.notes == (f"{path} has no inherit key: it inherits base",)
    assert "ptrace" in [call.value for call in policy.syscalls.block]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.toml", "[limits]\nwall_s = 1\n"),
        ("p.conf", "block mbind\n"),
        ("p.conf", ""),
        ("p.toml", ""),
    ],
)
def test_a_file_without_a_filesystem_section_inherits_ai_agent(
    dirs: UserDirs, name: str, text: str
) -> None:
    """F-088."""
    policy = dirs.load_text(text, name)
    assert policy.profiles[1:] == ("ai-agent", "read-only", "base")
    assert any("it inherits ai-agent" in note for note in policy.notes)


@pytest.mark.parametrize("name", ["base", "read-only", "ai-agent", "strict", "dev"])
def test_a_replacement_without_inherit_adds_to_the_built_in_profile(
    dirs: UserDirs, name: str
) -> None:
    before = dirs.load(Request(profiles=(name,)))
    dirs.user(f"{name}.conf", "block mincore\n")
    after = dirs.load(Request(profiles=(name,)))
    assert after.filesystem == before.filesystem
    assert {c.value for c in after.syscalls.block} == {c.value for c in before.syscalls.block} | {
        "mincore"
    }
