"""Keeps the plan of a run up to date: predicts its end again and again, and plans what is left of it again
when that drifts away, or when a replica is lost for good.

Predictions and searches run in a thread, while the present plan is carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from stretto.planner.answers_so_far import AnswersSoFar
from stretto.planner.plan import PlannedReplica
from stretto.planner.running.answers_watch import AnswersWatch
from stretto.planner.running.aside import aside
from stretto.planner.running.book import Book
from stretto.planner.running.drift import Drift
from stretto.planner.running.losses import Losses
from stretto.planner.running.plan_executor import ExecutorAction, PlacedReplica, PlanExecutor
from stretto.planner.running.replanner import Replanner, Search, Situation

OnPredicted = Callable[[Sequence[float]], None]
"""Called with the predicted seconds until the end, one for each draw of lengths."""


class PlanKeeper:
    """Replaces the plan that an executor carries out.

    Args:
        planned_s: predicted seconds of the first plan.
        carry_out: carries out actions of the executor.

    Attributes:
        has_lost: whether a replica was lost for good. From then on only new plans say where replicas run.
    """

    def __init__(
        self,
        replanner: Replanner,
        planned_s: float,
        book: Book,
        executor: PlanExecutor,
        answers: AnswersWatch,
        carry_out: Callable[[Iterable[ExecutorAction]], None],
        on_predicted: OnPredicted,
    ) -> None:
        self._replanner = replanner
        self._app = replanner.app
        self._book = book
        self._executor = executor
        self._answers = answers
        self._carry_out = carry_out
        self._on_predicted = on_predicted
        self._drift = Drift(planned_s)
        self._losses = Losses(replanner.machine.num_devices)
        self._unable: dict[str, None] = {}
        self._is_lost = asyncio.Event()
        self.has_lost = False
        self._added_s: dict[PlacedReplica, float] = {}
        self._clock = asyncio.get_running_loop().time
        self._begin_s = self._clock()

    def added(self, placed: PlacedReplica) -> None:
        """Note that a replica starts now."""
        self._added_s[placed] = self._clock()

    def lost(self, replica: PlannedReplica) -> None:
        """Note that a replica was lost for good; a new plan will follow."""
        nodes = self._app.models[replica.model]
        has_answered = any(node.name in self._answers.lengths for node in nodes)
        self._losses.lost(replica, has_answered=has_answered)
        self.has_lost = True
        self._is_lost.set()

    async def run(self) -> None:
        """Predict and plan until cancelled."""
        while self._book.num_requests_left:
            wait_s = max(0.0, self._drift.next_look_s - self._now_s())
            try:
                async with asyncio.timeout(wait_s):
                    await self._is_lost.wait()
            except TimeoutError:
                await self._look()
            else:
                self._is_lost.clear()
                await self._replace_lost()

    async def _look(self) -> None:
        """Predict the end; if it has moved away, search a better plan."""
        begin_s = self._now_s()
        situation = self._situation()
        if not situation.requests or self._is_lost.is_set():
            return
        seconds = await aside(partial(self._replanner.predict, situation))
        self._on_predicted(seconds)
        if not self._drift.predicted(begin_s, _mean(seconds), self._now_s() - begin_s):
            return
        found = await aside(partial(self._replanner.search, situation))
        if self._is_lost.is_set() or found.plan is None:
            return
        if self._drift.searched(begin_s, _mean(seconds), _mean(found.predicted_s)):
            self._take(found)

    async def _replace_lost(self) -> None:
        """Plan without the devices that are lost, and give up the models that cannot run."""
        situation = self._situation()
        if not situation.requests:
            return
        found = await aside(partial(self._replanner.search, situation))
        # Replicas that are started on the same devices until then, and lost again, change nothing.
        if (situation.dead, situation.unable) != (self._losses.dead, self._all_unable()):
            return
        for model, reason in found.unable.items():
            self._unable[model] = None
            self._carry_out(self._executor.abandon(model, reason))
        if found.plan is not None:
            self._drift.replanned(self._now_s(), _mean(found.predicted_s))
            self._take(found)

    def _take(self, found: Search) -> None:
        assert found.plan is not None
        self._on_predicted(found.predicted_s)
        self._carry_out(self._executor.switch(found.plan))

    def _situation(self) -> Situation:
        staying = self._executor.staying
        self._added_s = {placed: self._added_s[placed] for placed in staying}
        running = {name: self._answers.running(name) for name in self._book.num_left}
        lengths = {name: counted.copy() for name, counted in self._answers.lengths.items()}
        requests, ended = self._book.left()
        return Situation(
            requests,
            AnswersSoFar(lengths, ended, running),
            self._executor.rest,
            {one.replica.key: self._clock() - self._added_s[one] for one in staying},
            self._losses.dead,
            self._all_unable(),
        )

    def _all_unable(self) -> tuple[str, ...]:
        return tuple({**self._unable, **self._losses.unable})

    def _now_s(self) -> float:
        """Return the seconds since the run began."""
        return self._clock() - self._begin_s


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
