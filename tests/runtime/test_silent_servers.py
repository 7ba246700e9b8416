"""A server that says nothing: if it does not answer a health check either, its requests go elsewhere soon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from support.runtime_engines import COMPLETE, ServerEngine
from support.virtual_loop import in_virtual_time

from stretto import Runtime
from stretto.model.deployment import Deployment
from stretto.model.errors import BadReply, EngineBusy, EngineUnavailable
from stretto.model.replica import Engine, Replica
from stretto.model.tasks import Done, LLMEvent, LLMTask, Started


@dataclass(frozen=True)
class Habits:
    """What a server does: it is silent for some seconds, and a health check raises something, or hangs."""

    silent_s: float = 1e9
    raises: Exception | None = None
    hangs: bool = False
    quiet_s: float | None = 20


class Quiet(ServerEngine):
    """A server that says nothing for a while, and then all at once."""

    def __init__(self, habits: Habits) -> None:
        self._habits = habits
        self.num_probes = 0

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        emit(Started(task.id))
        await asyncio.sleep(self._habits.silent_s)
        emit(Done(task.id, None if task.decode is None else "at last"))

    async def probe(self) -> None:
        if self._habits.hangs:
            await asyncio.Event().wait()
        if self._habits.raises is not None:
            raise self._habits.raises


def seconds_to_the_end(*servers: Habits) -> float:
    """Run a query on servers with these habits, first things first; return the seconds that it took."""

    async def main() -> float:
        engine = Engine("llm", "llm", placement="round_robin", recover_s=20)
        replicas = tuple(Replica(Quiet, habits, runs_in="loop") for habits in servers)
        async with Runtime([Deployment(engine, replicas)]) as runtime:
            begun_s = asyncio.get_running_loop().time()
            outputs = await runtime.run(COMPLETE, {"text": "x"})
            assert outputs == {"answer": "at last"}
            return asyncio.get_running_loop().time() - begun_s

    return in_virtual_time(main)()


@pytest.mark.parametrize("hanging", [Habits(hangs=True), Habits(raises=EngineUnavailable("reset"))])
def test_a_server_that_hangs_is_noticed_in_half_a_minute(hanging: Habits) -> None:
    assert 20 <= seconds_to_the_end(hanging, Habits(silent_s=1)) <= 32


@pytest.mark.parametrize(
    "alive", [Habits(250), Habits(250, BadReply("no such path")), Habits(250, EngineBusy("503"))]
)
def test_a_server_that_answers_health_checks_is_waited_for(alive: Habits) -> None:
    assert seconds_to_the_end(alive) == pytest.approx(250, abs=1)


def test_a_server_is_only_asked_where_it_is_known_to_answer_while_it_computes() -> None:
    assert seconds_to_the_end(Habits(250, hangs=True, quiet_s=None)) == pytest.approx(250, abs=1)


def test_the_only_server_hangs() -> None:
    with pytest.raises(EngineUnavailable):
        seconds_to_the_end(Habits(hangs=True))
