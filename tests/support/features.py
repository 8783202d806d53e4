"""Skips that cannot hide a failure.

A machine that lacks a feature skips with its reason. A machine that claims the feature in
``PADDOCK_EXPECT`` (``PADDOCK_EXPECT=root,landlock,seccomp,tmux,strace,node``; continuous
integration does) fails instead.
"""

from __future__ import annotations

import os
import shutil

import pytest


def expected() -> frozenset[str]:
    return frozenset(filter(None, os.environ.get("PADDOCK_EXPECT", "").split(",")))


def need(feature: str, present: bool, reason: str) -> None:
    if present:
        return
    if feature in expected():
        pytest.fail(f"this machine is expected to have {feature}: {reason}")
    pytest.skip(f"{feature}: {reason}")


def need_program(name: str) -> str:
    path = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin")
    need(name, path is not None, f"no {name} on this machine")
    return str(path)


def need_root() -> None:
    need("root", os.getuid() == 0, "the tests were not started by root")
