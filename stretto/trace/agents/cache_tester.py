"""The reader of recorded sessions of coding agents, as `kv-cache-tester` publishes them.

Each line is a session: its `block_size` in tokens, and its `requests`, one after the other. A request has `in`
and `out` (tokens of the prompt and of the answer), `think_time` (seconds since the answer before), and the
blocks of its prompt: `hash_ids`, or `runs` of consecutive ids as [first, number] pairs. Ids say nothing across
sessions. A request of the type "subagent" is a child with `requests` of its own, for whose end the next request
waits.

Sessions have no time of arrival: all begin with the trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, TypeAlias

from msgspec import Meta

from stretto.schema.typed import Count, Number, Object, Text
from stretto.trace.agents.requests import (
    After,
    AgentRequest,
    AgentTrace,
    BlockRuns,
    SizedPrompt,
    checked_trace,
)
from stretto.trace.lines import JsonLine, json_lines

_Ids: TypeAlias = list[Annotated[int, Meta(ge=0)]]
_Runs: TypeAlias = list[tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=1)]]]
_Time: TypeAlias = Annotated[float, Meta(ge=0, le=10**9, description="a time from 0 to 1000000000 s")]


def read_sessions(path: Path) -> AgentTrace:
    """Read recorded sessions.

    Raises:
        TraceError: the file does not fit the format.
    """
    return checked_trace(path, _requests(path))


def _requests(path: Path) -> Iterator[AgentRequest]:
    first_id = 0
    for line in json_lines(path):
        session = _Session(line, first_id)
        yield from session.requests(line, "", ())
        first_id = session.next_id


class _Session:
    """The requests of one session, whose block ids are made different from those of all other sessions."""

    def __init__(self, line: JsonLine, first_id: int) -> None:
        self._name = line.optional("id", Text, f"line {line.number}")
        self._block_tokens: int = line.required("block_size", Number)
        self._first_id = first_id
        self.next_id = first_id

    def requests(self, line: JsonLine, within: str, after: tuple[After, ...]) -> Iterator[AgentRequest]:
        """Yield the requests of the session or of a child in it; the first one waits for `after`."""
        for number, fields in enumerate(line.required("requests", list[Object])):
            one = line.within(f"requests[{number}]", fields)
            name = f"{self._name}/{within}{number}"
            if one.optional("type", Text) == "subagent":
                children = list(self.requests(one, f"{within}{number}.", after))
                yield from children
                if children:
                    after = (After(children[-1].id),)
                continue
            think_s = one.optional("think_time", _Time, 0.0)
            yield AgentRequest(
                id=name,
                line=line.number,
                prompt=self._prompt(one),
                after=tuple(After(other.request, think_s) for other in after),
                output_tokens=one.required("out", Count),
            )
            after = (After(name),)

    def _prompt(self, line: JsonLine) -> SizedPrompt:
        num_tokens = line.required("in", Number)
        runs = line.optional("runs", _Runs)
        if runs is None:
            runs = _runs_of(line.optional("hash_ids", _Ids, []))
        num_blocks = sum(number for _, number in runs)
        if num_blocks * self._block_tokens > num_tokens + self._block_tokens:
            raise line.error(f"{num_blocks} blocks of {self._block_tokens} for {num_tokens} tokens")
        blocks = BlockRuns(tuple((self._first_id + first, number) for first, number in runs))
        self.next_id = max([self.next_id, *(first + number for first, number in blocks.runs)])
        return SizedPrompt(num_tokens, blocks, self._block_tokens)


def _runs_of(ids: list[int]) -> list[tuple[int, int]]:
    """Return ids as runs of consecutive ones."""
    starts = [0, *(at for at, (one, other) in enumerate(pairwise(ids), 1) if other != one + 1), len(ids)]
    return [(ids[start], end - start) for start, end in pairwise(starts) if end > start]
