"""Random faults of planned runs, in virtual time: servers die, hang, refuse and cannot start, and the run
itself is killed and begun again. In the end there are the same answers, and no call was saved twice.

Set STRETTO_FAULT_RUNS to run more than a normal run does.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import pytest
from support.planned_runs import APP, PLAN, run_requests
from support.runtime_engines import ServerEngine
from support.virtual_loop import VirtualLoop

from stretto.cluster.kv_events import KVEvent
from stretto.model.errors import EngineUnavailable
from stretto.model.replica import Replica
from stretto.model.tasks import Done, Failed, LLMEvent, LLMTask, Started
from stretto.planner.running.calls import CallBook
from stretto.planner.running.drive import DrivenRun, drive
from stretto.planner.running.planned_calls import CallEnded
from stretto.planner.running.request_store import stored
from stretto.planner.running.saved_calls import saved_calls_of
from stretto.runtime.journal.lines import JournalEntry

NUM_RUNS = int(os.environ.get("STRETTO_FAULT_RUNS", "12"))
HUNG = 427
"""Seed of a run in which a server hangs while it is drained, and is killed without a word."""
_MOST_LIVES = 40
_COMMIT_S = 0.05

REQUESTS = run_requests(8)


@dataclass
class Faults:
    """How often servers fail, and what else is drawn."""

    draw: random.Random
    starts: float = 0.0
    dies: float = 0.0
    refuses: float = 0.0
    hangs: float = 0.0
    num_seen: Counter[str] = field(default_factory=Counter, init=False)

    def happens(self, name: str) -> bool:
        has_happened: bool = self.draw.random() < getattr(self, name)
        self.num_seen[name] += has_happened
        return has_happened


class Frail(ServerEngine):
    """A server whose answers are hashes of their prompts, if they come."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._death = asyncio.Event()

    async def start(self) -> None:
        await asyncio.sleep(self._faults.draw.uniform(0.0, 20.0))
        if self._faults.happens("starts"):
            raise EngineUnavailable("it ran out of memory")

    async def watch(self, report: Callable[[Sequence[KVEvent]], None]) -> None:
        await self._death.wait()
        raise EngineUnavailable("it was killed")

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        emit(Started(task.id))
        await asyncio.sleep(self._faults.draw.uniform(0.1, 15.0))
        if self._faults.happens("dies"):
            self._death.set()
        if self._faults.happens("refuses"):
            emit(Failed(task.id, EngineUnavailable("come back later")))
            return
        if self._faults.happens("hangs"):
            await asyncio.Event().wait()
        text = "".join(segment.text for segment in task.prompt)
        emit(Done(task.id, blake2b(text.encode(), digest_size=6).hexdigest()))


class Memory:
    """A journal in memory: what is added is saved a little later, unless the run is killed before."""

    def __init__(self, saved: list[JournalEntry]) -> None:
        self.is_dead = False
        self._saved = saved

    def add(self, entry: JournalEntry, then: Callable[[], None]) -> None:
        def save() -> None:
            if not self.is_dead:
                self._saved.append(entry)
                then()

        asyncio.get_running_loop().call_later(_COMMIT_S, save)


def live(faults: Faults, saved: list[JournalEntry], killed_s: float | None) -> list[CallEnded]:
    """Run from what is saved until the end, or until killed; return the requests that have ended."""
    requests = stored(REQUESTS)
    book = CallBook(APP, requests)
    ended = list(book.resume(saved_calls_of(list(saved), requests)))

    async def main() -> None:
        memory: Any = Memory(saved)
        replica = Replica(Frail, faults, runs_in="loop", start_timeout_s=60)
        run = DrivenRun(APP, PLAN, lambda planned: replica, book, ended.append, lambda: None)
        running = asyncio.create_task(drive(run, memory))
        await asyncio.wait([running], timeout=killed_s)
        if not running.done():
            memory.is_dead = True
            running.cancel()
            await asyncio.wait([running])
            return
        await asyncio.sleep(1.0)  # the last answers are saved
        running.result()

    if book.num_requests_left:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(main())
    return ended


def answers(ended: Sequence[CallEnded]) -> dict[str, dict[str, list[str]]]:
    return {
        one.id: {name: [answer.text for answer in given] for name, given in one.answers.items()}
        for one in ended
        if one.error is None
    }


@pytest.fixture(scope="module")
def whole() -> dict[str, dict[str, list[str]]]:
    """The answers of a run without faults."""
    found = answers(live(Faults(random.Random(0)), [], None))
    assert found.keys() == {request.id for request in REQUESTS}
    return found


@pytest.mark.parametrize("seed", sorted({*range(NUM_RUNS), HUNG}))
def test_the_same_answers_come_in_the_end_whatever_fails(
    seed: int, whole: dict[str, dict[str, list[str]]]
) -> None:
    draw = random.Random(seed)
    saved = list[JournalEntry]()
    for _ in range(_MOST_LIVES):
        faults = Faults(draw, *(draw.choice((0.0, 0.05, 0.3)) for _ in range(4)))
        ended = live(faults, saved, draw.choice((None, draw.uniform(0.0, 200.0))))
        assert max(Counter(one.id for one in ended).values(), default=1) == 1
        if answers(ended).keys() == whole.keys():
            break
    assert answers(ended) == whole
    assert len({entry.key for entry in saved}) == len(saved) == _num_calls()


def test_every_kind_of_fault_happens() -> None:
    """The other test would show nothing if servers never failed."""
    often = Faults(random.Random(1), starts=0.3, dies=0.3, refuses=0.3, hangs=0.3)
    live(often, [], None)
    assert all(often.num_seen[name] for name in ("starts", "dies", "refuses", "hangs"))


def _num_calls() -> int:
    return sum(CallBook(APP, stored(REQUESTS)).num_left.values())
