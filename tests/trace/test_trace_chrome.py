"""The recording as Chrome trace events."""

from __future__ import annotations

import json
from itertools import pairwise

from support.recorded_runs import driver

from stretto.sched.actions import Admit, StartBatch
from stretto.trace.chrome import chrome_trace
from stretto.trace.recorder import Recorder


def test_events_have_what_the_format_asks_for() -> None:
    run = driver(3)
    run.run()
    events = json.loads(json.dumps(chrome_trace(run.recorder), allow_nan=False))["traceEvents"]
    names = {
        (e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"].endswith("_name")
    }
    for event in events:
        assert {"ph", "pid", "tid", "ts", "name"} <= event.keys()
        assert event["ts"] >= 0
        match event["ph"]:
            case "X":
                assert event["dur"] >= 0
                assert event["args"]["outcome"] == "done"
                assert ("thread_name", event["pid"], event["tid"]) in names
            case "i":
                assert event["s"] == "t"
            case "b" | "e":
                assert {"id", "cat"} <= event.keys()
            case "M":
                assert event["args"]
            case other:
                raise AssertionError(other)
    processes = {name for (kind, _, _), name in names.items() if kind == "process_name"}
    assert processes == {"queries", "cpu", "embedding", "vectors", "rerank", "llm"}


def test_one_complete_event_per_batch_and_request_and_none_overlap_in_a_thread() -> None:
    run = driver(4)
    run.run()
    events = chrome_trace(run.recorder)["traceEvents"]
    bars = [event for event in events if event["ph"] == "X"]
    assert len(bars) == sum(isinstance(action, StartBatch | Admit) for _, action in run.actions)
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for bar in bars:
        threads.setdefault((bar["pid"], bar["tid"]), []).append((bar["ts"], bar["ts"] + bar["dur"]))
    for own in threads.values():
        assert all(a[1] <= b[0] + 1e-3 for a, b in pairwise(sorted(own)))


def test_pieces_lie_within_their_request_and_queries_begin_and_end_once() -> None:
    run = driver(3)
    run.run()
    events = chrome_trace(run.recorder)["traceEvents"]
    bars = [event for event in events if event["ph"] == "X"]
    pieces = [event for event in events if event["ph"] == "i"]
    assert pieces
    for piece in pieces:
        own = [bar for bar in bars if (bar["pid"], bar["tid"]) == (piece["pid"], piece["tid"])]
        assert any(bar["ts"] <= piece["ts"] <= bar["ts"] + bar["dur"] + 1e-3 for bar in own)
    for number in range(3):
        mine = [e for e in events if e["ph"] in "be" and e["id"] == number]
        assert [e["ph"] for e in mine] == ["b", "e"]
        assert mine[0]["ts"] <= mine[1]["ts"]
        assert mine[0]["name"] == f"q{number}"


def test_a_request_says_why_it_went_where_it_did() -> None:
    run = driver(2)
    run.run()
    bars = [event for event in chrome_trace(run.recorder)["traceEvents"] if event["ph"] == "X"]
    placed = [bar["args"] for bar in bars if "placed_because" in bar["args"]]
    assert len(placed) == sum(isinstance(action, Admit) for _, action in run.actions) > 0
    assert all(one["placed_because"].startswith("ends first; holds") for one in placed)
    assert all(one["placement_terms"]["prefill_s"] > 0 for one in placed)


def test_an_empty_recording_is_a_trace() -> None:
    assert [event["ph"] for event in chrome_trace(Recorder())["traceEvents"]] == ["M"]


def test_times_count_from_the_first_event() -> None:
    """Real clocks start anywhere."""
    run = driver(2)
    run.run()
    del run.recorder.queries["q0"]
    run.recorder.spans = [span for span in run.recorder.spans if span.parts[0].query == "q1"]
    (begin,) = (event for event in chrome_trace(run.recorder)["traceEvents"] if event["ph"] == "b")
    assert begin["ts"] == 0
