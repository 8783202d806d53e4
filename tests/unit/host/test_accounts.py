"""Users and subordinate ids of this machine."""

from __future__ import annotations

import os
import pwd

import pytest

from paddock.errors import PolicyError
from paddock.host.accounts import IdSpan, look_up, spans_of

SUBUID = """\
ada:100000:65536
bob:165536:65536
1000:300000:10

# ada:1:1
ada:x:65536
ada:5
ada:400000:0
ada:4294967295:2
"""


def test_subordinate_numbers_are_those_of_the_name_or_the_number() -> None:
    assert list(spans_of(SUBUID, 1000, "ada")) == [
        IdSpan(first=100000, count=65536),
        IdSpan(first=300000, count=10),
    ]
    assert list(spans_of(SUBUID, 7, "eve")) == []


def test_a_user_is_looked_up_on_this_machine() -> None:
    """C-126"""
    entry = pwd.getpwuid(os.getuid())
    found = look_up(entry.pw_name, where="-U", uid=os.getuid(), user=entry.pw_name)
    assert (found.service.uid, found.service.gid) == (entry.pw_uid, entry.pw_gid)
    assert found.caller_gid not in found.caller_groups


def test_an_unknown_user_is_an_error_with_its_place() -> None:
    """C-126"""
    with pytest.raises(PolicyError, match=r"^c\.conf:3: this machine has no user 'no-such-user'"):
        look_up("no-such-user", where="c.conf:3", uid=0, user="root")
