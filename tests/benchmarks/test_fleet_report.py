"""The whole benchmark `bench fleet` at toy size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.fleet_corpus import small_corpus

from benchmarks.fleet import tables
from benchmarks.fleet.benchmark import FleetSize, measure
from benchmarks.fleet.layout import Layout
from benchmarks.registry import BenchmarkOptions
from stretto.model.errors import ConfigError

SIZE = FleetSize(
    apps=("naive",),
    layout=Layout(num_llms=2, max_sequences=4),
    num_queries=(3,),
    num_idle=1,
    shares=(0.5,),
    seeds=1,
    speed=4.0,
    idle_speed=4.0,
    capacity_queries=4,
    won_queries=(3,),
    ablation_apps=(),
)


def write_xquad(folder: Path) -> None:
    """Write made-up documents and questions in the form of XQuAD's folder."""
    corpus = small_corpus()
    (folder / "squad_xquad_en").mkdir()
    documents = [
        {"doc_id": source, "title": source, "paragraphs": [passage.text for passage in document.passages]}
        for source, document in corpus.documents.items()
    ]
    questions = [{"question": question, "doc_id": source} for question, source in corpus.questions]
    for name, rows in (("documents", documents), ("questions", questions)):
        lines = [json.dumps(row) + "\n" for row in rows]
        (folder / "squad_xquad_en" / f"{name}.jsonl").write_text("".join(lines), "utf-8")


def test_it_wants_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--data"):
        measure(SIZE, BenchmarkOptions(cells=tmp_path))


@pytest.mark.long
def test_all_tables_are_made(tmp_path: Path) -> None:
    for package in ("uvloop", "openai"):
        pytest.importorskip(package)
    write_xquad(tmp_path)
    report = measure(SIZE, BenchmarkOptions(data=tmp_path, cells=tmp_path / "cells"))
    assert list(report.table(tables.MEANS)) == ["naive, idle", "naive, 50 %"]
    assert list(report.table(tables.WON)) == ["naive, idle", "naive, 50 %"]
    assert "without pipeline_decode" in report.table(tables.ABLATION)
    assert [goal.met for goal in report.goals[:2]] == [True, True]
