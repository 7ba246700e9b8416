"""A whole run: its journal is read, what is left is done, and the results are written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stretto.planner.answers_so_far import AnswersSoFar
from stretto.planner.application import Application
from stretto.planner.plan import Plan
from stretto.planner.running.answers_watch import AnswersWatch
from stretto.planner.running.book import Book, book_of, num_to_show
from stretto.planner.running.drive import DrivenRun, Replanning, drive
from stretto.planner.running.plan_keeper import OnPredicted
from stretto.planner.running.planned_calls import CallAnswer, PlannedCall
from stretto.planner.running.replanner import Replanner, Situation
from stretto.planner.running.replicas import MakeReplica
from stretto.planner.running.request_store import RequestStore
from stretto.planner.running.results import ResultFiles
from stretto.planner.running.saved_calls import open_journal, saved_calls_of
from stretto.planner.running.sent_lines import AskLines
from stretto.runtime.journal.committer import Committer
from stretto.runtime.journal.file import JournalFile
from stretto.runtime.runtime import Runtime
from stretto.sched.observer import Observer


@dataclass(frozen=True, slots=True)
class PlanJob:
    """The work of a run, and the files of its results.

    Attributes:
        served_by: name of what answers, part of the work that a journal belongs to.
        plan: makes the plan for the calls that are left, and is not called if there are none; or plans and
            plans again while the run lasts.
        make: makes a replica of a planned one.
        on_predicted: called with each prediction of the end, if the run is planned again.
        observers: told of everything that happens in the run.
        lines_at: makes what asks for the answers to lines that are handed on, at the runtime of the run.
    """

    app: Application
    requests: RequestStore
    served_by: str
    plan: Callable[[Book], Plan] | Replanner
    make: MakeReplica
    answers: Path
    failures: Path
    journal: Path
    on_predicted: OnPredicted = lambda seconds: None
    observers: Sequence[Observer] = ()
    lines_at: Callable[[Runtime], AskLines] | None = None


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of a run.

    Attributes:
        num_resumed: calls that an earlier run had answered.
        num_answered, num_failed: requests that have answers, and that have failed.
    """

    num_resumed: int
    num_answered: int
    num_failed: int


OnProgress = Callable[[int, int], None]
"""Called with the numbers of calls that this run has ended, and that are left (`num_to_show`)."""


def run_job(job: PlanJob, on_progress: OnProgress) -> RunOutcome:
    """Do a job; it goes on from its journal if an earlier run was interrupted.

    Answers are in the order in which they came. Failed calls are not in the journal, so the next run tries
    them again.

    Raises:
        JournalError: the journal belongs to other work, or another run uses it.
        NotSaved: an answer cannot be written; the job can be done again later.
    """
    with open_journal(job.journal, job.app, job.requests, job.served_by) as journal:
        book = book_of(job.app, job.requests)
        results = ResultFiles(job.answers, job.failures, job.app)
        try:
            results.refuse(job.requests.refused)
            answers = AnswersWatch()
            saved = _noted(saved_calls_of(journal.entries(), job.requests), answers)
            for ended in book.resume(saved):
                results.write(ended)
            begun = num_to_show(book)

            def progress() -> None:
                left = num_to_show(book)
                on_progress(begun - left, left)

            progress()
            if book.num_requests_left:
                plan, replanning = _planned(job, book, answers)
                run = DrivenRun(
                    app=job.app,
                    plan=plan,
                    make=job.make,
                    book=book,
                    on_ended=results.write,
                    on_calls=progress,
                    replanning=replanning,
                    observers=job.observers,
                    lines_at=job.lines_at,
                )
                asyncio.run(_drive(run, journal))
        finally:
            results.close()
    return RunOutcome(book.num_resumed, results.num_answered, results.num_failed)


def _noted(
    calls: Iterable[tuple[PlannedCall, CallAnswer]], answers: AnswersWatch
) -> Iterator[tuple[PlannedCall, CallAnswer]]:
    for call, answer in calls:
        answers.note(call.node, answer.num_output)
        yield call, answer


def _planned(job: PlanJob, book: Book, answers: AnswersWatch) -> tuple[Plan, Replanning | None]:
    """Return the plan of what is left, and what plans it again."""
    if not isinstance(job.plan, Replanner):
        return job.plan(book), None
    lengths = {name: counted.copy() for name, counted in answers.lengths.items()}
    requests, ended = book.left()
    found = job.plan.search(Situation(requests, AnswersSoFar(lengths, ended)))
    if found.plan is None:  # no draw has a call
        return Plan("none", ()), None
    job.on_predicted(found.predicted_s)
    planned_s = sum(found.predicted_s) / len(found.predicted_s)
    return found.plan, Replanning(job.plan, planned_s, answers, job.on_predicted)


async def _drive(run: DrivenRun, journal: JournalFile) -> None:
    async with Committer(journal) as committer:
        await drive(run, committer)
