"""A run without a plan: something that runs already answers the calls, as many at a time as it takes.

Answers are saved and written as in other runs, so that the same job goes on where it was ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from stretto.model.errors import ConfigError
from stretto.model.nearest_name import did_you_mean
from stretto.planner.application import Application
from stretto.planner.running.book import Book, book_of, num_to_show
from stretto.planner.running.request_store import RequestStore
from stretto.planner.running.results import ResultFiles
from stretto.planner.running.run import OnProgress, RunOutcome
from stretto.planner.running.saved_calls import open_journal, saved_calls_of
from stretto.planner.running.unplanned_calls import CallMaker, UnplannedCalls
from stretto.runtime.journal.committer import Committer


@dataclass(frozen=True, slots=True)
class OfflineJob:
    """Requests to be answered, and where the results go.

    Attributes:
        app: nodes, whose `model` is a name that what answers knows.
    """

    app: Application
    requests: RequestStore
    answers: Path
    failures: Path
    journal: Path

    def check(self, known: Iterable[str], kind: str = "LLM engines") -> None:
        """Check that the model of each node is a known one of a kind. Raises ConfigError."""
        names = list(known)
        for node in self.app.nodes:
            check_known(node.model, names, kind)


def check_known(model: str, known: Collection[str], kind: str = "LLM engines") -> None:
    """Check that a model which requests name is a known one of a kind. Raises ConfigError."""
    if model not in known:
        raise ConfigError(
            f"requests name the model {model!r}; it must be one of the {kind}: "
            f"{', '.join(known) or 'there are none'}{did_you_mean(model, known)}"
        )


async def answer_all(
    job: OfflineJob,
    served_by: str,
    caller_of: Callable[[Book], CallMaker],
    on_progress: OnProgress = lambda num_ended, num_left: None,
    now: Callable[[], float] = monotonic,
) -> RunOutcome:
    """Answer all requests of a job.

    Args:
        served_by: name of what answers, part of the work that a journal belongs to.
        caller_of: returns what makes the calls of a book.

    Raises:
        JournalError: the journal belongs to other work, or another run uses it.
        NotSaved: an answer cannot be written; the job can be done again later.
        EngineUnavailable: what is left needs models that nothing has answered for some minutes; the same job
            goes on later.
    """
    with open_journal(job.journal, job.app, job.requests, served_by) as journal:
        book = book_of(job.app, job.requests)
        results = ResultFiles(job.answers, job.failures, job.app)
        try:
            results.refuse(job.requests.refused)
            for ended in book.resume(saved_calls_of(journal.entries(), job.requests)):
                results.write(ended)
            begun = num_to_show(book)

            def progress() -> None:
                left = num_to_show(book)
                on_progress(begun - left, left)

            progress()
            async with Committer(journal) as committer:
                calls = UnplannedCalls(
                    job.app, book, committer, caller_of(book), results.write, progress, now
                )
                try:
                    await calls.run()
                finally:
                    calls.stop()
        finally:
            results.close()
    return RunOutcome(book.num_resumed, results.num_answered, results.num_failed)
