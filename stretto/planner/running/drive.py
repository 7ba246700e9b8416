"""The driver of a run: it makes the calls on a runtime, carries the plan out, and saves what is done."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from stretto.deployment import Deployment, Engine
from stretto.errors import EngineUnavailable, InternalError, StrettoError
from stretto.planner.application import Application
from stretto.planner.plan import Plan
from stretto.planner.running.answers_watch import AnswersWatch
from stretto.planner.running.call_graphs import CallGraphs, inputs_of
from stretto.planner.running.calls import Answer, Call, CallBook, Ended
from stretto.planner.running.carrier import Abandon, Add, CarrierAction, Drain, Lost, Placed, PlanCarrier
from stretto.planner.running.fleet_watch import FleetWatch
from stretto.planner.running.plan_keeper import OnPredicted, PlanKeeper
from stretto.planner.running.replanner import Replanner
from stretto.planner.running.replicas import MakeReplica
from stretto.planner.running.requests import Message
from stretto.planner.running.saved_calls import entry_of
from stretto.planner.running.token_counts import TokenCounts
from stretto.runtime.journal.committer import Committer
from stretto.runtime.runtime import Runtime

_WINDOW = 2048
"""Calls of a node that the runtime has at once; the others wait here, where they cost less."""

_RECOVER_S = 900.0
"""Seconds that a call waits while its node's only replicas are starting, or suspected to be down."""


@dataclass(frozen=True, slots=True)
class Replanning:
    """What a run needs to plan again.

    Attributes:
        planned_s: predicted seconds of the plan.
        answers: lengths of the answers of earlier runs; those of this run are noted in it.
    """

    replanner: Replanner
    planned_s: float
    answers: AnswersWatch
    on_predicted: OnPredicted


@dataclass(frozen=True, slots=True)
class Run:
    """A run to be driven.

    Attributes:
        book: calls to make; those of earlier runs are answered in it.
        on_ended: called with each request that has ended. An answer is on the disk by then.
        on_call: called after each call that has ended.
        replanning: what plans again; None to keep to the plan.
    """

    app: Application
    plan: Plan
    make: MakeReplica
    book: CallBook
    on_ended: Callable[[Ended], None]
    on_call: Callable[[], None]
    replanning: Replanning | None = None


async def drive(run: Run, committer: Committer) -> None:
    """Make all calls of a run, and end when all its requests have ended and all its replicas have stopped.

    Raises:
        NotSaved: an answer cannot be written to the journal.
    """
    watch, counts = FleetWatch(run.make), TokenCounts()
    names = [node.name for node in run.app.nodes]
    runtime = Runtime(
        [Deployment(_engine(name)) for name in names],
        observers=[watch, counts, *([run.replanning.answers] if run.replanning else [])],
        max_queries=_WINDOW * len(names),
    )
    try:
        async with runtime, asyncio.TaskGroup() as tasks:
            await _Driver(run, committer, runtime, watch, counts, tasks).run()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


class _Driver:
    def __init__(
        self,
        run: Run,
        committer: Committer,
        runtime: Runtime,
        watch: FleetWatch,
        counts: TokenCounts,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._run = run
        self._book = run.book
        self._committer = committer
        self._runtime = runtime
        self._watch = watch
        self._counts = counts
        self._tasks = tasks
        self._graphs = CallGraphs()
        self._carrier = PlanCarrier(run.app, run.plan, run.book.num_left)
        self._queues: dict[str, deque[Call]] = {node.name: deque() for node in run.app.nodes}
        self._calls: dict[str, set[asyncio.Task[None]]] = {name: set() for name in self._queues}
        self._abandoned: dict[str, StrettoError] = {}
        self._keeper = self._keeper_of(run.replanning) if run.replanning else None

    async def run(self) -> None:
        """Carry the plan out until everything has ended."""
        self._start(self._book.ready())
        self._carry_out(self._carrier.advance())
        keeping = self._tasks.create_task(self._keeper.run()) if self._keeper else None
        while self._book.num_requests_left or self._carrier.running:
            await self._watch.changed.wait()
            self._watch.changed.clear()
            for placed in self._watch.gone(self._runtime):
                self._carry_out(self._carrier.gone(placed))
        if keeping is not None:
            keeping.cancel()

    def _start(self, calls: Iterable[Call]) -> None:
        """Start calls, or let them wait for earlier ones of their nodes."""
        names = dict[str, None]()
        for call in calls:
            self._queues[call.node].append(call)
            names[call.node] = None
        for name in names:
            self._fill_window(name)

    def _fill_window(self, name: str) -> None:
        queue, running = self._queues[name], self._calls[name]
        while queue and len(running) < _WINDOW:
            call = queue.popleft()
            if self._book.has(call):
                prompt = self._book.prompt(call)
                running.add(self._tasks.create_task(self._call(call, prompt)))

    async def _call(self, call: Call, prompt: Sequence[Message]) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            result = self._abandoned.get(call.node) or await self._ask(call, prompt)
        except asyncio.CancelledError:
            if call.node not in self._abandoned:
                raise
            result = self._abandoned[call.node]
        finally:
            self._calls[call.node].discard(task)
        if isinstance(result, StrettoError):
            progress = self._book.failed(call, result)
            self._show(progress.ended)
        else:
            progress = self._book.answered(call, result)
            entry = entry_of(self._book.request(call), call, result)
            self._committer.add(entry, lambda: self._show(progress.ended))
        self._start(progress.ready)
        self._fill_window(call.node)
        self._carry_out(self._carrier.advance())
        self._run.on_call()
        if not self._book.num_requests_left:
            self._watch.changed.set()

    async def _ask(self, call: Call, prompt: Sequence[Message]) -> Answer | StrettoError:
        """Make a call; return its answer, or the error that it failed with."""
        inputs = inputs_of(prompt)
        try:
            graph = self._graphs.of(call.node, prompt, self._book.decode(call))
            outputs = await self._runtime.run(graph, inputs, passes="none")
        except InternalError:
            raise
        except StrettoError as error:
            return error
        usage = self._counts.take(inputs)
        return Answer(str(outputs["answer"]), usage.num_prompt_tokens, usage.num_output_tokens)

    def _show(self, ended: Ended | None) -> None:
        if ended is not None:
            self._run.on_ended(ended)

    def _carry_out(self, actions: Iterable[CarrierAction]) -> None:
        for action in actions:
            match action:
                case Add(placed):
                    self._watch.add(self._runtime, placed)
                    if self._keeper:
                        self._keeper.added(placed)
                case Drain(placed, how):
                    self._watch.drain(self._runtime, placed, how)
                case Lost(placed):
                    self._lost(placed)
                case Abandon(node, reason):
                    self._abandon(node, reason)

    def _lost(self, placed: Placed) -> None:
        if self._keeper:
            self._keeper.lost(placed.replica)
        elif self._carrier.has_replicas(placed.node):
            self._carry_out(self._carrier.advance())
        else:
            self._carry_out(self._carrier.abandon(placed.node))

    def _keeper_of(self, replanning: Replanning) -> PlanKeeper:
        return PlanKeeper(
            replanning.replanner,
            replanning.planned_s,
            self._book,
            self._carrier,
            replanning.answers,
            self._carry_out,
            replanning.on_predicted,
        )

    def _abandon(self, node: str, reason: str) -> None:
        """Fail all calls of a node that cannot run any more; those that wait fail when they are started."""
        last_error = self._runtime.system.schedulers[node].instances.fleet.last_error
        why = "; ".join(part for part in (reason, str(last_error or "")) if part)
        self._abandoned[node] = EngineUnavailable(f"node {node!r} has no replica any more: {why}")
        for task in self._calls[node]:
            task.cancel()


def _engine(node: str) -> Engine:
    return Engine(
        node, contract="llm", keeps_state=True, no_replica_s=math.inf, recover_s=_RECOVER_S, max_running=512
    )
