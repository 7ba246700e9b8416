"""57 recorded calls of agents that wrote a program of eight files, round by round."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.parrot.workflows import Arrival, Call, Workflow
from stretto.model.errors import UserError
from stretto.sim.synthetic_output import made_up_token_ids

_FILE = Path("multi_agent_coding") / "metagpt_pytorch_calls.jsonl.gz"
_ROUND_S = 300.0


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One recorded call: the round it belongs to, its prompt, and the length of its answer in tokens."""

    round: int
    prompt: str
    num_output: int


def load_calls(data: Path) -> list[RecordedCall]:
    """Read the calls from the folder of data.

    Raises:
        UserError: they are not there.
    """
    path = data / _FILE
    if not path.exists():
        raise UserError(f"{path}: there is no such file, which has the recorded calls of agents")
    found = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            one = json.loads(line)
            found.append(RecordedCall(one["round"], one["system"] + one["user"], one["completion_tokens"]))
    return found


def in_rounds(calls: Sequence[RecordedCall]) -> list[Arrival]:
    """Return the calls as workflows of their own, those of a round at the same time."""
    return [
        Arrival(_ROUND_S * one.round, Workflow("recorded", (Call("answer", (one.prompt,), one.num_output),)))
        for one in calls
    ]


def infinite_share(calls: Sequence[RecordedCall]) -> float:
    """Return the share of prompt tokens that an earlier prompt begins with, too: what one cache without limit
    finds if calls are made one after the other.
    """
    earlier: list[list[int]] = []
    num_found = num_all = 0
    for one in calls:
        tokens = made_up_token_ids(one.prompt)
        num_found += max((_num_common(tokens, other) for other in earlier), default=0)
        num_all += len(tokens)
        earlier.append(tokens)
    return num_found / num_all


def _num_common(one: list[int], other: list[int]) -> int:
    return next(
        (number for number, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
