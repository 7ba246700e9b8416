"""The record of a router as a trace of agents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stretto.sched.request_trace import RequestTrace
from stretto.trace.agents.formats import agent_format, read_agent_trace
from stretto.trace.agents.requests import SizedPrompt
from stretto.trace.lines import TraceError

NOW_S = 1_796_000_000.0


def line(name: str, start_s: float, end_s: float, program: str = "", **fields: int | None) -> str:
    """A line as the router writes it."""
    trace = RequestTrace(name, "/v1/chat/completions", start_s, program=program)
    trace.prompt_tokens, trace.cached_tokens, trace.output_tokens = 160, 64, 10
    trace.end(200, end_s)
    for field, value in fields.items():
        setattr(trace, field, value)
    return json.dumps({"time": NOW_S + end_s, **trace.to_json()})


def blocks(path: Path) -> dict[str, list[int]]:
    found = {}
    for one in read_agent_trace(path).requests:
        assert isinstance(one.prompt, SizedPrompt)
        found[one.id.split(",")[0]] = list(one.prompt.blocks)
    return found


def shared(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


def test_a_request_waits_for_those_of_its_program_that_had_ended(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    lines = [
        line("b", 5.0, 6.0, "p"),
        line("a", 1.0, 2.0, "p"),
        line("c", 5.5, 7.0, "p"),
        line("d", 8.0, 9.0, "p"),
        line("e", 3.0, 4.0),
    ]
    path.write_text("\n".join(lines))
    assert agent_format(path) == "router record"
    trace = read_agent_trace(path)
    found = {
        one.id.split(",")[0]: (
            round(one.arrival_s, 3),
            {after.request.split(",")[0]: round(after.delay_s, 3) for after in one.after},
        )
        for one in trace.requests
    }
    assert found == {
        "a": (0, {}),
        "b": (0, {"a": 3}),
        "c": (0, {"a": 3.5}),
        "d": (0, {"b": 2, "c": 1}),
        "e": (2, {}),
    }
    assert len(set(trace.jobs.values())) == 2


def test_prompts_share_what_grows_and_what_was_found(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    lines = [
        line("a", 1, 2, "p"),
        line("b", 3, 4, "p", prompt_tokens=320),
        line("c", 5, 6, "p", prompt_tokens=200, cached_tokens=80),
        line("d", 1, 2, "q"),
    ]
    path.write_text("\n".join(lines))
    found = blocks(path)
    assert [len(found[name]) for name in "abcd"] == [10, 20, 13, 10]
    assert shared(found["a"], found["b"]) == 10
    assert shared(found["b"], found["c"]) == 5
    assert shared(found["a"], found["d"]) == 4


def test_what_was_not_answered_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text(line("a", 1, 2, status=503) + "\n" + line("b", 1, 2, output_tokens=None))
    with pytest.raises(TraceError, match="no request was answered"):
        read_agent_trace(path)
    path.write_text(line("a", 1, 2).replace('"status": 200', '"status": "ok"'))
    with pytest.raises(TraceError, match="line 1: status"):
        read_agent_trace(path)
