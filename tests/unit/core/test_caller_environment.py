from __future__ import annotations

import subprocess
import sys

import pytest

SHOW = (
    "import os; from paddock.core import caller_environment; "
    "before = os.environ.get('LC_CTYPE'); caller_environment.restore(); "
    "print(before, os.environ.get('LC_CTYPE'), os.environ.get('OTHER'))"
)


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({}, "C.UTF-8 None None"),
        ({"LC_CTYPE": "C"}, "C.UTF-8 C None"),
        ({"LC_CTYPE": "C.UTF-8"}, "C.UTF-8 C.UTF-8 None"),
        ({"LC_ALL": "C", "OTHER": "x"}, "None None x"),
    ],
)
def test_the_locale_that_python_sets_itself_is_taken_back(given: dict[str, str], seen: str) -> None:
    """Python sets LC_CTYPE in the C locale (PEP 538). The command gets the value of the caller."""
    run = subprocess.run([sys.executable, "-c", SHOW], env=given, capture_output=True, text=True)
    assert run.stdout == f"{seen}\n", run.stderr
