"""Any file content gives a Policy or a PolicyError."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from paddock.errors import PolicyError
from paddock.policy.formats.checked_values import Values
from paddock.policy.formats.conf import read_conf
from paddock.policy.formats.expand import Expander
from paddock.policy.formats.toml import read_toml
from paddock.policy.glob import Glob
from paddock.policy.model import Source
from paddock.policy.render import to_toml
from paddock.policy.trust.file_trust import decode
from paddock.policy.trust.origin import BUILTIN_DIR
from tests.unit.policy.formats.test_conf import EVERY_DIRECTIVE
from tests.unit.policy.user_dirs import UserDirs

EXAMPLES = Path(__file__).parents[3] / "examples"
SEEDS = [
    *((path.name, path.read_bytes()) for path in sorted(EXAMPLES.iterdir())),
    ("ai-agent.toml", Path(BUILTIN_DIR, "ai-agent.toml").read_bytes()),
    ("strict.toml", Path(BUILTIN_DIR, "strict.toml").read_bytes()),
    ("every.conf", EVERY_DIRECTIVE.encode()),
]
SPLINTERS = [
    *(bytes([letter]) for letter in b"[]{}=.,\"'\\#\n\0\xff*?$~/(\x85\x0c"),
    *(
        b"[[",
        b"]]",
        b'"""',
        b"'''",
        b"\r\n",
        b"\xef\xbb\xbf",
        b"\xf0\x9f\x90\x8e",
        b"\xe2\x80\xa8",
        b"\x1b[2K",
    ),
    *(b"..", b"**", b"${", b"$$", b"$HOME", b"<cwd>", b"<tmp>", b"//", b" " * 50),
    *(b"-1", b"1e9", b"nan", b"inf", b"true", b"9" * 30, b"1979-05-27", b"07:32:00"),
    *(
        b"\\u0000",
        b"\\ud800",
        b"\\U0010ffff",
        b"(?=",
        b"\\1",
        b"inherit",
        b"version",
        b"off",
        b"on",
    ),
]


def mutate(dice: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(out) + 1)
        match dice.randrange(6):
            case 0:
                out[at:at] = dice.choice(SPLINTERS)
            case 1:
                del out[at : at + dice.randint(1, 12)]
            case 2:
                out[at : at + 1] = bytes([dice.randrange(256)])
            case 3:
                out[at : at + dice.randint(1, 6)] = dice.choice(SPLINTERS)
            case 4:
                other = dice.randrange(len(out) + 1)
                out[at:at] = out[other : other + dice.randint(1, 60)]
            case _:
                del out[at:]
    return bytes(out)


@pytest.mark.parametrize(("name", "data"), SEEDS, ids=[name for name, _ in SEEDS])
def test_a_damaged_file_gives_a_policy_or_a_policy_error(
    dirs: UserDirs, name: str, data: bytes
) -> None:
    dice = random.Random(name)
    read = read_conf if name.endswith(".conf") else read_toml
    reported: list[str] = []
    for _ in range(400):
        damaged = mutate(dice, data)
        try:
            fragment = read(decode(damaged, "f"), "f", dirs.origin)
        except PolicyError as error:
            reported.append(error.message)
        else:
            to_toml(fragment.policy)
    assert len(reported) > 40
    assert [
        message for message in reported if not message.startswith("f") or "\x1b" in message
    ] == []


def test_noise_gives_a_policy_or_a_policy_error(dirs: UserDirs) -> None:
    dice = random.Random(99)
    reported: list[str] = []
    for _ in range(1500):
        noise = b"".join(dice.choice(SPLINTERS) for _ in range(dice.randint(0, 12)))
        for read in (read_conf, read_toml):
            try:
                read(decode(noise, "f"), "f", dirs.origin)
            except PolicyError as error:
                reported.append(error.message)
    assert [message for message in reported if not message.startswith("f")] == []


def test_an_accepted_pattern_is_absolute_and_has_no_parent_steps(dirs: UserDirs) -> None:
    dice = random.Random(5)
    pieces = [
        "/",
        "a",
        "..",
        ".",
        "*",
        "**",
        "?",
        "$HOME",
        "${X}",
        "~",
        "<cwd>",
        "<tmp>",
        "$$",
        " ",
        "\n",
        "\udcff",
    ]
    dirs.environ["X"] = "/x/../y"
    values, source = Values(Expander(dirs.origin)), Source(file="f", line=1, key="k")
    accepted = 0
    for _ in range(5000):
        written = "".join(dice.choice(pieces) for _ in range(dice.randint(0, 6)))
        try:
            glob = values.pattern(written, source)
        except PolicyError:
            continue
        accepted += 1
        assert glob.text.startswith(("/", "<tmp>", "**/")), written
        assert ".." not in glob.text.split("/"), written
        assert Glob.parse(glob.text) == glob
    assert accepted > 200
