"""The hosts of package registries, read from the clients' own files. Files that a command could
have written do not count.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from paddock.cli import trust as trust_command
from paddock.errors import PolicyError
from paddock.host import registries
from paddock.host.registries import _FORMATS, Registry, discover, named_in, registry_snapshot
from paddock.policy import Origin
from paddock.policy.trust.trusted_list import TrustedList
from paddock.policy.trust.writable_history import WritableHistory
from paddock.text.path_walk import Tree, follow
from tests.unit.policy.user_dirs import UserDirs


@pytest.fixture(autouse=True)
def bare_machine(dirs: UserDirs) -> None:
    """A user without variables and without programs."""
    dirs.environ.clear()
    dirs.environ["PATH"] = str(dirs.root / "bin")


def found(dirs: UserDirs, group: str, *, reach: tuple[str, ...] = ()) -> Registry:
    trees = tuple(Tree(path=path) for path in (str(dirs.work), *reach))
    reachable = WritableHistory(trees=trees)
    return discover([group], dirs.origin, reachable, registry_snapshot(), etc=str(dirs.system))[
        group
    ]


def hosts(dirs: UserDirs, group: str) -> list[str]:
    """Each host with the name of its file."""
    return [
        f"{one.value} {str(one.source).removeprefix(f'{dirs.root}/')}"
        for one in found(dirs, group).hosts
    ]


def program(dirs: UserDirs, name: str, real: str) -> None:
    """A link on the PATH to the installed program."""
    installed = dirs.write(dirs.root / real, "")
    installed.chmod(0o755)
    link = dirs.root / "bin" / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(installed)


def test_pips_settings_and_variables_replace_its_default(dirs: UserDirs) -> None:
    dirs.environ["PIP_EXTRA_INDEX_URL"] = (
        "https://me:secret@extra.example/simple http://b.example:8080/x"
    )
    dirs.write(
        dirs.home / ".config/pip/pip.conf",
        "[global]\nindex-url = https://mirror.example/simple\n# index-url = https://not.example\n"
        "extra-index-url =\n    https://one.example/simple\n    https://two.example/simple\n"
        "timeout = 3\n",
    )
    assert hosts(dirs, "pypi") == [
        "mirror.example home/.config/pip/pip.conf:2",
        "extra.example $PIP_EXTRA_INDEX_URL",
        "b.example:8080 $PIP_EXTRA_INDEX_URL",
        "mirror.example home/.config/pip/pip.conf:2",
        "one.example home/.config/pip/pip.conf:5",
        "two.example home/.config/pip/pip.conf:6",
    ]


def test_pips_default_index_is_read_from_pip(dirs: UserDirs) -> None:
    from pip._internal.models.index import PyPI

    registry = found(dirs, "pypi")
    assert {one.value.host for one in registry.hosts} == {PyPI.netloc, PyPI.file_storage_domain}
    assert all("/pip" in one.source.file for one in registry.hosts)


def test_uv_names_its_index_in_its_own_file(dirs: UserDirs) -> None:
    text = '[[index]]\nname = "corp"\nurl = "https://uv.example/simple"\ndefault = true\n'
    dirs.write(dirs.home / ".config/uv/uv.toml", text)
    assert "uv.example home/.config/uv/uv.toml:3" in hosts(dirs, "pypi")


NPM_OWN = (
    "define('omit', {\n})\nregistry: new Definition('registry', {\n    default: "
    "'https://default.example/',\n"
)


def test_npms_default_is_what_it_was_installed_with(dirs: UserDirs) -> None:
    program(dirs, "npm", "opt/node/lib/node_modules/npm/bin/npm-cli.js")
    own = "opt/node/lib/node_modules/npm/node_modules/@npmcli/config/lib/definitions/definitions.js"
    dirs.write(dirs.root / own, NPM_OWN)
    assert hosts(dirs, "npm") == [f"default.example {own}:4"]
    dirs.write(
        dirs.home / ".npmrc",
        "@corp:registry=https://corp.example/npm/\n//corp.example/npm/:_authToken=x\n",
    )
    assert hosts(dirs, "npm") == ["corp.example home/.npmrc:1", f"default.example {own}:4"]
    dirs.write(dirs.root / "opt/node/etc/npmrc", "registry = https://mirror.example/\n")
    assert set(hosts(dirs, "npm")) == {
        "corp.example home/.npmrc:1",
        "mirror.example opt/node/etc/npmrc:1",
    }


def test_go_uses_the_first_setting_in_its_order(dirs: UserDirs) -> None:
    program(dirs, "go", "opt/go/bin/go")
    dirs.write(
        dirs.root / "opt/go/go.env",
        "# x\nGOPROXY=https://a.example|https://b.example/m,direct\nGOSUMDB=sum.example\n",
    )
    assert hosts(dirs, "go") == [
        "a.example opt/go/go.env:2",
        "b.example opt/go/go.env:2",
        "sum.example opt/go/go.env:3",
    ]
    dirs.write(dirs.home / ".config/go/env", "GOPROXY=https://mirror.example\nGOSUMDB=off\n")
    assert hosts(dirs, "go") == ["mirror.example home/.config/go/env:1"]
    dirs.environ.update(
        GOPROXY="https://now.example", GOSUMDB="key.example+abc https://sums.example"
    )
    assert hosts(dirs, "go") == ["now.example $GOPROXY", "sums.example $GOSUMDB"]


def test_cargo_fetched_from_somewhere_before(dirs: UserDirs) -> None:
    index = dirs.home / ".cargo/registry/index/index.example-6f17d22bba15001f"
    dirs.write(
        index / "config.json",
        '{"dl": "https://files.example/crates", "api": "https://index.example:443"}',
    )
    dirs.write(
        dirs.home / ".cargo/config.toml",
        '[registries.corp]\nindex = "sparse+https://corp.example/i/"\n',
    )
    named = "home/.cargo/registry/index/index.example-6f17d22bba15001f"
    assert hosts(dirs, "crates") == [
        "corp.example home/.cargo/config.toml:2",
        f"index.example {named}",
        f"files.example {named}/config.json:1",
        f"index.example:443 {named}/config.json:1",
    ]


def test_apts_sources_in_both_of_its_formats(dirs: UserDirs) -> None:
    dirs.etc(
        "apt/sources.list",
        "deb [arch=amd64 signed-by=/k] http://a.example/debian x main\n"
        "#deb http://no.example y z\n",
    )
    dirs.etc(
        "apt/sources.list.d/b.sources",
        "Types: deb\n# http://no.example\nURIs: http://b.example/debian\n  https://c.example\n",
    )
    dirs.etc("apt/sources.list.d/off.list.disabled", "deb http://no.example x main\n")
    assert hosts(dirs, "debian") == [
        "a.example etc/apt/sources.list:1",
        "b.example etc/apt/sources.list.d/b.sources:3",
        "c.example etc/apt/sources.list.d/b.sources:4",
    ]


LOCKS = [
    (
        "npm",
        "package-lock.json",
        '{\n "packages": {\n  "a": {\n   "resolved": "https://lock.example/a/-/a-1.tgz",\n',
        4,
    ),
    ("npm", "yarn.lock", 'a@^1:\n  version "1"\n  resolved "https://lock.example/a.tgz#ff"\n', 3),
    ("npm", "pnpm-lock.yaml", "a:\n  resolution: {}\n  tarball: https://lock.example/a.tgz\n", 3),
    ("npm", ".npmrc", "registry=https://lock.example/\n", 1),
    ("pypi", "uv.lock", '[[package]]\nsource = { registry = "https://lock.example/simple" }\n', 2),
    (
        "pypi",
        "poetry.lock",
        '[package.source]\ntype = "legacy"\nurl = "https://lock.example/simple"\n',
        3,
    ),
    ("pypi", "requirements.txt", "--index-url https://lock.example/simple\nx==1\n", 1),
    ("crates", "Cargo.lock", '[[package]]\nsource = "registry+https://lock.example/index"\n', 2),
    ("crates", ".cargo/config.toml", '[registries.x]\nindex = "sparse+https://lock.example/"\n', 2),
]


@pytest.mark.parametrize(("group", "name", "text", "line"), LOCKS)
def test_a_writable_policy_counts_only_once_a_person_agreed(
    dirs: UserDirs, group: str, name: str, text: str, line: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = dirs.write(dirs.work / name, text)
    before = found(dirs, group)
    assert "lock.example" not in {one.value.host for one in before.hosts}
    assert [str(one.source) for one in before.untrusted] == [f"{lock}:{line}"]
    assert [str(one.value) for one in named_in(str(lock)) or ()] == ["lock.example"]
    agree(dirs, lock, monkeypatch)
    after = found(dirs, group)
    assert f"{lock}:{line}" in [str(one.source) for one in after.hosts]
    assert after.untrusted == ()


def agree(dirs: UserDirs, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`paddock trust FILE` of this user."""
    monkeypatch.setattr(Origin, "of_process", classmethod(lambda cls: dirs.origin))
    assert trust_command.execute([str(path)]) == 0
    dirs.trusted = TrustedList.read(dirs.origin.state_dir, dirs.origin.uid)


def test_a_host_that_is_added_later_has_to_be_agreed_to_again(
    dirs: UserDirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = dirs.write(dirs.work / "yarn.lock", '  resolved "https://a.example/x"\n')
    agree(dirs, lock, monkeypatch)
    dirs.write(lock, '  resolved "https://a.example/y"\n  resolved "https://evil.example/x"\n')
    registry = found(dirs, "npm")
    assert [str(one.value) for one in registry.hosts] == ["a.example"]
    assert [str(one.value) for one in registry.untrusted] == ["evil.example"]


def test_an_agreement_is_for_one_file(dirs: UserDirs, monkeypatch: pytest.MonkeyPatch) -> None:
    agree(
        dirs,
        dirs.write(dirs.work / "yarn.lock", '  resolved "https://a.example/x"\n'),
        monkeypatch,
    )
    dirs.write(dirs.work / "package-lock.json", '"resolved": "https://a.example/x"\n')
    (dirs.work / "yarn.lock").unlink()
    assert found(dirs, "npm").hosts == ()


def test_the_persons_own_file_counts_only_while_no_command_can_write_it(dirs: UserDirs) -> None:
    dirs.write(dirs.home / ".npmrc", "registry=https://mirror.example/\n")
    assert found(dirs, "npm").hosts
    assert found(dirs, "npm", reach=(str(dirs.home),)).hosts == ()


def test_a_link_into_the_workspace_is_the_workspaces(dirs: UserDirs) -> None:
    planted = dirs.write(dirs.work / "planted", "registry=https://evil.example/\n")
    (dirs.home / ".npmrc").symlink_to(planted)
    assert follow(str(dirs.home / ".npmrc")).end.path == str(planted)
    registry = found(dirs, "npm")
    assert (registry.hosts, len(registry.untrusted)) == ((), 1)


@pytest.mark.parametrize(
    "text",
    [
        "registry=https://169.254.169.254/\n",
        "registry=https://metadata.google.internal/\n",
        "registry=https://0x7f.1/\n",
        "registry=https://*.example/\n",
        "registry=file:///srv/x\n",
        "registry=https://\n",
        "registry=${NOPE}\n",
    ],
)
def test_an_invalid_or_unreachable_host_is_not_found(dirs: UserDirs, text: str) -> None:
    dirs.write(dirs.home / ".npmrc", text)
    assert found(dirs, "npm").hosts == ()


def test_every_file_that_was_read_is_an_input_of_the_plan(dirs: UserDirs) -> None:
    dirs.write(dirs.home / ".npmrc", "registry=https://mirror.example/\n")
    looked = registry_snapshot()
    discover(["npm", "debian"], dirs.origin, WritableHistory(), looked, etc=str(dirs.system))
    assert looked.files[str(dirs.home / ".npmrc")] is not None
    for absent in (
        dirs.work / "package-lock.json",
        dirs.work / ".npmrc",
        dirs.system / "apt/sources.list.d",
    ):
        assert looked.files[str(absent)] is None


def test_a_file_that_cannot_be_read_is_an_error(dirs: UserDirs) -> None:
    os.mkfifo(dirs.work / "yarn.lock")
    with pytest.raises(PolicyError, match="not a regular file, and a package manager reads it"):
        found(dirs, "npm")


@pytest.mark.parametrize(
    "text", ["\n", " ", '"', "[", 'url="\n', "PyPI = PackageIndex(\n"], ids=repr
)
def test_two_megabytes_of_anything_are_read_in_linear_time(dirs: UserDirs, text: str) -> None:
    """A command may write these files, and each start reads them."""
    for name, _ in _FORMATS:
        path = dirs.write(dirs.work / name, text * (2_000_000 // len(text)))
        before = time.process_time()
        assert named_in(str(path)) == ()
        assert time.process_time() - before < 10, name  # quadratic: minutes
    for pattern in (registries._PIP_OWN, registries._PIP_FILES):
        before = time.process_time()
        assert not list(pattern.finditer(text * (2_000_000 // len(text))))
        assert time.process_time() - before < 2, pattern


def test_a_lock_file_with_many_packages_is_read_in_linear_time(dirs: UserDirs) -> None:
    lines = (f'resolved "https://r.example/{number}"\n' for number in range(20_000))
    path = dirs.write(dirs.work / "yarn.lock", "".join(lines))
    before = time.process_time()
    read = found(dirs, "npm")
    assert time.process_time() - before < 4
    assert [str(one.value) for one in read.untrusted] == ["r.example"]
    named = named_in(str(path))
    assert named is not None
    assert len(named) == 20_000
