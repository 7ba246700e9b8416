"""The comparison of passes on a server, against a small server that answers by rule."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.openai_stub import OpenAIStub, Reply

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from benchmarks.registry import BenchmarkOptions, run
from benchmarks.vllm.benchmark import BASE, VARIANTS, AnsweredQuestion, compare, differing, goals_of, rows_of
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.model.deployment import deploy
from stretto.model.values import Document, Section

DOCUMENTS = [Document(f"{n}.txt", (Section(f"A fugue has {n} voices. " * 40),), "") for n in range(3)]
QUESTIONS = [f"How many voices has fugue {n}?" for n in range(4)]


def answer(body: Mapping[str, Any]) -> Reply:
    if "JSON" in str(body["prompt"]):
        return Reply(('["voices', '", "fugue"', ', "answer"]'))
    return Reply((f"There are {len(str(body['prompt']))}", " voices."))


def asked(breaks: bool = False) -> dict[str, list[AnsweredQuestion]]:
    """Return an answer to every question; with `breaks`, the last one's list of queries is cut off."""

    def answer_or_break(body: Mapping[str, Any]) -> Reply:
        is_broken = breaks and "JSON" in str(body["prompt"]) and QUESTIONS[-1] in str(body["prompt"])
        return Reply(('["voic',)) if is_broken else answer(body)

    async def run_all() -> tuple[dict[str, list[AnsweredQuestion]], int]:
        async with OpenAIStub(answer_or_break) as stub:
            engines = [
                deploy(name, FakeBatch, FakeBatchConfig(), runs_in="loop")
                for name in ("chunking", "embedding", "vectors", "reranking")
            ]
            llm = deploy(
                "llm",
                OpenAIServer,
                OpenAIServerConfig(stub.url, api="completions", tokenizer="none"),
                contract="llm",
                runs_in="loop",
            )
            return await compare([*engines, llm], DOCUMENTS, QUESTIONS, BenchmarkOptions(), "float32")

    found, num_left_out = asyncio.run(run_all())
    assert num_left_out == int(breaks)
    return found


def test_every_choice_of_passes_answers_every_question_alike() -> None:
    runs = asked()
    assert tuple(runs) == VARIANTS
    assert {len(each) for each in runs.values()} == {len(QUESTIONS) - 2}
    rows = {row.name: row.values for row in rows_of("float32", runs)}
    for variant in VARIANTS:
        assert rows[variant]["equal"] == "2 of 2"
        assert len(runs[variant][0].first_token_s) <= 3  # those that were streamed
    assert rows["none"]["warmed"] == rows[BASE]["warmed"] == 0
    assert rows["none"]["speed_up"] == 1


def test_a_question_without_a_list_of_queries_is_left_out() -> None:
    assert {len(each) for each in asked(breaks=True).values()} == {len(QUESTIONS) - 3}


def test_texts_that_differ_are_counted() -> None:
    runs = asked()
    assert not differing("float32", runs)
    first, second = runs["all"]
    runs["all"] = [first, replace(second, answer="x")]
    rows = {row.name: row.values for row in rows_of("float32", runs)}
    assert rows["all"]["equal"] == "1 of 2"
    (share,) = [goal for goal in goals_of({"float32": runs}) if "equal" in goal.name]
    assert share.value == pytest.approx(13 / 14)
    assert not share.met
    (note,) = differing("float32", runs)
    assert second.question in note


def test_only_streamed_answers_have_a_first_token() -> None:
    whole = AnsweredQuestion("q", 1.0, "a", (), (), 10, 0, 0)
    streamed = replace(whole, first_token_s=(0.25,))
    (row,) = rows_of("float32", {"none": [whole, streamed]})
    assert row.values["first_token_ms"] == 250
    (row,) = rows_of("float32", {"none": [whole]})
    assert row.values["first_token_ms"] == "not streamed"


def test_without_vllm_it_is_left_out(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STRETTO_VLLM_PYTHON", raising=False)
    report = run("vllm")
    assert report.rows == ()
    assert "not installed" in report.notes[0]
