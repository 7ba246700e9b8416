"""The README has a row for every benchmark, and every folder with a benchmark is in the registry."""

from __future__ import annotations

from pathlib import Path

import benchmarks
from benchmarks.registry import BENCHMARKS

FOLDER = Path(benchmarks.__file__).parent


def test_every_benchmark_has_a_question_a_command_and_a_table() -> None:
    lines = (FOLDER / "README.md").read_text("utf-8").splitlines()
    rows = [line.split("|")[1:-1] for line in lines if line.startswith("| ")]
    assert {len(row) for row in rows} == {4}
    for name in BENCHMARKS:
        (row,) = (row for row in rows if f"`stretto bench {name}" in row[1])
        assert row[0].strip().endswith("?")
        assert row[2].count('"') >= 2


def test_every_folder_with_a_benchmark_is_registered() -> None:
    folders = {path.parent.name for path in FOLDER.glob("*/benchmark.py")}
    assert folders == set(BENCHMARKS)
    for name, benchmark in BENCHMARKS.items():
        assert benchmark.module == f"benchmarks.{name}.benchmark"
