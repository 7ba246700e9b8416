"""The driver of a run: it makes the calls on a runtime, carries the plan out, and saves what is done."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from stretto.graph.one_call import CallGraphs, inputs_of_call
from stretto.model.deployment import Deployment
from stretto.model.errors import EngineUnavailable, InternalError, StrettoError
from stretto.planner.application import Application, ModelNode
from stretto.planner.plan import Plan
from stretto.planner.running.answers_watch import AnswersWatch
from stretto.planner.running.book import Book
from stretto.planner.running.call_ends import CallEnds, result_of
from stretto.planner.running.call_queue import CallQueue
from stretto.planner.running.fleet_watch import FleetWatch
from stretto.planner.running.plan_executor import (
    Abandon,
    Add,
    DrainReplica,
    ExecutorAction,
    Lost,
    PlacedReplica,
    PlanExecutor,
)
from stretto.planner.running.plan_keeper import OnPredicted, PlanKeeper
from stretto.planner.running.planned_calls import AskedCall, CallAnswer, CallEnded, PlannedCall
from stretto.planner.running.replanner import Replanner
from stretto.planner.running.replicas import MakeReplica, engine_of_model
from stretto.planner.running.sent_lines import AskLines
from stretto.runtime.journal.committer import Committer
from stretto.runtime.runtime import Runtime
from stretto.sched.actions import Reply
from stretto.sched.observer import Observer

_WINDOW = 4608
"""Calls of a model that the runtime has at once, more than eight replicas run. The others wait here, where
they cost less."""
_MOST_ANSWERS = 128
"""Most answers to one line of a Batch file, each of which is a query."""


@dataclass(frozen=True, slots=True)
class Replanning:
    """The means by which a run plans again.

    Attributes:
        planned_s: predicted seconds of the plan.
        answers: lengths of the answers of earlier runs; those of this run are noted in it.
    """

    replanner: Replanner
    planned_s: float
    answers: AnswersWatch
    on_predicted: OnPredicted


@dataclass(frozen=True, slots=True)
class DrivenRun:
    """A run to be driven.

    Attributes:
        book: calls to make; those of earlier runs are answered in it.
        on_ended: called with each request that has ended. An answer is on the disk by then.
        on_calls: called after calls have ended, once for all that ended together.
        replanning: what plans again; None to keep to the plan.
        observers: told of everything that happens.
        lines_at: makes what asks for the answers to lines that are handed on, at the runtime of the run.
    """

    app: Application
    plan: Plan
    make: MakeReplica
    book: Book
    on_ended: Callable[[CallEnded], None]
    on_calls: Callable[[], None]
    replanning: Replanning | None = None
    observers: Sequence[Observer] = ()
    lines_at: Callable[[Runtime], AskLines] | None = None


async def drive(run: DrivenRun, committer: Committer) -> None:
    """Make all calls of a run, and end when all its requests have ended and all its replicas have stopped.

    Raises:
        NotSaved: an answer cannot be written to the journal.
    """
    watch = FleetWatch(run.make)
    models = list(run.app.models)
    observers = [watch, *([run.replanning.answers] if run.replanning else []), *run.observers]
    async with Runtime(
        [Deployment(engine_of_model(model)) for model in models],
        observers=observers,
        max_queries=_WINDOW * _MOST_ANSWERS * len(models),
    ) as runtime:
        driver = _Driver(run, committer, runtime, watch)
        try:
            await driver.run()
        finally:
            driver.stop()


class _Driver:
    """The state of a run. Calls end in callbacks; what follows from all that have ended is done together."""

    def __init__(self, run: DrivenRun, committer: Committer, runtime: Runtime, watch: FleetWatch) -> None:
        self._run = run
        self._lines = None if run.lines_at is None else run.lines_at(runtime)
        self._book = run.book
        self._ends = CallEnds(run.book, committer, run.on_ended)
        self._runtime = runtime
        self._watch = watch
        self._graphs = CallGraphs()
        self._executor = PlanExecutor(run.app, run.plan, run.book.num_left, lambda: run.book.num_growing > 0)
        self._queues = {model: CallQueue() for model in run.app.models}
        self._calls: dict[str, dict[PlannedCall, Callable[[], None]]] = {model: {} for model in self._queues}
        self._abandoned: dict[str, StrettoError] = {}
        self._new = self._book.ready()
        self._failure: Exception | None = None
        self._has_stopped = False
        self._keeper: PlanKeeper | None = None
        if (again := run.replanning) is not None:
            self._keeper = PlanKeeper(
                again.replanner,
                again.planned_s,
                run.book,
                self._executor,
                again.answers,
                self._carry_out,
                again.on_predicted,
            )

    async def run(self) -> None:
        """Carry the plan out until everything has ended."""
        self._go_on()
        keeping = asyncio.create_task(self._keep_plan())
        try:
            while self._book.num_requests_left or self._executor.running:
                await self._watch.changed.wait()
                self._watch.changed.clear()
                for placed in self._watch.gone(self._runtime):
                    self._carry_out(self._executor.gone(placed))
                self._go_on()
        finally:
            keeping.cancel()

    async def _keep_plan(self) -> None:
        """Keep the plan up to date. What is raised ends the run."""
        if self._keeper is None:
            return
        try:
            await self._keeper.run()
        except Exception as failure:
            self._failure = self._failure or failure
            self._watch.changed.set()

    def stop(self) -> None:
        """Take no notice any more of calls that end."""
        self._has_stopped = True
        if self._lines is not None:
            self._lines.close()

    def _go_on(self) -> None:
        """Do what follows from the calls that have ended. Raises what has failed in one of them."""
        if self._failure is not None:
            raise self._failure
        self._carry_out(self._executor.advance())
        for model in self._queues:
            while self._draw(model):
                self._fill_window(model)
            self._fill_window(model)
        self._carry_out(self._executor.advance())  # calls that cannot begin have ended
        has_lost = self._keeper is not None and self._keeper.has_lost
        num_ready = self._book.num_ready
        if num_ready is not None and not has_lost and not any(self._calls.values()):
            waiting = [model for model, queue in self._queues.items() if queue]
            self._carry_out(self._executor.stalled(waiting, num_ready))
        self._run.on_calls()

    def _draw(self, model: str) -> bool:
        """Queue new calls until a model has enough at hand; return whether there were any."""
        has_drawn = False
        while self._wants_more(model) and (progress := next(self._new, None)) is not None:
            for call in self._ends.begun(progress):
                self._queues[self._book.model_of(call)].append(call)
            has_drawn = True
        return has_drawn

    def _wants_more(self, model: str) -> bool:
        """Return whether a model has fewer calls at hand than the runtime takes, and new requests begin with
        it.
        """
        num_at_hand = len(self._queues[model]) + len(self._calls[model])
        return num_at_hand < _WINDOW and _total(self._book.num_to_begin, self._run.app.models[model]) > 0

    def _fill_window(self, model: str) -> None:
        queue, running = self._queues[model], self._calls[model]
        share = self._share_at_hand(model)
        num_to_begin = _total(self._book.num_to_begin, self._run.app.models[model])
        most = min(_WINDOW, math.ceil((len(queue) + len(running) + num_to_begin) * share))
        while queue and len(running) < most:
            call = queue.take(share)
            if not self._book.has(call):
                continue
            if model in self._abandoned:
                self._note(call, self._abandoned[model])
                continue
            asked = self._book.asked(call)
            try:
                running[call] = self._begin(model, call, asked)
            except InternalError:
                raise
            except StrettoError as error:
                self._note(call, error)

    def _share_at_hand(self, model: str) -> float:
        """Return the share of a model's calls that its replicas that are ready may have, of those that can be
        made now: calls that come later are no reason to give one replica all that there are. The others are
        for replicas that are still to start.
        """
        weights = self._executor.weights(model)
        if model in self._abandoned:
            return 1.0
        if not weights:
            return 0.0
        at_hand = sum(weights[placed] for placed in weights if self._watch.is_ready(self._runtime, placed))
        return at_hand / sum(weights.values())

    def _begin(self, model: str, call: PlannedCall, asked: AskedCall) -> Callable[[], None]:
        """Have the runtime make a call; return what cancels it."""
        if asked.line is not None:
            assert self._lines is not None, "lines are handed on where something takes them"
            return self._lines.begin(asked.line, partial(self._on_end, model, call))
        graph = self._graphs.of(model, asked.prompt, asked.decode, call.node)

        def on_reply(reply: Reply) -> None:
            self._on_end(model, call, result_of(reply))

        return self._runtime.start(graph, inputs_of_call(asked.prompt), on_reply, passes="none")

    def _on_end(self, model: str, call: PlannedCall, result: CallAnswer | StrettoError) -> None:
        """Note the end of a call. What is raised ends the run, and not the runtime, which calls this."""
        if self._has_stopped:
            return
        del self._calls[model][call]
        self._watch.changed.set()
        try:
            self._note(call, self._abandoned.get(model) or result)
        except Exception as failure:
            self._failure = self._failure or failure

    def _note(self, call: PlannedCall, result: CallAnswer | StrettoError) -> None:
        """Note the answer to a call, or the error that it failed with, and queue the calls that follow."""
        for ready in self._ends.note(call, result):
            self._queues[self._book.model_of(ready)].append(ready)

    def _carry_out(self, actions: Iterable[ExecutorAction]) -> None:
        for action in actions:
            match action:
                case Add(placed):
                    self._watch.add(self._runtime, placed)
                    if self._keeper:
                        self._keeper.added(placed)
                case DrainReplica(placed, how):
                    self._watch.drain(self._runtime, placed, how)
                case Lost(placed):
                    self._lost(placed)
                case Abandon(model, reason):
                    self._abandon(model, reason)

    def _lost(self, placed: PlacedReplica) -> None:
        if self._keeper:
            self._keeper.lost(placed.replica)
        elif self._executor.weights(placed.model):
            self._carry_out(self._executor.advance())
        else:
            self._carry_out(self._executor.abandon(placed.model))

    def _abandon(self, model: str, reason: str) -> None:
        """Fail all calls of a model that cannot run any more; those that wait fail when they are started."""
        last_error = self._runtime.system.schedulers[model].instances.fleet.last_error
        why = "; ".join(part for part in (reason, str(last_error or "")) if part)
        names = ", ".join(repr(node.name) for node in self._run.app.models[model])
        self._abandoned[model] = EngineUnavailable(f"node {names} has no replica any more: {why}")
        for cancel in list(self._calls[model].values()):
            cancel()
        self._watch.changed.set()


def _total(numbers: Mapping[str, int], nodes: Iterable[ModelNode]) -> int:
    return sum(numbers[node.name] for node in nodes)
