"""Programs of a mix on the in-process engine, in real time: one run, and what the engine can do."""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch

from benchmarks.gpu.agents import ARMS, deployment
from benchmarks.gpu.forced import forced_llm
from benchmarks.programs.arena import Lone
from benchmarks.programs.contestants import ARRIVAL, contestant
from benchmarks.programs.graphs import MOST_TOKENS
from benchmarks.programs.mixes import MIXES
from benchmarks.programs.orders import CallKey
from benchmarks.programs.real.clock import RealRun
from benchmarks.programs.real.on_library import MOST_QUERIES, OnLibrary, paced_engines, with_policy
from benchmarks.programs.simulated import JudgedServers, Simulation
from benchmarks.programs.work import (
    CHAT,
    MAP_REDUCE,
    ONE_CALL_KINDS,
    WARM_SHARE,
    MixedProgram,
    MixedQuery,
    answer_text,
    text_of,
    written_tokens,
)
from stretto.model.deployment import Deployment
from stretto.model.tasks import Done, LLMTask
from stretto.runtime.runtime import Runtime
from stretto.sched.actions import Action, Admit
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event

BY_ARRIVAL, DEFAULT_ORDER = "in order of arrival", "default"
"""Arms, as the runs of agents name them."""
SEQUENCES = 16
MOST_CALLS, MOST_PASSAGES, MOST_PAUSE_S = 12, 24, 2.0
OPEN = 24
"""Programs that are there at once while capacity is measured."""
LIMIT_S = 90.0
"""Seconds after its last arrival in which a run has to end."""
_WARM_TOKENS = 24
_GAP_S = 600.0


def programs_of(mix: str, seed: str, count: int) -> tuple[MixedProgram, ...]:
    """Return about so many programs of a mix: with at most 12 calls of an agent, 2 s of a tool, and 24
    passages of a map-reduce.
    """
    return tuple(_cut(one) for one in MIXES[mix].draw(f"gpu/{seed}", count / MIXES[mix].num_programs))


def _cut(program: MixedProgram) -> MixedProgram:
    most = MOST_PASSAGES if program.kind == MAP_REDUCE else None
    queries = [
        replace(one, texts=one.texts[:most], pause_s=min(one.pause_s, MOST_PAUSE_S))
        for one in program.queries[:MOST_CALLS]
    ]
    return replace(program, queries=tuple(queries))


def lone_of(programs: Sequence[MixedProgram]) -> Lone:
    """Return what programs take alone on the emulated server of `benchmarks.programs`, in virtual time."""
    servers = JudgedServers(1, SEQUENCES)
    simulation = Simulation(servers, programs, contestant(ARRIVAL).policy)
    for number, program in enumerate(programs):
        simulation.start(program, number * _GAP_S)
    run = simulation.finish()
    work_s = {key: servers.work_s(usage) for key, usage in run.usages.items()}
    return Lone({name: one.latency_s for name, one in run.times.items()}, work_s)


class Watched(OnLibrary):
    """Programs on the library, where a conversation goes on from the answers that were given.

    Attributes:
        ends: time of the end of each call, in seconds, with its key.
    """

    def __init__(self, engines: Sequence[Deployment], found: RealRun, programs: Sequence[MixedProgram]):
        super().__init__(engines, found)
        self.ends: list[tuple[float, CallKey]] = []
        self.longest_hold_s = 0.0
        self._answers = found.answers
        queries = [query for one in programs for query in one.queries]
        self._kinds = {query.name: query.kind for query in queries}
        one_call = [query for query in queries if query.kind in ONE_CALL_KINDS]
        self._writers = {answer_text(query.name, query.kind): query.name for query in one_call}

    async def ask(self, program: MixedProgram, query: MixedQuery) -> str:
        """Run a query with the real answers to those before, and return its answer."""
        texts = tuple(self._answers.get(self._writers.get(text, ""), text) for text in query.texts)
        return await super().ask(program, replace(query, texts=texts))

    def length(self, task: LLMTask) -> int:
        """Return the tokens of the answer of a task."""
        name = self._names[task.query]
        kind = self._kinds.get(name)
        if kind is None:
            return _WARM_TOKENS
        step = "text" if kind in ONE_CALL_KINDS else task.step
        return min(MOST_TOKENS, written_tokens(name, kind, step, task.item))

    def on_action(self, action: Action, now_s: float) -> None:
        """Note holds too."""
        super().on_action(action, now_s)
        if isinstance(action, Admit):
            self.longest_hold_s = max(self.longest_hold_s, action.held_s)

    def on_event(self, event: Event, now_s: float) -> None:
        """Note ends of calls too."""
        if isinstance(event, LLMReport) and isinstance(event.event, Done):
            key = self._tasks.get(event.event.task)
            if key is not None and key[0] in self._kinds:
                self.ends.append((time.monotonic(), key))
        super().on_event(event, now_s)


Work: TypeAlias = Callable[[Watched, RealRun], Awaitable[None]]
"""What is done with watched programs: it notes their answers and times in the run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of programs on a real engine, and the seconds that it took with the engine's start."""

    watched: Watched
    found: RealRun
    whole_s: float


class Place:
    """The engine of a folder's checkpoint, made anew for each run."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self._given = given
        self._folder = folder

    def run(self, arm: str, programs: Sequence[MixedProgram], limit_s: float, work: Work) -> Outcome:
        """Do something with watched programs in an arm, after a few chats to warm up.

        Raises:
            TimeoutError: it took longer than `limit_s`.
        """
        begun_s = time.monotonic()
        watched, found = asyncio.run(self._run(arm, programs, limit_s, work))
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return Outcome(watched, found, time.monotonic() - begun_s)

    async def _run(
        self, arm: str, programs: Sequence[MixedProgram], limit_s: float, work: Work
    ) -> tuple[Watched, RealRun]:
        given, found = self._given, RealRun()
        llm = deployment(self._folder, given.kv_tokens, given.device, given.dtype, arm)
        llm = llm.changed(executable=forced_llm(lambda task: watched.length(task)), timeout_s=None)
        engines = with_policy([*paced_engines(), llm], ARMS[arm].get("policy"))
        watched = Watched(engines, found, programs)
        async with Runtime(engines, observers=[watched], max_queries=MOST_QUERIES) as runtime:
            watched.runtime = runtime
            for number in (1, SEQUENCES, SEQUENCES):
                await asyncio.gather(*(_warm_up(watched, f"{number}/{place}") for place in range(number)))
            async with asyncio.timeout(limit_s):
                await work(watched, found)
        return watched, found


async def _warm_up(watched: Watched, name: str) -> None:
    chat = MixedQuery(f"warm-up/{name}", CHAT, (text_of(name, 256),))
    await watched.ask(MixedProgram(chat.name, CHAT, 0.0, (chat,)), chat)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the engine does of a mix while programs wait.

    Attributes:
        work_per_s: seconds of work, as the emulated server counts them, in a second.
        program_s: mean of the work of a program.
    """

    work_per_s: float
    program_s: float
    tokens_per_s: float

    @classmethod
    def of(cls, place: Place, mix: str, count: int) -> Capacity:
        """Measure by arrival order, with 24 programs there until none is left to come.

        Raises:
            ValueError: no more than 24 programs are to be drawn, so that none would wait.
        """
        if count <= OPEN:
            raise ValueError(f"{count} programs: capacity is measured with more than {OPEN}")
        programs = programs_of(mix, "capacity", count)
        lone = lone_of(programs)
        span_s = [0.0, 0.0]

        async def saturate(watched: Watched, found: RealRun) -> None:
            span_s[0] = time.monotonic()
            await _until_none_waits(programs, watched, found)
            span_s[1] = time.monotonic()

        outcome = place.run(BY_ARRIVAL, programs, LIMIT_S, saturate)
        until_s = span_s[1]
        since_s = span_s[0] + WARM_SHARE * (until_s - span_s[0])
        keys = [key for end_s, key in outcome.watched.ends if since_s < end_s <= until_s]
        usages = outcome.found.run.usages
        return cls(
            sum(lone.work_s[key] for key in keys) / (until_s - since_s),
            sum(lone.work_s.values()) / len(programs),
            sum(usages[key].num_output_tokens for key in keys) / (until_s - since_s),
        )


async def _until_none_waits(programs: Sequence[MixedProgram], watched: Watched, found: RealRun) -> None:
    waiting = iter(programs)

    async def serve() -> None:
        for program in waiting:
            for query in program.queries:
                await asyncio.sleep(query.pause_s)
                found.answers[query.name] = await watched.ask(program, query)

    tasks = [asyncio.ensure_future(serve()) for _ in range(OPEN)]
    ended, going = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in going:
        task.cancel()
    await asyncio.gather(*going, return_exceptions=True)
    for task in ended:
        task.result()
