"""The benchmark of answers: its scores, its sets, and a run at toy size that goes on where it ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks.answers import asking
from benchmarks.answers.benchmark import BASELINE, QUALITY, AnswersSize, best_sentences, measure
from benchmarks.answers.questions import Asked, read_sets
from benchmarks.answers.scores import contains, token_f1
from benchmarks.registry import BenchmarkOptions
from stretto.model.errors import UserError

pytest_plugins = ("support.llm_fixtures",)

MILLS = [
    ("Hale built the old mill in 1831.", "When was the old mill built?", "1831"),
    ("The new mill burned down in May.", "When did the new mill burn down?", "May"),
    ("Ann Reed owns the red mill.", "Who owns the red mill?", "Ann Reed"),
    ("The white mill stands on the Avon.", "Where does the white mill stand?", "on the Avon"),
]
COUNTS = {"xquad": 4, "tatqa": 2, "long": 0}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with two sets: an article of four paragraphs, and two reports with tables."""
    articles = [{"doc_id": "mills", "paragraphs": [text for text, _, _ in MILLS]}]
    asked = [{"doc_id": "mills", "question": question, "answer": answer} for _, question, answer in MILLS]
    reports = [
        {"doc_id": f"r{year}", "table": [["", f"{year}"], ["Sales", "$4"]], "paragraphs": [f"In {year}."]}
        for year in (2017, 2018)
    ]
    sales = [
        {"doc_id": one["doc_id"], "question": f"What were sales in {one['doc_id']}?", "answer": ["$4"]}
        for one in reports
    ]
    rows: dict[str, Sequence[Mapping[str, object]]] = {
        "squad_xquad_en/documents": articles,
        "squad_xquad_en/questions": asked,
        "tatqa/documents": reports,
        "tatqa/questions": [{**one, "answer_type": "span"} for one in sales],
    }
    for name, lines in rows.items():
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "known", "is_in", "f1"),
    [
        ("It was the 4 spaces.", ["4 spaces"], True, 2 * 2 / (4 + 2)),
        ("14 spaces", ["4 spaces"], False, 0.5),
        ("“Named Expressions”!", ["named expressions"], True, 1.0),
        ("one and three", ["three", "one"], True, 4 / 5),
        ("one", ["three", "one"], False, 2 / 3),
        ("", ["one"], False, 0.0),
    ],
)
def test_scores(text: str, known: list[str], is_in: bool, f1: float) -> None:
    assert contains(text, known) is is_in
    assert token_f1(text, known) == pytest.approx(f1)


def test_halves_share_no_question_and_are_drawn_alike(data: Path) -> None:
    one, other = (read_sets(data, COUNTS, half, 0).questions for half in ("chosen on", "reported"))
    assert len({*one, *other}) == len(one) + len(other) == 6
    assert read_sets(data, COUNTS, "reported", 0).questions == other


def test_halves_share_no_question_whatever_is_drawn_of_them(data: Path) -> None:
    """Prompts were once tried out on a smaller draw, with questions of the half that was reported."""
    drawn: dict[str, set[Asked]] = {"chosen on": set(), "reported": set()}
    for seed in range(5):
        for count in (2, 4):
            for half in ("chosen on", "reported"):
                counts = {"xquad": count, "tatqa": 2, "long": 0}
                drawn[half] |= {*read_sets(data, counts, half, seed).questions}
    assert len(drawn["chosen on"]) == len(drawn["reported"]) == 3
    assert not drawn["chosen on"] & drawn["reported"]


def test_the_baseline_answers_with_a_sentence_of_the_right_documents(data: Path) -> None:
    sets = read_sets(data, COUNTS, "reported", 0)
    found = best_sentences(sets)
    assert [contains(a.text, q.known) for q, a in zip(sets.questions, found, strict=True)] == [True] * 3
    assert [answer.source for answer in found] == [one.source for one in sets.questions]


def test_a_run_goes_on_where_it_ended(
    data: Path, tiny_chat_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = AnswersSize(COUNTS, ("naive", "search"))
    options = BenchmarkOptions(data=data, checkpoint=tiny_chat_checkpoint, cells=tmp_path / "cells")
    first = measure(size, options)
    assert {row.name for row in first.rows} == {
        f"{name}, {of}" for name in (BASELINE, "naive", "search") for of in ("all", "xquad", "tatqa")
    }
    assert first.table(QUALITY)["naive, all"].values["questions"] == 3
    (kept,) = (tmp_path / "cells").glob("naive-*.jsonl")
    kept.write_text(kept.read_text()[:-5])  # the end of the last line is lost
    again = measure(size, options)
    assert again.rows == first.rows
    monkeypatch.delattr(asking, "Runtime")
    assert measure(size, options).rows == first.rows


def test_a_folder_without_the_sets_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"squad_xquad_en/\w+\.jsonl: No such file"):
        read_sets(tmp_path, COUNTS, "reported", 0)
    with pytest.raises(UserError, match="needs --data DIR"):
        read_sets(None, COUNTS, "reported", 0)
