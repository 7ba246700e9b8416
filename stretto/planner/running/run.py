"""A whole run: its journal is read, what is left is done, and the results are written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stretto.planner.application import Application, Request
from stretto.planner.plan import Plan
from stretto.planner.running.calls import CallBook
from stretto.planner.running.drive import Run, drive
from stretto.planner.running.replicas import MakeReplica
from stretto.planner.running.requests import RunRequest
from stretto.planner.running.results import ResultFiles
from stretto.planner.running.saved_calls import calls_of, hash_of
from stretto.runtime.journal.committer import Committer
from stretto.runtime.journal.file import JournalFile


@dataclass(frozen=True, slots=True)
class Job:
    """What a run is to do, and where its results go.

    Attributes:
        served_by: name of what answers, part of the work that a journal belongs to.
        plan: makes the plan for the requests that are left; not called if there are none.
        make: makes a replica of a planned one.
    """

    app: Application
    requests: Sequence[RunRequest]
    served_by: str
    plan: Callable[[Sequence[Request]], Plan]
    make: MakeReplica
    answers: Path
    failures: Path
    journal: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        num_resumed: calls that an earlier run had answered.
        num_answered, num_failed: requests that have answers, and that have failed.
    """

    num_resumed: int
    num_answered: int
    num_failed: int


OnProgress = Callable[[int, int], None]
"""Called with the numbers of calls that this run has ended, and that are left."""


def run_job(job: Job, on_progress: OnProgress) -> Outcome:
    """Do a job; it goes on from its journal if an earlier run was interrupted.

    Answers are in the order in which they came. Failed calls are not in the journal, so the next run tries
    them again.

    Raises:
        JournalError: the journal belongs to other work, or another run uses it.
        NotSaved: an answer cannot be written; the job can be done again later.
    """
    with JournalFile(job.journal, hash_of(job.app, job.requests, job.served_by)) as journal:
        book = CallBook(job.app, job.requests)
        total = sum(book.num_left.values())
        results = ResultFiles(job.answers, job.failures, job.app)
        try:
            for ended in book.resume(calls_of(journal.entries(), job.requests)):
                results.write(ended)
            begun = sum(book.num_left.values())

            def progress() -> None:
                left = sum(book.num_left.values())
                on_progress(begun - left, left)

            progress()
            if book.num_requests_left:
                run = Run(job.app, job.plan(book.left()), job.make, book, results.write, progress)
                asyncio.run(_drive(run, journal))
        finally:
            results.close()
    return Outcome(total - begun, results.num_answered, results.num_failed)


async def _drive(run: Run, journal: JournalFile) -> None:
    async with Committer(journal) as committer:
        await drive(run, committer)
