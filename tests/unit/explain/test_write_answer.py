"""The plans whose names init judges. tests/system/files/test_why_against_kernel.py compares the
answers of the core with init.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from paddock.explain.write_answer import are_judged
from paddock.plan import compile_plan
from paddock.policy.model import Access, Switch
from tests.unit.plan.plan_inputs import FULL, HOST, builtin, files, grant, policy


def test_names_are_judged_only_with_seccomp(tmp_path: Path) -> None:
    work = grant(Access.ALLOW, f"{tmp_path}/**", workspace=True)
    asked = policy(files(work, denies=(builtin("**/.env", optional=True),)))
    plan = compile_plan(asked, replace(HOST, cwd=str(tmp_path)))
    assert are_judged(plan)
    assert are_judged(compile_plan(asked, replace(FULL, cwd=str(tmp_path))))
    assert not are_judged(compile_plan(replace(asked, off=(Switch.SECCOMP,)), HOST))
    assert not are_judged(compile_plan(policy(files(grant(Access.READ, "/usr/**"))), HOST))
