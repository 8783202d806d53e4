"""``safety.sandbox``: the mode and settings of the executor in a configuration."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paddock.errors import PolicyError, UsageError
from paddock.policy.formats.executor_modes import (
    LinuxSandboxConfig,
    LocalSandboxConfig,
    Mode,
    SandboxConfig,
    WindowsSandboxConfig,
    WslSandboxConfig,
    builtin_distros,
    wsl_profile,
)
from paddock.policy.formats.safety_config import SafetyConfig, read_safety_config
from tests.unit.policy.user_dirs import UserDirs

DIGEST = "ab" * 32


def sandbox(dirs: UserDirs, **values: Any) -> SandboxConfig:
    return read_safety_config(
        json.dumps({"safety": {"sandbox": values}}), "x.json", dirs.origin
    ).sandbox


def test_executor_modes_have_these_defaults(dirs: UserDirs) -> None:
    """A-063, A-163 to A-168"""
    assert sandbox(dirs) == SandboxConfig() == SafetyConfig().sandbox
    config = SandboxConfig()
    assert (config.mode, config.require_enforced, config.local) == (
        Mode.AUTO,
        True,
        LocalSandboxConfig(),
    )
    linux, windows, wsl = config.linux, config.windows, config.wsl
    assert (linux.workspace, linux.max_memory_mb) == (None, 512)
    assert (windows.workspace, windows.max_memory_mb, windows.max_processes) == (None, 512, 10)
    assert windows.use_low_integrity
    assert (wsl.profile, wsl.distro, wsl.shell, wsl.workspace) == (
        None,
        "paddock-sandbox",
        "sh",
        None,
    )
    assert (wsl.pre_install_commands, wsl.packages) == ((), ("python3", "py3-pip"))
    assert wsl.package_install_command == "apk add --no-cache {packages}"
    assert wsl.rootfs_url.startswith(
        "https://dl-cdn.alpinelinux.org/alpine/v3.20/releases/x86_64/alpine-minirootfs-"
    )
    assert (wsl.system_prompt_hint, wsl.automount, wsl.user) == ("", True, None)


def test_configuration_can_be_built_in_python(dirs: UserDirs) -> None:
    """A-118, A-119, A-128, A-129, A-140"""
    made = SafetyConfig(
        sandbox=SandboxConfig(
            mode=Mode("linux"),
            linux=LinuxSandboxConfig(workspace="/w", max_memory_mb=1024),
            windows=WindowsSandboxConfig(
                workspace="C:/ws", max_memory_mb=256, max_processes=5, use_low_integrity=False
            ),
            wsl=WslSandboxConfig(distro="mine", shell="bash", packages=("git",)),
        )
    )
    read = sandbox(
        dirs,
        mode="linux",
        linux={"workspace": "/w", "max_memory_mb": 1024},
        windows={
            "workspace": "C:/ws",
            "max_memory_mb": 256,
            "max_processes": 5,
            "use_low_integrity": False,
        },
        wsl={"distro": "mine", "shell": "bash", "packages": ["git"], "profile": None},
    )
    assert read == made.sandbox


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mode": "x"}, "safety.sandbox.mode: 'x' is not one of auto, local, linux"),
        ({"mod": "auto"}, "unknown key"),
        ({"mode": "linux", "local": {"x": 1}}, r"safety.sandbox.local.x: unknown key"),
        ({"mode": "linux", "windows": {"max_processes": "ten"}}, "expected a whole number"),
        ({"mode": "linux", "windows": {"max_memory_mb": 0}}, "not between"),
        ({"mode": "linux", "wsl": {"packages": "git"}}, "expected a list"),
        ({"linux": []}, "expected a table"),
        ({"wsl": {"packages": ["a; rm -rf /"]}}, "wsl.packages: not the name of a package"),
        ({"wsl": {"packages": ["-y"]}}, "not the name of a package"),
        ({"wsl": {"rootfs_url": "https://x/y"}}, "needs its own rootfs_sha256"),
        ({"wsl": {"rootfs_url": "http://x/y", "rootfs_sha256": DIGEST}}, "only https"),
        ({"wsl": {"rootfs_sha256": "12"}}, "64 hex digits"),
        ({"wsl": {"package_install_command": "apk add"}}, "missing from it"),
        ({"wsl": {"user": "a b"}}, "not a valid user name"),
        ({"wsl": {"profile": "x.json"}}, "neither a path nor one of alpine-base, ubuntu-base"),
        ({"wsl": {"distros": 1}}, "unknown key"),
    ],
)
def test_an_invalid_value_is_refused(dirs: UserDirs, values: dict[str, Any], message: str) -> None:
    """A-086, A-100, A-153, A-156, A-161, A-162: also in a section that is not used."""
    with pytest.raises(PolicyError, match=message):
        sandbox(dirs, **values)


def test_configuration_in_python_is_validated_too() -> None:
    with pytest.raises(UsageError, match="packages"):
        WslSandboxConfig(packages=("$(id)",))
    with pytest.raises(UsageError, match="mode"):
        SandboxConfig(mode="x")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="max_memory_mb"):
        LinuxSandboxConfig(max_memory_mb=0)


@pytest.mark.parametrize(
    ("name", "packages"),
    [("alpine-base", ("python3", "py3-pip")), ("ubuntu-base", ("python3", "python3-pip", "git"))],
)
def test_paddock_has_profiles_for_distributions(
    dirs: UserDirs, name: str, packages: tuple[str, ...]
) -> None:
    """A-154, A-155"""
    assert name in builtin_distros()
    read = wsl_profile(name, dirs.origin)
    assert (read.profile, read.packages) == (name, packages)
    assert read == sandbox(dirs, wsl={"profile": name}).wsl
    if name == "alpine-base":
        assert (read.rootfs_url, read.rootfs_sha256) == (
            WslSandboxConfig().rootfs_url,
            WslSandboxConfig().rootfs_sha256,
        )
    else:
        assert read.pre_install_commands == ("apt-get update -q",)
        assert read.install_line.endswith(
            "apt-get install -y --no-install-recommends python3 python3-pip git"
        )


def test_written_values_win_over_the_profile(dirs: UserDirs) -> None:
    """A-139, A-156"""
    profile = {
        "distro": "mine",
        "shell": "bash",
        "rootfs_url": "https://x/y",
        "rootfs_sha256": DIGEST,
        "pre_install_commands": ["true"],
        "packages": ["git"],
        "package_install_command": "get {packages}",
        "system_prompt_hint": "You are in a distribution.",
    }
    dirs.write(dirs.home / "d.json", json.dumps(profile))
    read = sandbox(dirs, mode="wsl", wsl={"profile": "~/d.json", "packages": ["jq", "gcc"]})
    assert (read.wsl.distro, read.wsl.shell, read.wsl.install_line) == (
        "mine",
        "bash",
        "get jq gcc",
    )
    assert read.system_prompt_hint == "You are in a distribution."
    assert SandboxConfig(mode=Mode.LINUX, wsl=read.wsl).system_prompt_hint == ""
    mirror = {"rootfs_url": "https://mirror/y", "rootfs_sha256": WslSandboxConfig().rootfs_sha256}
    assert sandbox(dirs, wsl=mirror).wsl.rootfs_url == "https://mirror/y"
    with pytest.raises(PolicyError, match="needs its own"):
        sandbox(dirs, wsl={"profile": "~/d.json", "rootfs_url": "https://other/y"})
    for wrong, message in (
        ({"profile": "alpine-base"}, "unknown"),
        ({"shell": 1}, "expected a text"),
        ([], "an object"),
    ):
        dirs.write(dirs.home / "d.json", json.dumps(wrong))
        with pytest.raises(PolicyError, match=message):
            sandbox(dirs, wsl={"profile": "~/d.json"})


def test_a_distribution_is_stored_in_the_users_data_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A-167"""
    monkeypatch.setenv("LOCALAPPDATA", "C:\\Users\\ada\\AppData\\Local")
    kept = WslSandboxConfig(distro="mine").installed_in
    assert kept == r"C:\Users\ada\AppData\Local\paddock\wsl-distros\mine"
    assert WslSandboxConfig(install_path=r"D:\x").installed_in == r"D:\x"
    monkeypatch.delenv("LOCALAPPDATA")
    with pytest.raises(UsageError, match="LOCALAPPDATA"):
        _ = WslSandboxConfig().installed_in
