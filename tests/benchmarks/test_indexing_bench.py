"""The benchmark of indexing: each contestant at toy size, and what counts as found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.indexing.benchmark import RECALL, SPEED, IndexingSize, measure, recall
from benchmarks.indexing.contestants import CONTESTANTS, ONNX, Contestant
from benchmarks.indexing.corpus import answered_questions, chunks_of
from benchmarks.registry import BenchmarkOptions

TOY = IndexingSize(chunks=2, rounds=1, questions=2)


def missing(folder: Path) -> object:
    raise ImportError("no such package")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with two paragraphs and three questions in the form of XQuAD."""
    folder = tmp_path / "squad_xquad_en"
    folder.mkdir()
    document = {
        "doc_id": "d",
        "title": "t",
        "paragraphs": ["Cats purr when they rest.", "Ice melts at 0 °C."],
    }
    asked = [("When do cats purr?", 0), ("At what temperature does ice melt?", 1), ("Who purrs?", 0)]
    rows = [{"doc_id": "d", "paragraph": place, "question": question} for question, place in asked]
    (folder / "documents.jsonl").write_text(json.dumps(document) + "\n")
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "notes.txt").write_text("Cats purr. " * 400)
    return tmp_path


@pytest.mark.long
def test_contestants_take_turns_and_find_the_paragraphs(data: Path) -> None:
    absent = Contestant("absent", missing, "")  # type: ignore[arg-type]
    report = measure(TOY, BenchmarkOptions(data=data), (*CONTESTANTS[:3:2], absent))
    speeds, recalls = report.table(SPEED), report.table(RECALL)
    assert list(speeds) == list(recalls) == ["stretto", "stretto, float32"]
    for row in speeds.values():
        assert isinstance(row.values["memory_mib"], int)
        assert row.values["memory_mib"] > 50
    assert [row.values["first_1"] for row in recalls.values()] == [100.0, 100.0]
    assert any("left out: absent (no such package" in note for note in report.notes)
    assert {goal.name for goal in report.goals} >= {"points that the first 10 differ from float32's"}


def test_the_onnx_peer_computes_the_same_model(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    texts = ["Cats purr when they rest.", "Ice melts at 0 °C.", "A kitten purrs. " * 20]
    exact, quantised = (
        next(one for one in CONTESTANTS if one.name == name).load(tmp_path)(texts)
        for name in ("stretto, float32", ONNX)
    )
    assert (exact * quantised).sum(axis=1).min() > 0.85


def test_chunks_and_questions_come_from_the_folder(data: Path) -> None:
    _, chunks = chunks_of(data, 3)
    assert len(chunks) == 3
    assert all("purr" in chunk for chunk in chunks)
    asked = answered_questions(data, 2)
    assert asked is not None
    assert asked.questions == ("When do cats purr?", "At what temperature does ice melt?")
    assert asked.gold == (0, 1)
    assert answered_questions(None, 2) is None


def test_recall_is_the_share_of_questions_with_their_paragraph_among_the_first() -> None:
    paragraphs = np.eye(12, dtype=np.float32)
    questions = np.zeros((2, 12), dtype=np.float32)
    questions[0, 3] = 1.0  # its own is the first hit
    questions[1] = np.arange(12)  # its own is the sixth
    assert recall(questions, paragraphs, [3, 6]) == {1: 0.5, 5: 0.5, 10: 1.0}
