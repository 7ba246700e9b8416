"""The benchmark of recognition at toy size, and the truth of its made-up sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.recognition.benchmark import JOINED, KINDS, RecognitionSize, measure
from benchmarks.recognition.calls import Joined, interleaved, recognise
from benchmarks.recognition.costs import EVENTS, MEMORY, TIMES
from benchmarks.recognition.made_up import made_up_calls
from benchmarks.recognition.recorded import recorded_calls
from benchmarks.registry import BenchmarkOptions


@pytest.mark.long
def test_the_tables_at_toy_size() -> None:
    size = RecognitionSize(num_sessions=60, seeds=1, num_programs=200, repeats=3)
    report = measure(size, BenchmarkOptions())
    assert {row.table for row in report.rows} == {JOINED, KINDS, TIMES, EVENTS, MEMORY}
    assert len(report.table(JOINED)) == 3
    by_name = {goal.name: goal for goal in report.goals}
    assert by_name["later calls joined rightly (%)"].met
    assert by_name["later calls joined wrongly (%)"].met
    assert by_name["first calls joined wrongly (%)"].met


def test_made_up_sessions_are_the_same_for_a_seed_and_have_all_kinds() -> None:
    def sessions(seed: int) -> list[list[object]]:
        return [[(call.start_s, call.fields) for call in calls] for calls in made_up_calls(40, seed)]

    assert sessions(1) == sessions(1) != sessions(2)
    kinds = {call.kind for calls in made_up_calls(200, 3) for call in calls}
    assert kinds == {"after compaction", "agent", "chat", "fork", "rag", "sub-agent", "text", "twin"}


def test_a_restart_forgets_all_and_counts_what_follows() -> None:
    calls = interleaved(made_up_calls(60, 5))
    middle_s = calls[len(calls) // 2].start_s
    seen: Joined = recognise(calls, restart_s=middle_s)
    num_later = sum(call.start_s >= middle_s for call in calls)
    assert seen.openings + seen.later == num_later
    assert seen.right > 0.9 * seen.later


def test_recorded_sessions_are_read(tmp_path: Path) -> None:
    """The form of the sets, with a session of each."""
    import gzip
    import json

    coding = tmp_path / "multi_agent_coding"
    coding.mkdir()
    rows = [
        {
            "round": "0",
            "system": "s",
            "user": "Design it.",
            "response": "The design is this: two files, a and b, of which one is for tests.",
        },
        {
            "round": "1",
            "system": "s",
            "user": "Design:\nThe design is this: two files, a and b, of which one is for tests.\nWrite a.",
            "response": "def a(): ...",
        },
    ]
    with gzip.open(coding / "metagpt_pytorch_calls.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    tools = tmp_path / "toolbench"
    tools.mkdir()
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{\n "a": 1}'}}
    messages = [{"role": "user", "content": "Find it."}, call]
    again = [
        *messages,
        {"role": "function", "name": "f", "content": "x"},
        {"role": "assistant", "content": "x"},
    ]
    session = {"id": "1", "calls": [{"messages": messages}, {"messages": again}]}
    (tools / "agent_conversations.jsonl").write_text(json.dumps(session) + "\n")
    (tmp_path / "agent_prompts").mkdir()
    (tmp_path / "agent_prompts" / "hotpotqa_fewshot.json").write_text('{"webthink_simple6": "Question: …"}')
    (tmp_path / "hotpotqa").mkdir()
    steps = [{"thought": "I search.", "action": f"Search[{n}]", "observation": f"{n}"} for n in range(3)]
    line = json.dumps({"question": "Who?", "steps": steps})
    (tmp_path / "hotpotqa" / "react_traces_100.jsonl").write_text(line + "\n")
    for sessions in recorded_calls(tmp_path, 0).values():
        seen = recognise(interleaved(sessions))
        assert not seen.wrong
        assert 0.9 * seen.later <= seen.right > 0, "a short text of one agent may have no anchor"
