"""Sessions of agents with their prompts, from records of a coding agent."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from stretto.sim.synthetic_output import filler

SCALE = 16
"""Tokens and seconds of the record for one of ours, as the recorded sessions ran on larger models."""
BLOCK_TOKENS = 64 // SCALE
MOST_TURNS = 32
MOST_TOKENS = 12_500
"""Longest prompt of a session that is taken, a tenth of the memory of a server."""
_THINKING_S = 2.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of an agent.

    Attributes:
        runs: blocks of the prompt as (first id, number) pairs. Equal ids in equal places are equal texts.
        think_s: seconds between the answer before and this request.
    """

    runs: tuple[tuple[int, int], ...]
    num_output: int
    think_s: float

    @property
    def num_blocks(self) -> int:
        """Number of blocks of the prompt."""
        return sum(num for _, num in self.runs)


@dataclass(frozen=True, slots=True)
class Session:
    """A session of an agent, turn by turn."""

    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """A session under its own name, whose prompts share nothing with those of others but an opening.

    Attributes:
        number: number of the session in its run; texts are made from it.
        shared: part of the first prompt that all sessions have in common.
        heavy_tokens: tokens with which all prompts of the session begin besides.
    """

    number: int
    session: Session
    shared: float = 0.0
    heavy_tokens: int = 0

    def prompt(self, turn: int) -> str:
        """Return the text of a turn's prompt, of four characters for each token."""
        blocks = [
            block for first, num in self.session.turns[turn].runs for block in range(first, first + num)
        ]
        num_shared = int(self.shared * self.session.turns[0].num_blocks)
        opening = [_text(0, place) for place in range(min(num_shared, len(blocks)))]
        heavy = filler(f"heavy {self.number}", self.heavy_tokens) + "|" if self.heavy_tokens else ""
        return heavy + "".join(opening + [_text(self.number, block) for block in blocks[num_shared:]])


def _text(number: int, block: int) -> str:
    return f"{number:08x}{block:08x}"


@lru_cache(maxsize=1)
def recorded_sessions(folder: Path) -> Sequence[Session]:
    """Return the recorded sessions whose prompts are not too long, each with its first turns."""
    sessions = []
    with gzip.open(folder / "sessions.jsonl.gz", "rt") as lines:
        for line in lines:
            turns = tuple(_turns(json.loads(line)["requests"]))[:MOST_TURNS]
            if turns and max(one.num_blocks for one in turns) * BLOCK_TOKENS <= MOST_TOKENS:
                sessions.append(Session(turns))
    return sessions


def _turns(requests: Sequence[dict[str, Any]]) -> Iterator[Turn]:
    for one in requests:
        if "runs" in one:  # else it is a child with requests of its own
            runs = tuple((first, num) for first, num in one["runs"])
            think_s = one.get("think_time") or 0.0
            yield Turn(runs, max(1, round(one["out"] / SCALE)), think_s / SCALE)


def drawn(sessions: Sequence[Session], draw: Random) -> Iterator[Session]:
    """Yield sessions in random order without end; none comes twice before all have come once."""
    while True:
        yield from draw.sample(sessions, len(sessions))


def thinking(think_s: float, most_s: float = _THINKING_S) -> float:
    """Return how long an agent's tools take: no longer than `most_s`, as people's pauses are left out."""
    return min(think_s, most_s)
