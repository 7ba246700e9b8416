"""The ends of a run's calls: what they came to is noted in the book and saved in the journal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial

from stretto.model.errors import InternalError, StrettoError
from stretto.planner.running.book import Book
from stretto.planner.running.planned_calls import CallAnswer, CallEnded, PlannedCall, Progress
from stretto.planner.running.saved_calls import entry_of
from stretto.runtime.journal.committer import Committer
from stretto.sched.actions import Reply


def result_of(reply: Reply) -> CallAnswer | StrettoError:
    """Return the answer that a runtime's reply to a call has, or the error that the call failed with."""
    if reply.error is not None:
        return reply.error
    assert reply.outputs is not None
    usage = reply.usage
    text = answer_text(reply.outputs["answer"])
    return CallAnswer(text, usage.num_prompt_tokens, usage.num_output_tokens)


def answer_text(value: object) -> str:
    """Return an answer as a journal has it: a text as it is, a list as JSON."""
    return json.dumps(value) if isinstance(value, list) else str(value)


class CallEnds:
    """The place where calls end.

    Args:
        on_ended: called with each request that has ended. An answer is on the disk by then.
    """

    def __init__(self, book: Book, committer: Committer, on_ended: Callable[[CallEnded], None]) -> None:
        self._book = book
        self._committer = committer
        self._on_ended = on_ended

    def note(self, call: PlannedCall, result: CallAnswer | StrettoError) -> Sequence[PlannedCall]:
        """Note the answer to a call, or the error that it failed with; return the calls that can be made now.

        Errors are not saved: the next run makes these calls again.

        Raises:
            InternalError: a bug made the call fail, and has to end the run.
        """
        if isinstance(result, InternalError):
            raise result
        progress = self._book.note(call, result)
        if isinstance(result, StrettoError):
            return self.begun(progress)
        self._committer.add(entry_of(call, result, self._book.requests), partial(self._show, progress.ended))
        return progress.ready

    def begun(self, progress: Progress) -> Sequence[PlannedCall]:
        """Return the calls that a request can make first; one that makes none has ended."""
        self._show(progress.ended)
        return progress.ready

    def _show(self, ended: CallEnded | None) -> None:
        if ended is not None:
            self._on_ended(ended)
