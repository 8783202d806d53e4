"""The [shell] section: read, merged, rendered."""

from __future__ import annotations

import pytest

from paddock.errors import PolicyError
from paddock.policy.model import NetworkMode, OnFailure
from paddock.policy.render import to_toml
from tests.unit.policy.user_dirs import UserDirs

WHOLE = """\
[shell]
network = "none"
read_globs = ["/r/**"]
write_globs = ["<tmp>/**"]
allow_globs = ["<cwd>/**"]
exec_globs = ["/x/tool?"]
deny_globs = ["~/.token/**"]
block = ["ptrace"]
on_failure = "open"
[shell.env]
deny = ["A_*"]
"""


def test_every_key_is_read(dirs: UserDirs) -> None:
    shell = dirs.load_text(WHOLE).shell
    assert shell is not None
    assert shell.network is not None
    assert shell.network.value is NetworkMode.NONE
    assert shell.on_failure is not None
    assert shell.on_failure.value is OnFailure.OPEN
    assert [one.value for one in shell.block] == ["ptrace"]
    assert [one.value for one in shell.env_deny] == ["A_*"]
    assert [(one.access.value, one.optional) for one in shell.grants] == [
        ("read", False), ("write", False), ("allow", False), ("exec", True),
    ]  # fmt: skip
    assert shell.denies[0].pattern == f"{dirs.home}/.token/**"
    assert (shell.source.line, shell.denies[0].source.line) == (1, 7)


def test_absent_and_empty_are_different(dirs: UserDirs) -> None:
    assert dirs.load_text("[meta]\n").shell is None
    assert dirs.load_text("[shell]\n").shell is not None


@pytest.mark.parametrize(
    ("line", "number", "text"),
    [
        ('network = "filtered"', 2, "cannot have its own network"),
        ('network = "host"', 2, "cannot have its own network"),
        ('on_failure = "ask"', 2, "on_failure"),
        ('allowed_hosts = ["x.org"]', 2, "allowed_hosts"),
        ('[shell.env]\npass = ["A"]', 3, "pass"),
        ('block = ["no_such_call"]', 2, "no_such_call"),
        ('write_globs = [{ path = "/x/**", execute = false }]', 2, "write_globs"),
    ],
)
def test_an_error_has_its_line(dirs: UserDirs, line: str, number: int, text: str) -> None:
    with pytest.raises(PolicyError) as error:
        dirs.load_text(f"[shell]\n{line}\n")
    assert f"p.toml:{number}" in str(error.value), error.value
    assert text in str(error.value)


def test_two_shell_sections_are_merged_and_the_later_value_wins(dirs: UserDirs) -> None:
    dirs.file("under.toml", WHOLE)
    over = '[meta]\ninherit = "./under.toml"\n[shell]\non_failure = "closed"\nblock = ["sync"]\n'
    shell = dirs.load_text(over, "over.toml").shell
    assert shell is not None
    assert shell.on_failure is not None
    assert shell.on_failure.value is OnFailure.CLOSED
    assert [one.value for one in shell.block] == ["ptrace", "sync"]
    assert shell.network is not None


def test_a_rendered_shell_section_reads_the_same(dirs: UserDirs) -> None:
    for text in (WHOLE, "[shell]\n"):
        written = to_toml(dirs.load_text(text))
        assert to_toml(dirs.load_text(written, "again.toml")) == written
        assert "[shell]" in written
