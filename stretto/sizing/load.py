"""Loads: so many sessions at once, or so many jobs in a second; and how a load is run and measured.

Jobs are drawn from recorded traffic. A load of sessions keeps so many jobs running: when one ends, another
one begins. A load of a rate lets jobs arrive, at recorded gaps or at random. Both begin with jobs in their
middle, as one finds them at any time. Equal seeds draw equal jobs at all loads, so that loads can be
compared: a higher load has the jobs of a lower one and more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Literal, Protocol, TypeAlias

from stretto.model.tasks import Done
from stretto.sched.messages import Action, Admit, Emit, Event, LLMReport, Reply, Submit
from stretto.sched.observer import Observer
from stretto.sim.agent_load import request_graph
from stretto.sizing.objectives import Objective
from stretto.sizing.traffic import RecordedJob, Traffic
from stretto.trace.agents.plan import AgentPlan

Unit: TypeAlias = Literal["sessions", "per_s"]
_WARM = 0.5
"""Seconds before the measured ones, as a share of these."""
_LEAST_S = 20.0
_LEAST_WARM_S = 45.0
"""Caches are empty at first. A server computes what its KV memory holds in about this time."""
_ROUNDING_S = 1e-9
_LONGEST = 4
"""Measured times after which jobs that still run count as missed."""
_CUT_TIMES, _CUT_MORE = 1.5, 20
"""A run is cut when so many times the expected number of samples above a limit, and some more, are there."""


@dataclass(frozen=True, slots=True)
class Window:
    """The times between which requests and jobs that begin are measured."""

    warm_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """A load of some traffic.

    Attributes:
        amount: number of sessions at once, or of jobs that arrive in a second.
    """

    unit: Unit
    amount: float

    def jobs_per_s(self, traffic: Traffic) -> float:
        """Return the rate at which jobs begin, if they take their nominal time."""
        return self.amount if self.unit == "per_s" else self.amount / traffic.mean_s

    def window(self, traffic: Traffic, objectives: Sequence[Objective], num_samples: int) -> Window:
        """Return the times in which about `num_samples` requests begin, and jobs if an objective limits
        them.
        """
        jobs_per_s = self.jobs_per_s(traffic)
        wanted_s = num_samples / (jobs_per_s * traffic.requests_per_job)
        if any(one.time == "job" for one in objectives):
            wanted_s = max(wanted_s, num_samples / 4 / jobs_per_s)
        length_s = max(_LEAST_S, wanted_s)
        warm_s = max(_LEAST_WARM_S, _WARM * length_s)
        return Window(warm_s, warm_s + length_s)


@dataclass(slots=True)
class Samples:
    """What was measured: seconds by the time that objectives limit.

    Attributes:
        is_cut: whether the run was ended early, as an objective was already missed.
    """

    seconds: dict[str, list[float]] = field(
        default_factory=lambda: {"first_token": [], "per_token": [], "job": []}
    )
    num_prompt: int = 0
    num_cached: int = 0
    num_requests: int = 0
    num_sent: int = 0
    is_cut: bool = False


class Clock(Protocol):
    """What a load needs of its driver: the virtual one, or a real clock."""

    @property
    def now_s(self) -> float:
        """The time, in seconds."""
        ...

    def at(self, at_s: float, happen: Callable[[], Sequence[Event]], /) -> None:
        """Plan a call whose events go to the schedulers."""


class Enough(Exception):
    """Raised out of the run when nothing more is to be measured."""


@dataclass(slots=True)
class _Running:
    """A job that runs.

    Attributes:
        lane: source of the jobs that follow it, where so many run at once.
        is_measured: whether it began in the measured time.
        planned_s: time of the next call that is planned for it.
    """

    number: int
    job: RecordedJob
    plan: AgentPlan
    start_s: float
    lane: Random | None
    is_measured: bool = False
    planned_s: float = math.inf


@dataclass(slots=True)
class _Sent:
    running: _Running
    request: str
    at_s: float
    is_measured: bool
    first_s: float | None = None


class JobLoad(Observer):
    """The jobs of a load during one run. Give it to a driver as an observer and its `on_reply`, then call
    `attach`. The run ends with `Enough`.

    Attributes:
        lengths: tokens of the answer of each query that runs.
    """

    def __init__(
        self, traffic: Traffic, load: Load, objectives: Sequence[Objective], window: Window, seed: int
    ) -> None:
        self.samples = Samples()
        self.lengths: dict[str, int] = {}
        self._traffic = traffic
        self._load = load
        self._window = window
        self._objectives = objectives
        self._measures_jobs = any(one.time == "job" for one in objectives)
        self._seed = seed
        self._weights = list(accumulate(job.duration_s for job in traffic.jobs))
        self._graph = request_graph(traffic.most_output)
        self._sent: dict[str, _Sent] = {}
        self._jobs: dict[int, _Running] = {}
        self._tasks: dict[int, str] = {}
        self._num_jobs = 0
        self._num_measured = 0
        self._most_above = self._cut_at(load.jobs_per_s(traffic) * (window.end_s - window.warm_s))
        self._clock: Clock

    # --- what the driver calls

    def attach(self, clock: Clock) -> None:
        """Begin: plan the first arrivals."""
        self._clock = clock
        window = self._window
        clock.at(window.end_s, self._end_if_over)
        clock.at(window.warm_s + _LONGEST * (window.end_s - window.warm_s), self._end)
        if self._load.unit == "sessions":
            for lane in range(int(self._load.amount)):
                draw = self._draw(f"lane {lane}")
                self._enter(draw, draw)
            return
        draw = self._draw("begun")
        place = draw.expovariate(1.0)
        while place < self._load.amount * self._traffic.mean_s:
            self._enter(draw, None)
            place += draw.expovariate(1.0)
        self._arrive_next(self._gaps(), self._draw("jobs"), 0.0)

    def on_reply(self, reply: Reply) -> None:
        """Go on with the job of a request that has ended. Raises what the request has failed with."""
        if reply.error is not None:
            raise reply.error
        now_s = self._clock.now_s
        sent = self._sent.pop(reply.query)
        num_output = self.lengths.pop(reply.query)
        if sent.is_measured:
            self._measure(sent, num_output, now_s)
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
            case Emit(query) if (sent := self._sent.get(query)) is not None and sent.first_s is None:
                sent.first_s = now_s

    def on_event(self, event: Event, now_s: float) -> None:
        """Count the tokens of a request that has ended."""
        if not (isinstance(event, LLMReport) and isinstance(event.event, Done)):
            return
        sent = self._sent.get(self._tasks.pop(event.event.task))
        if sent is not None and sent.is_measured:
            self.samples.num_prompt += event.event.usage.num_prompt_tokens
            self.samples.num_cached += event.event.usage.num_cached_tokens

    # --- jobs

    def _draw(self, name: str) -> Random:
        return Random(f"size/{self._seed}/{name}")

    def _gaps(self) -> Iterator[float]:
        """Yield the times between arrivals without end, with a mean of 1."""
        gaps, draw = self._traffic.gaps, self._draw("gaps")
        place = draw.randrange(len(gaps)) if gaps else 0
        while True:
            yield gaps[place % len(gaps)] if gaps else draw.expovariate(1.0)
            place += 1

    def _arrive_next(self, gaps: Iterator[float], draw: Random, before_s: float) -> None:
        at_s = before_s + next(gaps) / self._load.amount

        def arrive() -> Sequence[Event]:
            self._arrive_next(gaps, draw, at_s)
            return self._start(draw.choice(self._traffic.jobs), None)

        self._clock.at(at_s, arrive)

    def _start(self, job: RecordedJob, lane: Random | None) -> Sequence[Event]:
        """Begin a job."""
        now_s = self._clock.now_s
        running = self._opened(job, AgentPlan(job.trace), now_s, lane)
        if self._measures_jobs and self._is_measured(now_s):
            running.is_measured = True
            self._num_measured += 1
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

    def _opened(self, job: RecordedJob, plan: AgentPlan, start_s: float, lane: Random | None) -> _Running:
        self._num_jobs += 1
        running = self._jobs[self._num_jobs] = _Running(self._num_jobs, job, plan, start_s, lane)
        return running

    def _over(self, running: _Running, now_s: float) -> None:
        """End a job; where so many run at once, another one begins."""
        del self._jobs[running.number]
        if running.is_measured:
            self._num_measured -= 1
            self._add("job", now_s - running.start_s)
        if (lane := running.lane) is not None:
            self._clock.at(now_s, lambda: self._start(lane.choice(self._traffic.jobs), lane))

    def _plan_next(self, running: _Running) -> None:
        next_s = running.plan.next_s
        if next_s is None or running.start_s + next_s >= running.planned_s:
            return
        running.planned_s = at_s = max(running.start_s + next_s, self._clock.now_s)
        self._clock.at(at_s, lambda: self._due(running))

    def _due(self, running: _Running) -> Sequence[Event]:
        """Send the requests of a job that are due."""
        running.planned_s = math.inf
        due = running.plan.start_due(self._clock.now_s - running.start_s + _ROUNDING_S)
        self._plan_next(running)
        return [self._submit(running, one.id) for one in due]

    def _submit(self, running: _Running, request: str) -> Submit:
        now_s = self._clock.now_s
        call, name = running.job.calls[request], f"{running.number}/{request}"
        is_measured = self._is_measured(now_s)
        self._sent[name] = _Sent(running, request, now_s, is_measured)
        self._num_measured += is_measured
        self.samples.num_sent += 1
        self.lengths[name] = call.num_output
        return Submit(name, self._graph, {"prompt": call.text(running.number)}, program=f"j{running.number}")

    # --- what is measured

    def _is_measured(self, now_s: float) -> bool:
        return self._window.warm_s <= now_s < self._window.end_s

    def _measure(self, sent: _Sent, num_output: int, now_s: float) -> None:
        self._num_measured -= 1
        self.samples.num_requests += 1
        if sent.first_s is None:
            return
        self._add("first_token", sent.first_s - sent.at_s)
        if num_output > 1:
            self._add("per_token", (now_s - sent.first_s) / (num_output - 1))

    def _add(self, time: str, seconds: float) -> None:
        self.samples.seconds[time].append(seconds)
        for place, one in enumerate(self._objectives):
            if one.time == time and seconds > one.limit_s:
                self._most_above[place] -= 1
                if self._most_above[place] < 0:
                    self.samples.is_cut = True
                    raise Enough

    def _cut_at(self, num_jobs: float) -> list[float]:
        """Return how many samples above each objective's limit end the run, as it is missed then."""
        expected = [
            num_jobs if one.time == "job" else num_jobs * self._traffic.requests_per_job
            for one in self._objectives
        ]
        return [
            math.inf if one.share_above is None else _CUT_TIMES * number * one.share_above + _CUT_MORE
            for one, number in zip(self._objectives, expected, strict=True)
        ]

    def _end_if_over(self) -> Sequence[Event]:
        """End the run when all that was measured has ended."""
        if not self._num_measured and self._clock.now_s >= self._window.end_s:
            raise Enough
        return ()

    def _end(self) -> Sequence[Event]:
        """End the run; what still runs has taken at least so long."""
        now_s = self._clock.now_s
        for sent in self._sent.values():
            if sent.is_measured:
                since_s = now_s - sent.at_s if sent.first_s is None else sent.first_s - sent.at_s
                self.samples.seconds["first_token"].append(since_s)
        for job in self._jobs.values():
            if job.is_measured:
                self.samples.seconds["job"].append(now_s - job.start_s)
        raise Enough
