"""The same agents in real time: on a runtime with real engines or servers, or with any client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Generic, TypeVar

from benchmarks.programs.room.load import Agents, Load, Measured
from benchmarks.programs.room.sessions import Session
from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.deployment import Deployment
from stretto.runtime.runtime import Runtime
from stretto.sched.actions import Action, Admit, Emit, Reply
from stretto.sched.messages import EndProgram, Event, Submit
from stretto.sched.observer import Observer
from stretto.sim.agent_load import request_graph
from stretto.sizing.job_load import JobLoad
from stretto.sizing.measured import Enough

Loads = TypeVar("Loads", bound=Agents | JobLoad)
_DRAIN_S = 30.0


class RealClock(Generic[Loads]):
    """The driver of agents in real time: what the virtual driver is in virtual time.

    A subclass sends the requests. `run` ends with the first error of one.

    Args:
        speed: seconds of the agents in a real one.
    """

    def __init__(self, agents: Loads, speed: float = 1.0) -> None:
        self.agents = agents
        self._speed = speed
        self._start_s = 0.0
        self._running: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()

    async def ask(self, event: Submit, num_output: int) -> None:
        """Send a request for as many tokens, tell the agents what became of it, and return at its end."""
        raise NotImplementedError

    async def run(self, end_s: float) -> None:
        """Run until a time, and cancel what is left."""
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._start_s = time.monotonic()
        self.agents.attach(self)
        await asyncio.wait([self._failed], timeout=end_s / self._speed)
        for timer in self._timers:
            timer.cancel()
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=_DRAIN_S)
        if self._failed.done():
            self._failed.result()

    # --- what the agents call

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return (time.monotonic() - self._start_s) * self._speed

    def at(self, at_s: float, what: Callable[[], Sequence[Event]]) -> None:
        """Do something at a time, and send the requests that come of it."""

        def happen() -> None:
            self._timers.discard(timer)
            try:
                events = what()
            except Enough as enough:
                self.end(enough)
                return
            for event in events:
                assert isinstance(event, Submit)
                task = asyncio.ensure_future(self._sent(event))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

        timer = asyncio.get_running_loop().call_later(max(0.0, at_s - self.now_s) / self._speed, happen)
        self._timers.add(timer)

    def send(self, event: EndProgram, now_s: float) -> None:
        """Say that a program has ended, where that can be said."""

    def end(self, error: Exception) -> None:
        """End the run with an error."""
        if not self._failed.done():
            self._failed.set_exception(error)

    async def _sent(self, event: Submit) -> None:
        try:
            await self.ask(event, self.agents.lengths[event.query])
        except Exception as error:
            self.end(error)


async def run_on_runtime(
    deployments: Iterable[Deployment],
    load: Load,
    sessions: Sequence[Session],
    seed: int,
    to_text: Callable[[str], str] = str,
) -> Measured:
    """Run a load on a runtime until its end, and return what was measured.

    Args:
        to_text: makes the text that the engine reads of the text of a prompt.

    Raises:
        StrettoError: a request has failed.
    """
    agents = Agents(load, sessions, seed)
    clock = RuntimeClock(agents, to_text)
    async with Runtime(deployments, observers=(clock,), max_queries=10_000) as runtime:
        clock.runtime = runtime
        await clock.run(load.end_s)
    return agents.measured


class RuntimeClock(RealClock[Loads], Observer):
    """The driver of agents whose requests are queries of a runtime, which it observes."""

    runtime: Runtime

    def __init__(self, agents: Loads, to_text: Callable[[str], str] = str, speed: float = 1.0) -> None:
        super().__init__(agents, speed)
        self._to_text = to_text
        self._names: dict[str, str] = {}

    async def ask(self, event: Submit, num_output: int) -> None:
        inputs = {name: self._to_text(str(text)) for name, text in event.inputs.items()}
        query = await self.runtime.submit(_graph(num_output), inputs, program=event.program)
        self._names[query.id] = event.query
        try:
            outputs = await query
        except asyncio.CancelledError:
            query.cancel()
            raise
        finally:
            del self._names[query.id]
        self.agents.on_reply(Reply(event.query, outputs))

    def send(self, event: EndProgram, now_s: float) -> None:
        self.runtime.end_program(event.program)

    def on_action(self, action: Action, now_s: float) -> None:
        """Tell the agents, by the names that they gave."""
        if isinstance(action, Emit) and (name := self._names.get(action.query)):
            self.agents.on_action(replace(action, query=name), self.now_s)
        elif isinstance(action, Admit) and (name := self._names.get(action.task.query)):
            self.agents.on_action(replace(action, task=replace(action.task, query=name)), self.now_s)

    def on_event(self, event: Event, now_s: float) -> None:
        """Tell the agents."""
        self.agents.on_event(event, self.now_s)


@lru_cache(maxsize=4096)
def _graph(max_tokens: int) -> ExecutionGraph:
    return request_graph(max_tokens)
