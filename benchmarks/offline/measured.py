"""One planned run, measured: what was predicted, what it took, and how long devices were idle."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.offline.idle import IdleWatch
from stretto.costs.length_belief import likely_interval
from stretto.model.errors import InternalError
from stretto.planner.application import Application
from stretto.planner.running.replanner import Replanner
from stretto.planner.running.replicas import MakeReplica
from stretto.planner.running.request_store import stored
from stretto.planner.running.run import PlanJob, run_job
from stretto.planner.running.run_request import RunRequest


@dataclass(frozen=True, slots=True)
class Work:
    """An application with the requests to be run."""

    name: str
    app: Application
    requests: Sequence[RunRequest]


@dataclass(frozen=True, slots=True)
class Measured:
    """One run.

    Attributes:
        planned_s: predicted seconds of the first plan, from its first replica's start to its last answer.
        low_s, high_s: the interval that holds the time with 90 %, as it was predicted.
        took_s: seconds that it took.
        search_s: seconds in which the first plan was searched.
        idle_share: share of the devices' time in which a replica that is ready has no call although calls of
            its node wait.
        num_predictions: how often the end was predicted.
    """

    planned_s: float
    low_s: float
    high_s: float
    took_s: float
    search_s: float
    idle_share: float
    num_predictions: int


def run_measured(work: Work, replanner: Replanner, make: MakeReplica, folder: Path) -> Measured:
    """Plan a job and run it, with a new journal in `folder`.

    Raises:
        InternalError: a request has failed.
    """
    idle = IdleWatch()
    predictions: list[tuple[float, Sequence[float]]] = []
    ended_s = 0.0

    def predicted(seconds: Sequence[float]) -> None:
        predictions.append((time.monotonic(), seconds))

    def progress(num_ended: int, num_left: int) -> None:
        nonlocal ended_s
        if not num_left and not ended_s:
            ended_s = time.monotonic()

    job = PlanJob(
        work.app,
        stored(work.requests),
        "measured",
        replanner,
        make,
        answers=folder / "answers",
        failures=folder / "failures",
        journal=folder / "journal",
        on_predicted=predicted,
        observers=(idle,),
    )
    begin_s = time.monotonic()
    outcome = run_job(job, progress)
    if outcome.num_failed:
        raise InternalError(f"{work.name}: {outcome.num_failed} requests failed, see {job.failures}")
    planned_at_s, seconds = predictions[0]
    took_s = ended_s - planned_at_s
    low_s, high_s = likely_interval(seconds)
    num_devices = replanner.machine.num_devices
    return Measured(
        sum(seconds) / len(seconds),
        low_s,
        high_s,
        took_s,
        planned_at_s - begin_s,
        idle.idle_s / (took_s * num_devices),
        len(predictions),
    )
