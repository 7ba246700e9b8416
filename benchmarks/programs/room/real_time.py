"""The same agents in real time, on a runtime with real engines or servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache

from benchmarks.programs.room.load import Agents, Load, Measured
from benchmarks.programs.room.sessions import Session
from stretto.graph.compile import ExecutionGraph
from stretto.model.deployment import Deployment
from stretto.sched.messages import Action, Admit, Emit, EndProgram, Event, Reply, Submit
from stretto.sched.observer import Observer
from stretto.sim.synthetic_workloads import request_graph

_DRAIN_S = 30.0


async def run_agents(
    deployments: Iterable[Deployment],
    load: Load,
    sessions: list[Session],
    seed: int,
    to_text: Callable[[str], str] = str,
) -> Measured:
    """Run a load until its end, and return what was measured.

    Args:
        to_text: makes the text that the engine reads of the text of a prompt.

    Raises:
        StrettoError: a request has failed.
    """
    from stretto.runtime.runtime import Runtime

    agents = Agents(load, sessions, seed)
    clock = _Clock(agents, to_text)
    async with Runtime(deployments, observers=(clock,), max_queries=10_000) as runtime:
        clock.start(runtime)
        agents.attach(clock)
        await clock.end(load.end_s)
    return agents.measured


class _Clock(Observer):
    """The driver of agents in real time: what the virtual driver is in virtual time."""

    def __init__(self, agents: Agents, to_text: Callable[[str], str]) -> None:
        self._agents = agents
        self._to_text = to_text
        self._start_s = 0.0
        self._names: dict[str, str] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None]
        self._timers: list[asyncio.TimerHandle] = []

    def start(self, runtime: object) -> None:
        """Begin to count time."""
        from stretto.runtime.runtime import Runtime

        assert isinstance(runtime, Runtime)
        self._runtime = runtime
        self._failed = asyncio.get_running_loop().create_future()
        self._start_s = time.monotonic()

    async def end(self, end_s: float) -> None:
        """Wait until a time, and cancel what still runs."""
        await asyncio.wait([self._failed], timeout=end_s - self.now_s)
        for timer in self._timers:
            timer.cancel()
        for task in list(self._running):
            task.cancel()
        await asyncio.wait_for(asyncio.gather(*self._running, return_exceptions=True), _DRAIN_S)
        if self._failed.done():
            self._failed.result()

    # --- what the agents call

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start_s

    def at(self, at_s: float, what: Callable[[], Iterable[Event]]) -> None:
        """Do something at a time, and send the events that come of it."""
        loop = asyncio.get_running_loop()

        def happen() -> None:
            for event in what():
                assert isinstance(event, Submit)
                task = asyncio.ensure_future(self._ask(event))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

        self._timers = [timer for timer in self._timers if timer.when() > loop.time()]
        self._timers.append(loop.call_later(max(0.0, at_s - self.now_s), happen))

    def send(self, event: EndProgram, now_s: float) -> None:
        """Say that a program has ended."""
        self._runtime.end_program(event.program)

    async def _ask(self, event: Submit) -> None:
        num_output = self._agents.lengths.pop(event.query)
        inputs = {name: self._to_text(str(text)) for name, text in event.inputs.items()}
        try:
            query = await self._runtime.submit(_graph(num_output), inputs, program=event.program)
            self._names[query.id] = event.query
            try:
                outputs = await query
            except asyncio.CancelledError:
                query.cancel()
                raise
            finally:
                self._names.pop(query.id, None)
            self._agents.on_reply(Reply(event.query, outputs))
        except Exception as error:
            if not self._failed.done():
                self._failed.set_exception(error)

    # --- what the runtime calls

    def on_action(self, action: Action, now_s: float) -> None:
        """Tell the agents, by the names that they gave."""
        if isinstance(action, Emit) and (name := self._names.get(action.query)):
            self._agents.on_action(replace(action, query=name), self.now_s)
        elif isinstance(action, Admit) and (name := self._names.get(action.task.query)):
            self._agents.on_action(replace(action, task=replace(action.task, query=name)), self.now_s)

    def on_event(self, event: Event, now_s: float) -> None:
        """Tell the agents."""
        self._agents.on_event(event, self.now_s)


@lru_cache(maxsize=4096)
def _graph(max_tokens: int) -> ExecutionGraph:
    return request_graph(max_tokens)
