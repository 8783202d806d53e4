"""The observer judges the calls that the core saw. It leaves out calls that fail without the
sandbox too.
"""

from __future__ import annotations

import json
import os
import random
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from paddock.errors import CoreError
from paddock.explain.file_rules import Judge
from paddock.explain.observer import ObservedCall, read, refusal, serve
from paddock.explain.read_plan import plan_of
from paddock.host.facts import Host
from paddock.plan import compile_plan
from paddock.policy.model import Access
from tests.unit.plan import plan_inputs
from tests.unit.plan.plan_inputs import HOST, files, grant, policy

SCHEMA = Path(__file__).parents[3] / "schema"
# The core judges the writes of these plans, as the user of the test.
LANDLOCK = replace(HOST, uid=os.getuid())
FULL = replace(plan_inputs.FULL, uid=os.getuid())
EXAMPLES = json.loads((SCHEMA / "examples" / "companion.json").read_text())


@pytest.fixture(name="judge", params=[LANDLOCK, FULL])
def _judge(request: pytest.FixtureRequest, tmp_path: Path) -> Judge:
    for name in ("open/file", "shut/file", "shut/$(id)", "shut/*", "shut/a*/file"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    asked = files(grant(Access.ALLOW, f"{tmp_path}/open/**"))
    return Judge(compile_plan(policy(asked), replace(request.param, cwd=str(tmp_path))))


@pytest.mark.parametrize(
    ("op", "create", "name", "expected"),
    [
        ("read", False, "open/file", None),
        ("update", False, "open/file", None),
        ("update", True, "open/new", None),
        ("read", False, "shut/file", ("read", "--read {}/shut/file")),
        ("read", False, "shut/none", None),
        ("write", False, "shut/none", None),
        ("write", True, "shut/new", ("write", "--allow '{}/shut/**'")),
        ("write", True, "shut/none/new", None),
        ("update", False, "shut/file", ("read", "--read {}/shut/file")),
        ("make", False, "shut/new", ("make", "--allow '{}/shut/**'")),
        ("make", False, "shut/file", None),
        ("make", False, "none/new", None),
        ("remove", False, "shut/file", ("remove", "--allow '{}/shut/**'")),
        ("remove", False, "shut/none", None),
        ("replace", False, "shut/file", ("remove", "--allow '{}/shut/**'")),
        ("replace", False, "shut/new", ("make", "--allow '{}/shut/**'")),
        ("read", False, "shut/$(id)", ("read", "--read '{}/shut/$$(id)'")),
        ("read", False, "shut/*", ("read", None)),
        ("remove", False, "shut/a*/file", ("remove", None)),
        ("exec", False, "shut/file", ("exec", "--exec {}/shut/file")),
    ],
)
def test_only_denials_of_the_sandbox_are_reported(
    judge: Judge,
    tmp_path: Path,
    op: str,
    create: bool,
    name: str,
    expected: tuple[str, str | None] | None,
) -> None:
    reported = refusal(
        judge,
        ObservedCall(op=op, create=create, path=f"{tmp_path}/{name}", program="/p"),
        home="/home/ada",
    )
    wanted = expected and (expected[0], expected[1] and expected[1].format(tmp_path))
    assert (reported and (reported.op, reported.allow)) == wanted


def test_a_name_that_init_refuses_is_not_reported_twice(tmp_path: Path) -> None:
    (tmp_path / ".envrc").write_text("")
    asked = policy(files(grant(Access.ALLOW, f"{tmp_path}/**", workspace=True)))

    def reports(host: Host) -> list[bool]:
        judge = Judge(compile_plan(asked, replace(host, cwd=str(tmp_path))))
        calls = [
            ObservedCall(op=op, create=False, path=f"{tmp_path}/.envrc", program="/p")
            for op in ("write", "change", "remove")
        ]
        return [refusal(judge, call, home="/home/ada") is not None for call in calls]

    assert reports(LANDLOCK) == [False, False, False]
    assert reports(FULL) == [True, True, True], "mounts refuse it silently"


def test_a_change_of_metadata_is_reported_with_the_flag(judge: Judge, tmp_path: Path) -> None:
    for name, allow in (("open/file", None), ("shut/file", f"--allow {tmp_path}/shut/file")):
        reported = refusal(
            judge,
            ObservedCall(op="change", create=False, path=f"{tmp_path}/{name}", program="/p"),
            home="/home/ada",
        )
        assert (reported and reported.allow) == allow


def test_no_hint_opens_the_whole_home(judge: Judge, tmp_path: Path) -> None:
    for home in (tmp_path / "shut", tmp_path / "shut" / "ada"):
        reported = refusal(
            judge,
            ObservedCall(op="make", create=False, path=f"{tmp_path}/shut/x", program="/p"),
            home=str(home),
        )
        assert reported
        assert reported.allow is None


def test_names_of_descriptors_are_the_callers_own(judge: Judge) -> None:
    for path in ("/proc/self/fd/3", "/dev/fd/3", "/dev/stdin"):
        assert (
            refusal(
                judge, ObservedCall(op="write", create=False, path=path, program="/p"), home="/h"
            )
            is None
        )


def test_the_messages_are_those_of_the_examples(judge: Judge, tmp_path: Path) -> None:
    first, second = [read(json.dumps(one).encode()) for one in EXAMPLES["to_observer"]]
    assert first == ObservedCall(
        op="read", create=False, path="/home/ada/.ssh/id_rsa", program="/usr/bin/cat"
    )
    assert second.path == "/w/café/\udcff"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for path in ("open/file", "shut/file"):
            reported = {
                "op": "read",
                "create": False,
                "path": f"{tmp_path}/{path}",
                "program": "/p",
            }
            ours.send(json.dumps({"observed": reported}).encode())
        ours.shutdown(socket.SHUT_WR)
        serve(theirs, judge, "/home/ada")
        refused, judged = (json.loads(ours.recv(65536)) for _ in range(2))
    assert refused["refused"].keys() == EXAMPLES["from_observer"][0]["refused"].keys()
    assert judged == {"judged": 2}


def test_an_invalid_observer_message_is_refused() -> None:
    dice = random.Random(7)
    seeds = [json.dumps(one).encode() for one in EXAMPLES["to_observer"]]
    for datagram in (
        b"x",
        b"[]",
        b"7",
        b"{}",
        b'{"observed":7}',
        b'{"observed":{}}',
        b'{"observed":{"path":1}}',
    ):
        with pytest.raises(CoreError):
            read(datagram)
    for _ in range(2000):
        mutated = bytearray(dice.choice(seeds))
        for _ in range(dice.randrange(1, 5)):
            mutated[dice.randrange(len(mutated))] = dice.randrange(256)
        try:
            assert isinstance(read(bytes(mutated)), ObservedCall)
        except CoreError:
            continue


@pytest.mark.parametrize("name", ["plan.json", "plan-landlock.json", "plan-container.json"])
def test_a_plan_comes_back_from_its_json(name: str) -> None:
    written = json.loads((SCHEMA / "examples" / name).read_text())
    assert plan_of(json.dumps(written).encode()).as_json() == written
