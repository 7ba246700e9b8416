"""The benchmark of the prefix guard: all planted faults are found, and none in clean programs."""

from __future__ import annotations

import pytest

from benchmarks.prefix.benchmark import CLEAN, COSTS, FOUND, RESTORED, PrefixSize, checked, measure
from benchmarks.prefix.clean import clean_programs
from benchmarks.prefix.faulty import planted_faults
from benchmarks.prefix.sessions import calls_of
from benchmarks.prefix.texts import some_texts
from benchmarks.registry import BenchmarkOptions

TEXTS = some_texts(None)


@pytest.mark.parametrize("name", planted_faults())
def test_a_planted_fault_is_found(name: str) -> None:
    planted = planted_faults()[name]
    check = checked(calls_of(planted.build, TEXTS, f"test {name}"))
    assert any(fault.rule in planted.rules for _, fault in check.faults())


@pytest.mark.parametrize("name", clean_programs())
def test_a_clean_program_has_no_fault(name: str) -> None:
    check = checked(calls_of(clean_programs()[name], TEXTS, f"test {name}"))
    assert [(fault.rule, fault.last) for _, fault in check.faults()] == []


@pytest.mark.long
def test_the_tables_at_toy_size() -> None:
    report = measure(PrefixSize(seeds=1, num_prompts=60, repeats=1), BenchmarkOptions())
    assert {row.table for row in report.rows} == {FOUND, CLEAN, RESTORED, COSTS}
    assert len(report.table(FOUND)) == 24
    assert len(report.table(CLEAN)) == 60
    assert all(goal.met for goal in report.goals if "time" not in goal.name)
