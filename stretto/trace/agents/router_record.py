"""The reader of the record that `stretto route --record` writes: a line for each request, as it ended.

A line has no prompt, but its tokens and how many of them the worker found in its cache. A request waits for
those of its program that had ended when it came, for as long as it did then. What it shares is estimated:
where a prompt is at least as long as the last one of its program, it begins with it; else with as much as
was found. What the first request of a program has found, all programs have in common.

Requests that were not answered, or whose tokens the worker has not counted, are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from msgspec import Meta

from stretto.schema.typed import Count, Seconds, Text
from stretto.trace.agents.requests import (
    After,
    AgentRequest,
    AgentTrace,
    BlockRuns,
    SizedPrompt,
    checked_trace,
)
from stretto.trace.lines import JsonLine, TraceError, json_lines

_BLOCK_TOKENS = 16
_PROGRAM_IDS = 1 << 32
"""Ids of blocks of each program; those before the first ones are common to all."""
_ANSWERED = 200
_UnixTime: TypeAlias = Annotated[float, Meta(ge=0, le=10**11, description="seconds since 1970")]


@dataclass(frozen=True, slots=True)
class _Recorded:
    name: str
    line: int
    program: str
    start_s: float
    end_s: float
    num_prompt: int
    num_cached: int
    num_output: int


def read_router_record(path: Path) -> AgentTrace:
    """Read the record of a router.

    Raises:
        TraceError: the file does not fit the format, or no request in it was answered.
    """
    found = [one for line in json_lines(path) if (one := _recorded(line)) is not None]
    if not found:
        raise TraceError(f"{path}: no request was answered with counted tokens")
    begin_s = min(one.start_s for one in found)
    programs: dict[str, list[_Recorded]] = defaultdict(list)
    for one in sorted(found, key=lambda one: (one.start_s, one.line)):
        programs[one.program].append(one)
    return checked_trace(
        path,
        (
            request
            for number, of_program in enumerate(programs.values(), 1)
            for request in _requests(of_program, number, begin_s)
        ),
    )


def _recorded(line: JsonLine) -> _Recorded | None:
    status, total_s = line.required("status", Count), line.optional("total_s", Seconds)
    num_output = line.optional("completion_tokens", Count)
    num_prompt = line.optional("prompt_tokens", Count) or line.optional("prompt_tokens_estimated", Count, 0)
    if status != _ANSWERED or total_s is None or not num_output or not num_prompt:
        return None
    end_s = line.required("time", _UnixTime)
    name = line.required("id", Text)
    return _Recorded(
        name=f"{name}, line {line.number}",
        line=line.number,
        program=f"{line.optional('tenant', Text, '')}/{line.optional('program', Text, name)}",
        start_s=end_s - total_s,
        end_s=end_s,
        num_prompt=num_prompt,
        num_cached=line.optional("cached_tokens", Count, 0),
        num_output=num_output,
    )


def _requests(program: list[_Recorded], number: int, begin_s: float) -> Iterator[AgentRequest]:
    """Yield the requests of a program, which are sorted by their beginning."""
    next_id = number * _PROGRAM_IDS
    last = BlockRuns(((0, program[0].num_cached // _BLOCK_TOKENS),))
    last_tokens = program[0].num_cached
    for place, one in enumerate(program):
        num_blocks = -(-one.num_prompt // _BLOCK_TOKENS)
        kept_tokens = last_tokens if one.num_prompt >= last_tokens else min(one.num_cached, last_tokens)
        kept = last.first(min(kept_tokens // _BLOCK_TOKENS, num_blocks))
        blocks = BlockRuns((*kept.runs, (next_id, num_blocks - len(kept))))
        next_id += num_blocks
        ended = [other for other in program[:place] if other.end_s <= one.start_s]
        needed = _not_waited_for(ended)
        yield AgentRequest(
            id=one.name,
            line=one.line,
            prompt=SizedPrompt(one.num_prompt, blocks, _BLOCK_TOKENS),
            arrival_s=0.0 if needed else one.start_s - begin_s,
            after=tuple(After(other.name, one.start_s - other.end_s) for other in needed),
            output_tokens=one.num_output,
        )
        last, last_tokens = blocks, one.num_prompt


def _not_waited_for(ended: list[_Recorded]) -> list[_Recorded]:
    """Return those that no other one of them has waited for: the rest had ended when these came."""
    latest_start_s = max((other.start_s for other in ended), default=0.0)
    return [one for one in ended if one.end_s > latest_start_s]
