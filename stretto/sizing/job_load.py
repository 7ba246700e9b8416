"""The jobs of a load in one run of the schedulers: when they begin, what they send, and what is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import Protocol

from stretto.model.tasks import Done
from stretto.sched.actions import Action, Admit, Emit, Reply
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event, Submit
from stretto.sched.observer import Observer
from stretto.sim.agent_load import request_graph
from stretto.sizing.arrivals import arrivals, seeded
from stretto.sizing.load import LONGEST, Load
from stretto.sizing.measured import Window
from stretto.sizing.objectives import Objective
from stretto.sizing.run_measures import RunMeasures, RunningJob
from stretto.sizing.traffic import RecordedJob, Traffic
from stretto.trace.agents.plan import AgentPlan

_ROUNDING_S = 1e-9
_WAY_S = 0.005
"""Least time from the end of a request to one that waits for it: the answer goes to the client and the next
request comes back. The server has begun its next step by then, so that the request misses this step.
"""


_CHECKS = 16
"""Times, within the measured ones, at which it is checked whether what still runs misses an objective."""


class Clock(Protocol):
    """What a load needs of its driver: the virtual one, or a real clock."""

    @property
    def now_s(self) -> float:
        """The time, in seconds."""
        ...

    def at(self, at_s: float, happen: Callable[[], Sequence[Event]], /) -> None:
        """Plan a call whose events go to the schedulers."""


class JobLoad(Observer):
    """The jobs of a load during one run. Give it to a driver as an observer and its `on_reply`, then call
    `attach`. The run ends with `Enough`.

    Args:
        cuts: whether the run ends as soon as it surely misses an objective.

    Attributes:
        lengths: tokens of the answer of each query that runs.
    """

    def __init__(
        self,
        traffic: Traffic,
        load: Load,
        objectives: Sequence[Objective],
        window: Window,
        seed: int,
        *,
        cuts: bool = True,
    ) -> None:
        self._measures = RunMeasures(traffic, load, objectives, window, cuts=cuts)
        self.samples = self._measures.samples
        self.lengths: dict[str, int] = {}
        self._traffic = traffic
        self._load = load
        self._window = window
        self._seed = seed
        self._weights = list(accumulate(job.duration_s for job in traffic.jobs))
        self._graph = request_graph(traffic.most_output)
        self._tasks: dict[int, str] = {}
        self._num_jobs = 0
        self._clock: Clock

    # --- what the driver calls

    def attach(self, clock: Clock) -> None:
        """Begin: plan the first arrivals."""
        self._clock = clock
        window = self._window
        length_s = window.end_s - window.warm_s
        clock.at(window.end_s, self._end_if_over)
        clock.at(window.longest_s, lambda: self._measures.end(clock.now_s))

        def check() -> Sequence[Event]:
            self._measures.check(clock.now_s)
            return ()

        for number in range(1, LONGEST * _CHECKS):
            clock.at(window.warm_s + number / _CHECKS * length_s, check)
        if self._load.unit == "sessions":
            for lane in range(int(self._load.amount)):
                draw = seeded(self._seed, f"lane {lane}")
                self._enter(draw, draw)
            return
        draw = seeded(self._seed, "begun")
        place = draw.expovariate(1.0)
        while place < self._load.amount * self._traffic.mean_s:
            self._enter(draw, None)
            place += draw.expovariate(1.0)
        self._arrive_next(arrivals(self._traffic, self._load.amount, self._seed))

    def on_reply(self, reply: Reply) -> None:
        """Go on with the job of a request that has ended. Raises what the request has failed with."""
        if reply.error is not None:
            raise reply.error
        now_s = self._clock.now_s
        sent = self._measures.answered(reply.query, self.lengths.pop(reply.query), now_s)
        running = sent.running
        running.plan.end(sent.request, now_s - running.start_s)
        if running.plan.is_over:
            self._over(running, now_s)
        else:
            self._plan_next(running)
        self._end_if_over()

    def on_action(self, action: Action, now_s: float) -> None:
        """Note the first token of a request."""
        match action:
            case Admit(_, _, task):
                self._tasks[task.id] = task.query
            case Emit(query) if (sent := self._measures.sent.get(query)) is not None and sent.first_s is None:
                self._measures.first_token(sent, now_s)
                if sent.is_measured and self._measures.is_over(now_s):
                    self._clock.at(now_s, self._end_if_over)

    def on_event(self, event: Event, now_s: float) -> None:
        """Count the tokens of a request that has ended."""
        if not (isinstance(event, LLMReport) and isinstance(event.event, Done)):
            return
        sent = self._measures.sent.get(self._tasks.pop(event.event.task))
        if sent is not None:
            self._measures.count(sent, event.event.usage)

    # --- jobs

    def _arrive_next(self, coming: Iterator[tuple[float, RecordedJob]]) -> None:
        at_s, job = next(coming)

        def arrive() -> Sequence[Event]:
            self._arrive_next(coming)
            return self._start(job, None)

        self._clock.at(at_s, arrive)

    def _start(self, job: RecordedJob, lane: Random | None) -> Sequence[Event]:
        """Begin a job."""
        now_s = self._clock.now_s
        running = self._opened(job, AgentPlan(job.trace), now_s, lane)
        self._measures.job_begins(running, now_s)
        return self._due(running)

    def _enter(self, draw: Random, lane: Random | None) -> None:
        """Enter a job in its middle: what would have ended by now has ended."""
        (job,) = draw.choices(self._traffic.jobs, cum_weights=self._weights)
        since_s = draw.random() * job.duration_s
        plan = AgentPlan(job.trace)
        started: dict[str, None] = {}
        for end_s, name in sorted((end_s, name) for name, end_s in job.ends_s.items()):
            if end_s > since_s:
                break
            started |= dict.fromkeys(one.id for one in plan.start_due(end_s))
            plan.end(name, end_s)
            del started[name]
        running = self._opened(job, plan, -since_s, lane)
        for name in started:
            self._clock.at(0.0, lambda one=name: [self._submit(running, one)])  # type: ignore[misc]
        self._plan_next(running)

    def _opened(self, job: RecordedJob, plan: AgentPlan, start_s: float, lane: Random | None) -> RunningJob:
        self._num_jobs += 1
        running = self._measures.jobs[self._num_jobs] = RunningJob(self._num_jobs, job, plan, start_s, lane)
        return running

    def _over(self, running: RunningJob, now_s: float) -> None:
        """End a job; where so many run at once, another one begins."""
        self._measures.job_ends(running, now_s)
        if (lane := running.lane) is not None:
            self._clock.at(now_s + _WAY_S, lambda: self._start(lane.choice(self._traffic.jobs), lane))

    def _plan_next(self, running: RunningJob) -> None:
        next_s = running.plan.next_s
        if next_s is None or running.start_s + next_s >= running.planned_s:
            return
        running.planned_s = at_s = max(running.start_s + next_s, self._clock.now_s + _WAY_S)
        self._clock.at(at_s, lambda: self._due(running))

    def _due(self, running: RunningJob) -> Sequence[Event]:
        """Send the requests of a job that are due."""
        running.planned_s = math.inf
        due = running.plan.start_due(self._clock.now_s - running.start_s + _ROUNDING_S)
        self._plan_next(running)
        return [self._submit(running, one.id) for one in due]

    def _submit(self, running: RunningJob, request: str) -> Submit:
        now_s = self._clock.now_s
        call, name = running.job.calls[request], f"{running.number}/{request}"
        self._measures.sends(name, running, request, now_s)
        self.lengths[name] = call.num_output
        return Submit(name, self._graph, {"prompt": call.text(running.number)}, program=f"j{running.number}")

    def _end_if_over(self) -> Sequence[Event]:
        self._measures.end_if_over(self._clock.now_s)
        return ()
