"""What is measured in a run of a load: which requests and jobs count, and when all of them are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NoReturn

from stretto.model.tasks import Usage
from stretto.sizing.load import Load
from stretto.sizing.measured import Enough, Measures, Window
from stretto.sizing.objectives import Objective
from stretto.sizing.traffic import RecordedJob, Traffic
from stretto.trace.agents.plan import AgentPlan


@dataclass(slots=True)
class RunningJob:
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
class SentCall:
    """A request that is sent, of a job that runs. `first_s` is the time of its first token."""

    running: RunningJob
    request: str
    at_s: float
    is_measured: bool
    first_s: float | None = None


class RunMeasures:
    """The requests and jobs that run, and what is measured of those that begin in the window's measured time.

    Args:
        cuts: whether the run ends as soon as it surely misses an objective.

    Attributes:
        sent: requests without an answer, by the name of their query.
        jobs: jobs that run, by their number.
    """

    def __init__(
        self, traffic: Traffic, load: Load, objectives: Sequence[Objective], window: Window, *, cuts: bool
    ) -> None:
        self._cuts = cuts
        num_jobs = load.jobs_per_s(traffic) * (window.end_s - window.warm_s) if cuts else math.inf
        num_requests = num_jobs * traffic.requests_per_job
        expected = {"first_token": num_requests, "per_token": num_requests, "job": num_jobs}
        self._measures = Measures(objectives, expected)
        self.samples = self._measures.samples
        self.sent: dict[str, SentCall] = {}
        self.jobs: dict[int, RunningJob] = {}
        self._window = window
        self._measures_jobs = any(one.time == "job" for one in objectives)
        self._measures_ends = any(one.time != "first_token" for one in objectives)
        self._num_measured = 0

    def job_begins(self, running: RunningJob, now_s: float) -> None:
        """Count a job, if jobs are measured and it begins in the measured time."""
        if self._measures_jobs and self._window.holds(now_s):
            running.is_measured = True
            self._num_measured += 1

    def job_ends(self, running: RunningJob, now_s: float) -> None:
        """Take a job away that has ended."""
        del self.jobs[running.number]
        if running.is_measured:
            self._num_measured -= 1
            self._measures.add("job", now_s - running.start_s)

    def sends(self, name: str, running: RunningJob, request: str, now_s: float) -> None:
        """Count a request that is sent."""
        is_measured = self._window.holds(now_s)
        self.sent[name] = SentCall(running, request, now_s, is_measured)
        self._num_measured += is_measured
        self.samples.num_sent += 1

    def first_token(self, sent: SentCall, now_s: float) -> None:
        """Note the first token of a request."""
        sent.first_s = now_s
        if sent.is_measured and not self._measures_ends:
            self._num_measured -= 1

    def count(self, sent: SentCall, usage: Usage) -> None:
        """Count the tokens of a request that has ended."""
        if sent.is_measured:
            self.samples.num_prompt += usage.num_prompt_tokens
            self.samples.num_cached += usage.num_cached_tokens

    def answered(self, name: str, num_output: int, now_s: float) -> SentCall:
        """Take a request away that is answered with so many tokens, and return it."""
        sent = self.sent.pop(name)
        if not sent.is_measured:
            return sent
        self._num_measured -= self._measures_ends or sent.first_s is None
        self.samples.num_requests += 1
        if sent.first_s is not None:
            self._measures.add("first_token", sent.first_s - sent.at_s)
            if num_output > 1:
                self._measures.add("per_token", (now_s - sent.first_s) / (num_output - 1))
        return sent

    def check(self, now_s: float) -> None:
        """End the run if what still runs has made it miss an objective. Caches were cold when requests from
        before the measured time were sent, so that these count from its beginning.
        """
        warm_s = self._window.warm_s
        waiting = [
            ("first_token", (sent.first_s or now_s) - max(sent.at_s, warm_s))
            for sent in self.sent.values()
            if sent.is_measured or sent.first_s is None
        ]
        jobs = [("job", now_s - job.start_s) for job in self.jobs.values() if job.is_measured]
        stuck = [("job", now_s - warm_s) for sent in self.sent.values() if self._is_stuck(sent)]
        self._measures.check([*waiting, *jobs, *stuck])
        if self._cuts and now_s >= self._window.end_s:
            self._settle(jobs, now_s)

    def _settle(self, jobs: Sequence[tuple[str, float]], now_s: float) -> None:
        """End the run if what still runs changes nothing that matters."""
        measured = [sent for sent in self.sent.values() if sent.is_measured]
        begun = [("first_token", sent.first_s - sent.at_s) for sent in measured if sent.first_s is not None]
        waiting = [("first_token", now_s - sent.at_s) for sent in measured if sent.first_s is None]
        stuck = [sent for sent in self.sent.values() if self._is_stuck(sent)]
        unknown = [("per_token", 0.0) for _ in measured]
        self._measures.settle(
            begun,
            [*waiting, *jobs, *unknown],
            [
                *(("first_token", now_s - sent.at_s) for sent in stuck),
                *(("job", now_s - sent.running.start_s) for sent in stuck),
            ],
        )

    def is_over(self, now_s: float) -> bool:
        """Return whether all that is measured is known: where only first tokens count, answers may go on."""
        return not self._num_measured and now_s >= self._window.end_s

    def end_if_over(self, now_s: float) -> None:
        """End the run when all that is measured is known. Requests from before that never began to be
        answered count too, with their jobs, unless no job began.
        """
        if self.is_over(now_s):
            seconds = self.samples.seconds
            for one in self.sent.values():
                if one.is_measured and one.first_s is not None:
                    seconds["first_token"].append(one.first_s - one.at_s)
            stuck = [one for one in self.sent.values() if self._is_stuck(one)]
            seconds["first_token"] += [now_s - one.at_s for one in stuck]
            if seconds["job"]:
                seconds["job"] += [now_s - one.running.start_s for one in stuck]
            raise Enough

    def end(self, now_s: float) -> NoReturn:
        """End the run; what still runs has taken at least so long."""
        for sent in self.sent.values():
            if sent.is_measured:
                since_s = now_s - sent.at_s if sent.first_s is None else sent.first_s - sent.at_s
                self.samples.seconds["first_token"].append(since_s)
        for job in self.jobs.values():
            if job.is_measured:
                self.samples.seconds["job"].append(now_s - job.start_s)
        raise Enough

    def _is_stuck(self, sent: SentCall) -> bool:
        """Return whether a request from before the measured time still waits."""
        return sent.first_s is None and sent.at_s < self._window.warm_s
