"""The readers of agents' traces: what they make of each format, and how they refuse what does not fit."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stretto.trace import lines as trace_lines
from stretto.trace.agents.formats import READERS, agent_format, read_agent_trace
from stretto.trace.agents.requests import After, AgentRequest, ChatPrompt, SizedPrompt
from stretto.trace.lines import TraceError

Line = Mapping[str, Any]


def write(folder: Path, *lines: Line) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")
    return path


def read(folder: Path, *lines: Line) -> tuple[AgentRequest, ...]:
    return read_agent_trace(write(folder, *lines)).requests


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


# --- Mooncake


def sized(tokens: int = 600, ids: Sequence[int] = (1, 2), **fields: object) -> Line:
    return {"input_length": tokens, "output_length": 5, "hash_ids": list(ids), **fields}


def test_agentic_lines_wait_for_requests_and_tools(tmp_path: Path) -> None:
    a, b, c = read(
        tmp_path,
        sized(request_id="a", timestamp=1500, branches=["b"], session_id="s"),
        sized(request_id="b", timestamp=1700, wait_for=["a"], delay=250, tool_wait_ms=1000, session_id="s"),
        sized(1100, (1, 2, 3), request_id="c", wait_for=["a", "b"], tool_events=[], prefix_reset=True),
    )
    assert a == AgentRequest("a", 1, SizedPrompt(600, (1, 2), 512), 1.5, (), 5)
    assert (b.arrival_s, b.after) == (0.0, (After("a", 1.25),))
    assert (c.arrival_s, c.after) == (0.0, (After("a"), After("b")))


def test_agentic_lines_of_version_2_have_a_header_and_triggers(tmp_path: Path) -> None:
    header = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 64, "hash_id_scope": "local"}
    spawn = {"request_id": "a", "trigger": "dispatch", "delay_ms": 20, "relation": "spawn"}
    join = {"request_id": "b", "trigger": "completion", "delay_ms": 5, "relation": "join"}
    a, b, c = read(
        tmp_path,
        header,
        sized(100, (1, 2), request_id="a", not_before_ms=300, play_id="p", model="m"),
        sized(60, (7,), request_id="b", not_before_ms=0, dependencies=[spawn]),
        sized(60, (7,), request_id="c", not_before_ms=900, dependencies=[join, spawn]),
    )
    assert (a.arrival_s, a.model, a.prompt) == (0.3, "m", SizedPrompt(100, (1, 2), 64))
    assert b.after == (After("a", 0.02, "start"),)
    assert (c.arrival_s, c.after) == (0.9, (After("b", 0.005), After("a", 0.02, "start")))


def test_lines_of_a_session_are_turns(tmp_path: Path) -> None:
    first, second, third, other = read(
        tmp_path,
        sized(session_id="s", timestamp=100),
        sized(session_id="s", delay=2000),
        sized(session_id="s", timestamp=4100),
        {"input_tokens": 20, "output_tokens": 3, "created_time": 50},
    )
    assert (first.id, first.arrival_s) == ("line 1", 0.1)
    assert second.after == (After("line 1", 2.0),)
    assert third.after == (After("line 2", 4.1),)
    assert other == AgentRequest("line 4", 4, SizedPrompt(20), 0.05, (), 3)


def test_mooncake_prompts_may_be_texts(tmp_path: Path) -> None:
    one, two = read(
        tmp_path,
        {"messages": [user("Hi\u2028there")], "timestamp": 0},
        {"text_input": "Hello", "timestamp": 1},
    )
    assert one.prompt == ChatPrompt((user("Hi\u2028there"),))
    assert two.prompt == ChatPrompt((user("Hello"),))


@pytest.mark.parametrize(
    ("sizes", "block_tokens"),
    [
        ([(600, 2), (512, 1)], 512),
        ([(600, 5), (100, 1)], 128),
        ([(128, 1)], 512),
        ([(1500, 1)], 2048),
        ([(64, 4), (48, 3)], 16),
    ],
)
def test_the_length_of_blocks_follows_from_the_lines(
    tmp_path: Path, sizes: list[tuple[int, int]], block_tokens: int
) -> None:
    for request in read(tmp_path, *(sized(tokens, range(num)) for tokens, num in sizes)):
        assert isinstance(request.prompt, SizedPrompt)
        assert request.prompt.block_tokens == block_tokens


# --- dag_jsonl


def turn(text: str = "go", **fields: object) -> Line:
    return {"messages": [user(text)], **fields}


def test_turns_forks_spawns_and_joins(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {
            "session_id": "root",
            "turns": [
                turn("plan", spawns=["x", "y"], max_tokens=9),
                turn("merge", delay=500),
                turn("end", forks=["f"], extra={"temperature": 0}),
            ],
        },
        {"session_id": "x", "turns": [turn("x0", delay=100), turn("x1")]},
        {"session_id": "y", "turns": [turn("y0")]},
        {"session_id": "f", "turns": [turn("f0", model="big"), turn("f1")]},
    )
    requests = {request.id: request for request in found}
    assert list(requests) == ["root/0", "x/0", "x/1", "y/0", "root/1", "root/2", "f/0", "f/1"]
    assert {name: request.after for name, request in requests.items()} == {
        "root/0": (),
        "x/0": (After("root/0", 0.1),),
        "x/1": (After("x/0"),),
        "y/0": (After("root/0"),),
        "root/1": (After("root/0", 0.5), After("x/1", 0.5), After("y/0", 0.5)),
        "root/2": (After("root/1"),),
        "f/0": (After("root/2"),),
        "f/1": (After("f/0"),),
    }
    continues = {r.id: r.prompt.continues for r in found if isinstance(r.prompt, ChatPrompt)}
    assert continues == {
        **{"root/0": None, "x/0": None, "x/1": "x/0", "y/0": None},
        **{"root/1": "root/0", "root/2": "root/1", "f/0": "root/2", "f/1": "f/0"},
    }
    assert requests["root/0"].output_tokens == 9
    assert requests["root/2"].extra == {"temperature": 0}
    assert requests["f/0"].model == "big"
    assert requests["f/0"].line == 4


def test_a_late_join_and_a_fork_in_the_background(tmp_path: Path) -> None:
    spawn, fork = {"children": ["x"], "join_at": 2}, {"child": "f", "background": True}
    found = read(
        tmp_path,
        {"session_id": "r", "turns": [turn(spawns=[spawn], forks=[fork]), turn(), turn(spawns=["y"])]},
        {"session_id": "x", "turns": [turn()]},
        {"session_id": "y", "turns": [turn()]},
        {"session_id": "f", "turns": [turn()], "context_mode": "message_array_with_responses"},
    )
    assert {request.id: [after.request for after in request.after] for request in found} == {
        "r/0": [],
        "f/0": ["r/0"],
        "x/0": ["r/0"],
        "r/1": ["r/0"],
        "r/2": ["r/1", "x/0"],
        "y/0": ["r/2"],
    }
    assert found[1].prompt == ChatPrompt((user("go"),))


def test_a_session_that_is_spawned_twice_runs_twice(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {"session_id": "r", "turns": [turn(spawns=["x"]), turn(spawns=["x"])], "pre_session_spawns": ["p"]},
        {"session_id": "x", "turns": [turn(spawns=["z"]), turn()]},
        {"session_id": "z", "turns": [turn()]},
        {"session_id": "p", "turns": [turn(delay=700)]},
    )
    assert [request.id for request in found] == [
        "p/0",
        "r/0",
        *("r/0/x/0", "r/0/x/0/z/0", "r/0/x/1"),
        "r/1",
        *("r/1/x/0", "r/1/x/0/z/0", "r/1/x/1"),
    ]
    assert (found[0].arrival_s, found[0].after) == (0.7, ())


def test_sessions_cannot_begin_each_other_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain: list[Line] = [{"session_id": f"s{n}", "turns": [turn(forks=[f"s{n + 1}"])]} for n in range(600)]
    chain.append({"session_id": "s600", "turns": [turn()]})
    for lines, number in ((chain, 101), (chain[::-1], 501)):  # s100 has 500 others within it
        with pytest.raises(TraceError, match=f"line {number}: more than 500 sessions begin one in another"):
            read(tmp_path, *lines)
    monkeypatch.setattr("stretto.trace.agents.dag_jsonl._MAX_REQUESTS", 100)
    doubling: list[Line] = [
        {"session_id": f"s{n}", "turns": [turn(spawns=[f"s{n + 1}"]), turn(spawns=[f"s{n + 1}"])]}
        for n in range(10)
    ]
    with pytest.raises(TraceError, match=r"sessions that spawn each other make over 100 requests"):
        read(tmp_path, *doubling, {"session_id": "s10", "turns": [turn()]})


# --- chat logs


def call(
    messages: Sequence[Line], answer: str, start: object = None, end: object = None, **fields: object
) -> Line:
    times = {"start_time": start, "end_time": end}
    response = {"choices": [{"message": said(answer)}], "usage": {"completion_tokens": len(answer)}}
    return {"request": {"messages": list(messages)}, "response": response, **times, **fields}


def test_calls_of_a_session_wait_as_they_did(tmp_path: Path) -> None:
    m = [user("?")]
    found = read(
        tmp_path,
        call(m, "plan", 1000.0, 1002.0, session_id="s", request_id="plan"),
        call(m, "one", 1002.5, 1006.0, session_id="s", request_id="one"),
        call(m, "two", 1003.0, 1004.0, session_id="s", request_id="two"),
        call(m, "end", 1007.0, 1009.0, session_id="s", request_id="end"),
        call(m, "other", "1970-01-01T00:16:43Z", "1970-01-01T00:16:44", session_id="t", request_id="other"),
    )
    assert {request.id: request.after for request in found} == {
        "plan": (),
        "one": (After("plan", 0.5),),
        "two": (After("plan", 1.0),),
        "end": (After("one", 1.0), After("two", 1.0)),
        "other": (),
    }
    assert [request.arrival_s for request in found] == [0.0, 0.0, 0.0, 0.0, 3.0]
    assert found[4].output_tokens == 5


def test_calls_without_a_session_go_on_where_their_messages_do(tmp_path: Path) -> None:
    first: list[Line] = [user("add")]
    tool = {"role": "tool", "tool_call_id": "1", "content": "3"}
    second: list[Line] = [*first, {**said("call add"), "refusal": None}, tool]
    found = read(
        tmp_path,
        call(first, "call add", 10.0, 11.0),
        call(second, "3", 15.0, 16.0),
        call([user("else")], "no", 12.0, 13.0),
        call([*second, said("3"), user("thanks")], "bye", startTime=20.0, endTime=21.0),
    )
    assert [request.after for request in found] == [
        (),
        (After("line 1", 4.0),),
        (),
        (After("line 2", 4.0),),
    ]
    assert [request.arrival_s for request in found] == [0.0, 0.0, 2.0, 0.0]
    assert found[1].prompt == ChatPrompt(tuple(second))


def test_a_calls_fields_are_kept_but_its_limit_is_the_recorded_length(tmp_path: Path) -> None:
    body = {"messages": [user("a")], "model": "m", "stream": True, "temperature": 0.5, "max_tokens": 99}
    usage = {"completion_tokens": 7}
    known, unknown = read(tmp_path, {"request": body, "response": {"usage": usage}}, {"request": body})
    assert (known.model, known.output_tokens, known.extra) == ("m", 7, {"temperature": 0.5})
    assert (unknown.output_tokens, unknown.extra) == (None, {"temperature": 0.5, "max_tokens": 99})


def test_a_conversation_has_a_call_for_each_answer(tmp_path: Path) -> None:
    messages = [user("a"), said("twelve chars"), user("b"), said("")]
    one, two = read(tmp_path, {"messages": messages})
    assert (one.id, one.prompt, one.output_tokens) == ("line 1/1", ChatPrompt((user("a"),)), 4)
    assert (two.after, two.prompt) == ((After("line 1/1"),), ChatPrompt(tuple(messages[:3])))


# --- all of them


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (sized(), "mooncake"),
        ({"schema": "dynamo.agentic_mooncake"}, "mooncake"),
        ({"messages": [], "timestamp": 0}, "mooncake"),
        ({"session_id": "s", "turns": []}, "dag_jsonl"),
        ({"messages": []}, "chat log"),
        ({"request": {}}, "chat log"),
        ({"schema": "stretto-run"}, None),
        ({"prompt": 1}, None),
    ],
)
def test_the_first_line_tells_the_format(tmp_path: Path, line: Line, name: str | None) -> None:
    path = write(tmp_path, line)
    assert agent_format(path) == name
    if name is None:
        with pytest.raises(
            TraceError, match=r"trace\.jsonl, line 1: not a line of a known format \(mooncake, "
        ):
            read_agent_trace(path)


def test_compressed_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(sized()).encode()))
    assert len(read_agent_trace(path).requests) == 1


SESSION = {"session_id": "s", "turns": [turn()]}
V2 = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 64}


@pytest.mark.parametrize(
    ("format_", "lines", "reason"),
    [
        ("mooncake", [], r"trace\.jsonl: there are no requests"),
        ("mooncake", [sized(delay=-1)], r"line 1: delay must be a time from 0 to \d+ ms, got -1"),
        ("mooncake", [sized(tool_wait_ms="1")], r"line 1: tool_wait_ms must be a time"),
        ("mooncake", [sized(), sized(timestamp=float("nan"))], r"line 2: timestamp must be a time"),
        ("mooncake", [sized(request_id="a", wait_for=["b"])], r"line 1, request 'a': it waits for 'b'"),
        ("mooncake", [sized(request_id="a", wait_for="b")], r"line 1: wait_for must be a list, each a text"),
        ("mooncake", [sized(request_id="a"), sized(request_id="a")], r"line 2, request 'a': the id is used"),
        ("mooncake", [sized(request_id="a", branches=["b"])], r"line 1: branches names 'b'"),
        ("mooncake", [sized(request_id="a", wait_for=["a"])], r"circle: a after a"),
        ("mooncake", [sized(600, (1, 2)), sized(600, (1,) * 99)], r"line 2: 99 hash_ids for 600 tokens"),
        ("mooncake", [sized(70, (1, 2)), sized(80, (1, 2))], None),
        ("mooncake", [sized(110, (1, 2, 3))], r"blocks have 37 to 54 tokens, which is no power"),
        ("mooncake", [sized(messages=[user("a")])], r"line 1: give one of .*, not input_length and messages"),
        (
            "mooncake",
            [{"timestamp": 0, "messages": [1]}],
            r"line 1: messages\[0\] must be a mapping with role, got 1",
        ),
        (
            "mooncake",
            [sized(ids=[-1])],
            r"line 1: hash_ids\[0\] must be a whole number of at least 0, got -1",
        ),
        ("mooncake", [{**V2, "version": 3}], r"line 1: version is 3; only 2 is known"),
        ("mooncake", [V2, sized(600, (1, 2))], r"line 2: 2 hash_ids for 600 tokens; one for each 64"),
        (
            "mooncake",
            [V2, sized(9, [1], request_id="a", dependencies=[{"request_id": "a", "trigger": "x"}])],
            r"line 2, dependencies\[0\]: trigger must be one of completion, dispatch, got 'x'",
        ),
        ("dag_jsonl", [SESSION, SESSION], r"line 2: session 's' is in line 1 already"),
        ("dag_jsonl", [{**SESSION, "turns": []}], r"line 1: turns is empty"),
        (
            "dag_jsonl",
            [{**SESSION, "orchestrator": True}],
            r"line 1: orchestrator sessions are not supported",
        ),
        ("dag_jsonl", [{**SESSION, "x": 1}], r"line 1: unknown key 'x'; known keys: session_id, turns"),
        (
            "dag_jsonl",
            [{**SESSION, "turns": [turn(dealy=1)]}],
            r"line 1, turns\[0\]: unknown key 'dealy'; did you mean delay",
        ),
        ("dag_jsonl", [{**SESSION, "turns": [turn(delay=-5)]}], r"line 1, turns\[0\]: delay must be a time"),
        ("dag_jsonl", [{**SESSION, "turns": [turn(forks=["x"])]}], r"line 1: there is no session 'x'"),
        (
            "dag_jsonl",
            [{**SESSION, "turns": [turn(forks=["x"]), turn()]}, {**SESSION, "session_id": "x"}],
            r"line 1, turns\[0\].forks: only the last turn may fork",
        ),
        (
            "dag_jsonl",
            [{**SESSION, "turns": [turn(spawns=[{"children": ["s"], "join_at": 1}])]}],
            r"line 1, turns\[0\].spawns: join_at is 1; it must be from 1 to 0",
        ),
        (
            "dag_jsonl",
            [
                {"session_id": "a", "turns": [turn(forks=["b"])]},
                {"session_id": "b", "turns": [turn(spawns=["a"])]},
            ],
            r"line 1: sessions begin each other in a circle: a > b > a",
        ),
        (
            "dag_jsonl",
            [{**SESSION, "turns": [turn(forks=["x", "x"])]}, {**SESSION, "session_id": "x"}],
            r"line 1: 'x' is forked twice",
        ),
        ("chat log", [{"request": {}}], r"line 1, request: there is no messages"),
        ("chat log", [call([user("a")], "b", 5.0, 4.0)], r"line 1: end_time is 1 s before start_time"),
        (
            "chat log",
            [call([user("a")], "b", "noon")],
            r"line 1: start_time must be seconds, or a date and time",
        ),
        ("chat log", [{"messages": [user("a")]}], r"line 1: messages has no answer of the assistant"),
        (
            "chat log",
            [call([user("a")], "b", request_id="x")] * 2,
            r"line 2, request 'x': the id is used twice",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_file_and_line(
    tmp_path: Path, format_: str, lines: list[Line], reason: str | None
) -> None:
    path = write(tmp_path, *lines)
    if reason is None:
        READERS[format_](path)
        return
    with pytest.raises(TraceError, match=reason) as caught:
        READERS[format_](path)
    assert str(caught.value).startswith(f"{path}")


def test_a_small_file_cannot_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n" + b"x" * 5000 + b"\n{}\n"))
    monkeypatch.setattr(trace_lines, "MOST_LINE_BYTES", 1000)
    with pytest.raises(TraceError, match=r"t\.jsonl\.gz: has a line of more than 1,000 bytes"):
        list(trace_lines.text_lines(path))
    monkeypatch.setattr(trace_lines, "MOST_LINE_BYTES", 10_000)
    assert [len(line) for line in trace_lines.text_lines(path)] == [2, 5000, 2]
    monkeypatch.setattr(trace_lines, "MOST_BYTES", 5004)
    with pytest.raises(TraceError, match="has more than 5,004 bytes, not compressed"):
        list(trace_lines.text_lines(path))
