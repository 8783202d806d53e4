"""The table of system calls that the loader and the core share."""

from __future__ import annotations

from paddock.policy.syscalls import table


def test_numbers_are_unique_per_machine_and_names_sorted() -> None:
    for machine in ("x86_64", "aarch64"):
        numbers = [
            dict(call.numbers)[machine]
            for call in table().values()
            if machine in dict(call.numbers)
        ]
        assert len(numbers) == len(set(numbers)) > 250
    assert list(table()) == sorted(table())


def test_known_numbers_stand_where_the_kernel_has_them() -> None:
    assert dict(table()["execve"].numbers) == {"x86_64": 59, "aarch64": 221}
    assert dict(table()["ptrace"].numbers) == {"x86_64": 101, "aarch64": 117}


def test_a_remark_tells_why_a_name_has_no_effect() -> None:
    assert table()["ptrace"].remark("x86_64") is None
    assert table()["iopl"].remark("x86_64") is None
    assert table()["iopl"].remark("aarch64") == "aarch64 has no iopl"
    assert table()["lookup_dcookie"].remark("x86_64") == "Linux dropped lookup_dcookie in 6.7"
    assert table()["iopl"].remark("riscv64") is None  # a machine the table does not know
