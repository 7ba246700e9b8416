"""The reader of recorded sessions of coding agents, as `kv-cache-tester` publishes them.

Each line is a session: its `block_size` in tokens, and its `requests`, one after the other. A request has
`in` and `out` (tokens of the prompt and of the answer), `think_time` (seconds since the answer before), and
the blocks of its prompt: `hash_ids`, or `runs` of consecutive ids as [first, number] pairs. Ids say nothing
across sessions. A request with `requests` of its own is a child, for whose end the next request waits.

Sessions have no time of arrival: all begin with the trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from stretto.schema.typed import Number, Text, convert
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


class _Request(msgspec.Struct):
    """A request of a session, or a child with requests of its own."""

    num_prompt: Annotated[int, Meta(ge=1)] | None = msgspec.field(default=None, name="in")
    num_output: Annotated[int, Meta(ge=0)] | None = msgspec.field(default=None, name="out")
    think_time: _Time | None = None
    runs: _Runs | None = None
    hash_ids: _Ids = []
    requests: list[_Request] | None = None


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
        yield from session.requests()
        first_id = session.next_id


class _Session:
    """The requests of one session, whose block ids are made different from those of all other sessions."""

    def __init__(self, line: JsonLine, first_id: int) -> None:
        self._line = line
        self._name = line.optional("id", Text, f"line {line.number}")
        self._block_tokens: int = line.required("block_size", Number)
        self._first_id = first_id
        self.next_id = first_id

    def requests(self) -> Iterator[AgentRequest]:
        """Yield the requests of the session and of its children."""
        kind = list[_Request]
        self._line.required("requests", kind)
        return self._read(convert(kind, self._line.fields["requests"]), "", ())

    def _read(
        self, requests: Sequence[_Request], within: str, after: tuple[str, ...]
    ) -> Iterator[AgentRequest]:
        """Yield requests, of which the first one waits for those in `after`."""
        for number, one in enumerate(requests):
            if one.requests is not None:
                children = list(self._read(one.requests, f"{within}{number}.", after))
                yield from children
                after = (children[-1].id,) if children else after
                continue
            think_s = one.think_time or 0.0
            name = f"{self._name}/{within}{number}"
            yield AgentRequest(
                id=name,
                line=self._line.number,
                prompt=self._prompt(one, f"requests {within}{number}"),
                after=tuple(After(other, think_s) for other in after),
                output_tokens=one.num_output,
            )
            after = (name,)

    def _prompt(self, one: _Request, place: str) -> SizedPrompt:
        if one.num_prompt is None or one.num_output is None:
            raise self._line.error(f"{place}: there is no {'in' if one.num_prompt is None else 'out'}")
        runs = _runs_of(one.hash_ids) if one.runs is None else one.runs
        num_blocks = sum(number for _, number in runs)
        if num_blocks * self._block_tokens >= one.num_prompt + self._block_tokens:
            raise self._line.error(
                f"{place}: {num_blocks} blocks of {self._block_tokens} for {one.num_prompt} tokens"
            )
        blocks = BlockRuns(tuple((self._first_id + first, number) for first, number in runs))
        self.next_id = max([self.next_id, *(first + number for first, number in blocks.runs)])
        return SizedPrompt(one.num_prompt, blocks, self._block_tokens)


def _runs_of(ids: list[int]) -> list[tuple[int, int]]:
    """Return ids as runs of consecutive ones."""
    starts = [0, *(at for at, (one, other) in enumerate(pairwise(ids), 1) if other != one + 1), len(ids)]
    return [(ids[start], end - start) for start, end in pairwise(starts) if end > start]
