"""The mixes of programs. Equal names, seeds and numbers give equal programs, at every load."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random

from benchmarks.programs import recorded
from benchmarks.programs.work import (
    AGENT,
    BATCH,
    CHAT,
    MAP_REDUCE,
    RAG,
    MixedProgram,
    MixedQuery,
    answer_text,
    text_of,
)

BURSTING, STEADY = "bursting", "steady"
"""Tenants with equal shares: the first asks for five times its share in its bursts."""

_SYSTEM = text_of("You are a helpful assistant.", 120)
_TOOLS = text_of("You may call these tools.", 400)
_MEAN_TURNS = 4
_BURSTS = 4
_BURSTS_SHARE = 0.2
_MAX_WIDTH = 96
_WINDOW = 1.5
_PASSAGE_TOKENS = 250


@dataclass(frozen=True, slots=True)
class ProgramMix:
    """A mix of programs.

    Attributes:
        parts: number of programs of each part, for each hundred of the mix.
        num_programs: programs of one run on one instance of 16 sequences.
        what: the mix in words.
    """

    name: str
    parts: Mapping[str, int]
    num_programs: int
    what: str

    def draw(self, seed: str, scale: float = 1.0) -> tuple[MixedProgram, ...]:
        """Return programs in the order of their arrival."""
        programs: list[MixedProgram] = []
        for part, share in self.parts.items():
            count = max(1, round(self.num_programs * scale * share / 100))
            programs += _PARTS[part](f"{self.name}/{seed}/{part}", count)
        return tuple(sorted(programs, key=lambda one: (one.at, one.name)))


def _chats(seed: str, count: int) -> Iterator[MixedProgram]:
    """Yield turns of conversations. Each turn is a program; a person thinks between two of them.

    A conversation has begun before its first turn here, so that all times of the run are alike: the turns of
    a conversation are spread over the whole run and go on at its beginning where they pass its end.
    """
    draw = Random(seed)
    num_drawn = number = 0
    while num_drawn < count:
        texts, at = [_SYSTEM], draw.random()
        for turn in range(min(count - num_drawn, _geometric(draw, _MEAN_TURNS))):
            name = f"{seed}/{number}/{turn}"
            texts.append(text_of(name, recorded.chat_message_tokens(draw)))
            yield MixedProgram(name, CHAT, at % 1.0, (MixedQuery(name, CHAT, tuple(texts)),))
            texts.append(answer_text(name, CHAT))
            at += 0.05 + draw.expovariate(10)
            num_drawn += 1
        number += 1


def _agents(seed: str, count: int) -> Iterator[MixedProgram]:
    """Yield tasks of agents: calls of the LLM with tools in between, each with the whole history."""
    draw = Random(seed)
    for number in range(count):
        name = f"{seed}/{number}"
        texts = [_TOOLS, text_of(name, recorded.agent_first_tokens(draw))]
        queries: list[MixedQuery] = []
        for turn in range(recorded.agent_calls(draw)):
            asked = f"{name}/{turn}"
            pause_s = recorded.tool_s(draw) if turn else 0.0
            queries.append(MixedQuery(asked, AGENT, tuple(texts), pause_s))
            texts += [answer_text(asked, AGENT), text_of(asked, recorded.agent_added_tokens(draw))]
        yield MixedProgram(name, AGENT, draw.random(), tuple(queries))


def _rag(seed: str, count: int) -> Iterator[MixedProgram]:
    draw = Random(seed)
    for number in range(count):
        name = f"{seed}/{number}"
        query = MixedQuery(name, RAG, (text_of(name, recorded.chat_message_tokens(draw)),))
        yield MixedProgram(name, RAG, draw.random(), (query,))


def _map_reduce(seed: str, count: int) -> Iterator[MixedProgram]:
    """Yield summaries of documents whose numbers of passages have a heavy tail."""
    draw = Random(seed)
    for number in range(count):
        name, width = f"{seed}/{number}", recorded.pareto(draw, 2, 1.1, _MAX_WIDTH)
        passages = tuple(text_of(f"{name}/{place}", _PASSAGE_TOKENS) for place in range(width))
        query = MixedQuery(name, MAP_REDUCE, passages)
        yield MixedProgram(name, MAP_REDUCE, draw.random(), (query,))


def _bursts(seed: str, count: int) -> Iterator[MixedProgram]:
    """Yield summaries of a tenant that comes in bursts: all of them within a fifth of the time."""
    for one in _map_reduce(seed, count):
        burst, place = divmod(one.at * _BURSTS, 1.0)
        at = (burst + _BURSTS_SHARE * place + (1 - _BURSTS_SHARE) / 2) / _BURSTS
        yield replace(one, at=at, tenant=BURSTING)


def _steady(seed: str, count: int) -> Iterator[MixedProgram]:
    return (replace(one, tenant=STEADY) for one in _rag(seed, count))


def _with_deadlines(
    draw_part: Callable[[str, int], Iterator[MixedProgram]],
) -> Callable[..., Iterator[MixedProgram]]:
    def part(seed: str, count: int) -> Iterator[MixedProgram]:
        draw = Random(f"deadlines/{seed}")
        for one in draw_part(seed, count):
            yield replace(one, deadline=draw.uniform(2.0, 8.0))

    return part


def _batch(seed: str, count: int) -> Iterator[MixedProgram]:
    """Yield offline work that is all there at the beginning, with a window in which it can be done."""
    draw = Random(seed)
    for number in range(count):
        name = f"{seed}/{number}"
        query = MixedQuery(name, BATCH, (text_of(name, recorded.chat_message_tokens(draw) + 400),))
        yield MixedProgram(name, BATCH, 0.0, (query,), objective="offline", window=_WINDOW)


def _geometric(draw: Random, mean: float) -> int:
    return 1 + bisect(list(accumulate((1 - 1 / mean) ** k / mean for k in range(20))), draw.random())


_PARTS: Mapping[str, Callable[[str, int], Iterator[MixedProgram]]] = {
    "chats": _chats,
    "agents": _agents,
    "rag": _rag,
    "map_reduce": _map_reduce,
    "bursts": _bursts,
    "steady": _steady,
    "urgent_chats": _with_deadlines(_chats),
    "urgent_rag": _with_deadlines(_rag),
    "urgent_map_reduce": _with_deadlines(_map_reduce),
    "batch": _batch,
}
_FOUR = {"chats": 55, "rag": 20, "agents": 15, "map_reduce": 10}
MIXES: Mapping[str, ProgramMix] = {
    mix.name: mix
    for mix in (
        ProgramMix("chats", {"chats": 100}, 1000, "chats"),
        ProgramMix("chats_agents", {"chats": 80, "agents": 20}, 900, "chats beside agents with tools"),
        ProgramMix("four_apps", _FOUR, 600, "chats, RAG, agents and map-reduce"),
        ProgramMix("pareto", {"map_reduce": 100}, 300, "map-reduce of Pareto widths"),
        ProgramMix("bursts", {"steady": 45, "bursts": 55}, 360, "RAG beside bursts of another tenant"),
        ProgramMix(
            "deadlines",
            {"urgent_chats": 60, "urgent_rag": 25, "urgent_map_reduce": 15},
            500,
            "chats, RAG and map-reduce with deadlines",
        ),
        ProgramMix("batch", {**_FOUR, "batch": 60}, 480, "offline work beside four apps"),
    )
}
