"""Recorded sessions of coding agents, as kv-cache-tester publishes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stretto.trace.agents.formats import read_agent_trace
from stretto.trace.agents.requests import After, BlockRuns, SizedPrompt
from stretto.trace.lines import TraceError

SESSION = {
    "id": "a",
    "block_size": 64,
    "requests": [
        {"in": 130, "out": 5, "runs": [[1, 2]]},
        {"type": "child", "requests": [{"in": 64, "out": 2, "hash_ids": [9]}]},
        {"in": 200, "out": 6, "think_time": 2.5, "runs": [[1, 2], [4, 1]]},
    ],
}


def read(path: Path, *sessions: object) -> tuple[object, ...]:
    path.write_text("".join(json.dumps(one) + "\n" for one in sessions))
    return read_agent_trace(path).requests


def test_requests_wait_for_each_other_and_for_children(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    first, child, last = read(path, SESSION)
    assert [one.id for one in (first, child, last)] == ["a/0", "a/1.0", "a/2"]  # type: ignore[attr-defined]
    assert child.after == (After("a/0"),)  # type: ignore[attr-defined]
    assert last.after == (After("a/1.0", 2.5),)  # type: ignore[attr-defined]
    assert last.output_tokens == 6  # type: ignore[attr-defined]
    prompt = last.prompt  # type: ignore[attr-defined]
    assert isinstance(prompt, SizedPrompt)
    assert (prompt.num_tokens, list(prompt.blocks)) == (200, [1, 2, 4])


def test_sessions_share_no_blocks(tmp_path: Path) -> None:
    requests = read(tmp_path / "s.jsonl", SESSION, {**SESSION, "id": "b"})
    blocks = [set(one.prompt.blocks) for one in requests]  # type: ignore[attr-defined]
    assert not set.union(*blocks[:3]) & set.union(*blocks[3:])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"block_size": "x"}, "block_size"),
        ({"requests": [{"in": 10}]}, "requests 0: there is no out"),
        ({"requests": [{"out": 10}]}, "requests 0: there is no in"),
        ({"requests": [{"in": 10, "out": 1, "runs": [[1, 2]]}]}, "2 blocks of 64 for 10 tokens"),
        ({"requests": [{"in": 10, "out": 1, "think_time": -1}]}, "think_time"),
        ({"requests": []}, "there are no requests"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, changed: dict[str, object], reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        read(tmp_path / "s.jsonl", {**SESSION, **changed})


def test_runs_are_a_sequence_of_ids() -> None:
    runs = BlockRuns(((3, 2), (1, 1)))
    assert (list(runs), len(runs), runs[1], bool(BlockRuns(()))) == ([3, 4, 1], 3, 4, False)
    assert list(runs.first(2)) == [3, 4]
    assert list(runs.first(9)) == [3, 4, 1]
