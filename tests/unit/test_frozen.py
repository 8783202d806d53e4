"""The fast ``dataclass`` behaves like the standard one."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from dataclasses import field
from typing import Any

import pytest

from paddock.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    name: str
    size: int = 3
    parts: list[str] = field(default_factory=list)
    note: str = field(default="", compare=False)

    @property
    def doubled(self) -> int:
        return self.size * 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    name: str
    size: int = 3
    parts: list[str] = field(default_factory=list)
    note: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Checked:
    low: int
    high: int = 9

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(self.low)


def test_defaults_and_arguments_are_as_in_the_standard_class() -> None:
    values: dict[str, Any] = {"name": "a", "size": 5}
    assert dataclasses.asdict(Named(**values)) == dataclasses.asdict(Standard(**values))
    assert Named(name="a").parts is not Named(name="a").parts
    assert (Checked(1), Checked(1, 2), Checked(1, high=2)) == (
        Checked(low=1, high=9),
        Checked(low=1, high=2),
        Checked(low=1, high=2),
    )
    assert repr(Named(name="a")) == repr(Standard(name="a")).replace("Standard", "Named")


@pytest.mark.parametrize("kind", [Named, Standard])
@pytest.mark.parametrize(
    ("arguments", "values"),
    [((), {}), (("a",), {}), ((), {"name": "a", "other": 1}), ((), {"size": 1, "other": 1})],
)
def test_wrong_arguments_are_refused(
    kind: Any, arguments: tuple[str, ...], values: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        kind(*arguments, **values)


@pytest.mark.parametrize(("arguments", "values"), [((1, 2, 3), {}), ((1,), {"low": 1}), ((), {})])
def test_wrong_positions_are_refused(arguments: Any, values: Any) -> None:
    with pytest.raises(TypeError):
        Checked(*arguments, **values)


def test_the_check_of_a_class_runs() -> None:
    with pytest.raises(ValueError, match="5"):
        Checked(5, 4)


def test_equal_values_are_equal_and_have_one_hash() -> None:
    assert Named(name="a", note="x") == Named(name="a")
    assert Named(name="a") != Named(name="b")
    other: object = Standard(name="a")
    assert Named(name="a") != other
    assert len({Checked(1), Checked(1), Checked(2)}) == 2


@pytest.mark.parametrize("kind", [Named, Standard])
def test_an_instance_can_not_be_changed(kind: Any) -> None:
    made = kind(name="a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.name = "b"
    with pytest.raises(dataclasses.FrozenInstanceError):
        del made.name
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
        made.unknown = 1
    assert not hasattr(made, "__dict__")


def test_the_functions_of_the_standard_library_work() -> None:
    assert dataclasses.replace(Named(name="a"), size=4) == Named(name="a", size=4)
    assert [one.name for one in dataclasses.fields(Named)] == ["name", "size", "parts", "note"]
    for made in (Named(name="a", parts=["b"]), Checked(1)):
        assert copy.deepcopy(made) == made
        assert pickle.loads(pickle.dumps(made)) == made


def test_a_start_defines_no_class_by_the_slow_decorator() -> None:
    """Three classes can be changed, and two are public: these need the standard decorator."""
    program = (
        "import dataclasses\nslow = []\nstandard = dataclasses._process_class\n"
        "def counted(cls, init, *rest):\n    slow.extend([cls.__qualname__] * init)\n"
        "    return standard(cls, init, *rest)\n"
        "dataclasses._process_class = counted\nimport paddock.cli.run\nprint(*slow)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert len(said.stdout.split()) == 5, said
