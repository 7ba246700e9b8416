import json
from pathlib import Path

import pytest

from benchmarks.common.virtual_engines import LengthLLM, Lengths, inputs, question
from benchmarks.passes.benchmark import PassesSize, measure
from benchmarks.passes.real import BUSY, REAL, RealConfig
from benchmarks.passes.virtual import ABLATION, END_TO_END, PAPER, POLICIES_ONE, Setting, end_to_end_s
from benchmarks.registry import BenchmarkOptions
from stretto.costs.mean_output import num_tokens
from stretto.graph.passes.pipeline import PASSES
from stretto.model.tasks import Decode, Done, LLMTask
from stretto.model.values import Segment
from stretto.sched.orders import ORDERS

VIRTUAL = PassesSize(num_chunks=140, num_queries=2, seeds=1, real=None)


@pytest.mark.long
def test_the_virtual_part_has_every_table_and_keeps_its_bounds() -> None:
    report = measure(VIRTUAL, BenchmarkOptions())
    rows = report.table(END_TO_END)
    assert rows[PAPER].origin == "quoted"
    for row in rows.values():
        if row.name != PAPER:
            assert row.origin == "simulated"
            found = {name: value for name, value in row.values.items() if isinstance(value, int | float)}
            assert found["bound_s"] <= found["all_s"] <= found["none_s"] + 0.05
    assert len(report.table(ABLATION)) == 2 + 2 * len(PASSES)
    assert set(report.table(POLICIES_ONE)) == set(ORDERS)
    assert len(report.goals) == 3
    assert json.loads(json.dumps(report.as_dict()))["config"]["num_chunks"] == 140


def test_virtual_times_are_the_same_every_time() -> None:
    setting = Setting("advanced", 10, 140)
    assert end_to_end_s(setting, ("prune_order",), None) == end_to_end_s(setting, ("prune_order",), None)


@pytest.mark.parametrize("tokens", [1, 7, 20, 40])
def test_the_scripted_llm_writes_as_many_tokens_as_asked(tokens: int) -> None:
    llm = LengthLLM(Lengths(query_tokens=tokens, answer_tokens=tokens))
    prompt = (Segment(question(), "question"),)
    for decode in (Decode(max_tokens=200), Decode(max_tokens=200, items="json_list", max_items=3)):
        llm.admit(LLMTask(1, "q", "s", prompt, decode), ())
        events = []
        while llm.has_work():
            events += llm.step()
        value = events[-1].value if isinstance(events[-1], Done) else None
        texts = [value] if isinstance(value, str) else value
        assert isinstance(texts, list)
        assert len(texts) == (3 if decode.items else 1)
        sizes = {num_tokens(text) if decode.items else len(text.split()) for text in texts}
        assert sizes == {tokens}


def test_documents_become_as_many_chunks_as_asked() -> None:
    files = inputs(37)["files"]
    assert isinstance(files, list)
    (document,) = files
    assert len(document.sections) == 37
    assert all(380 <= len(section.text) <= 400 for section in document.sections)


@pytest.mark.long
def test_the_real_part_answers_alike_with_and_without_passes(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    from benchmarks.common.checkpoint import TINY
    from benchmarks.passes.real import real_rows

    (tmp_path / "a.txt").write_text("Stretto starts each step early. " * 20 + "A fugue has voices. " * 20)
    config = RealConfig(rounds=1, max_chars=2000, answer_tokens=4, shape=TINY)
    rows, notes = real_rows(config, tmp_path, 0, lambda _: None)
    assert [row.name for row in rows if row.table == REAL] == ["naive", "advanced"]
    assert all(row.values["equal_answers"] == "1 of 1" for row in rows if row.table == REAL)
    assert len([row for row in rows if row.table == BUSY]) == 4
    assert str(tmp_path.name) in notes[0]
