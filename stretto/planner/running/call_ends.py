"""The ends of a run's calls: what they came to is noted in the book and saved in the journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from stretto.errors import InternalError, StrettoError
from stretto.messages import Reply
from stretto.planner.running.calls import Answer, Call, CallBook, Ended
from stretto.planner.running.saved_calls import entry_of
from stretto.runtime.journal.committer import Committer


def result_of(reply: Reply) -> Answer | StrettoError:
    """Return the answer that a runtime's reply to a call has, or the error that the call failed with.

    Raises:
        InternalError: a bug made the call fail, and has to end the run.
    """
    if isinstance(reply.error, InternalError):
        raise reply.error
    if reply.error is not None:
        return reply.error
    assert reply.outputs is not None
    usage = reply.usage
    return Answer(str(reply.outputs["answer"]), usage.num_prompt_tokens, usage.num_output_tokens)


class CallEnds:
    """The place where calls end.

    Args:
        on_ended: called with each request that has ended. An answer is on the disk by then.
    """

    def __init__(self, book: CallBook, committer: Committer, on_ended: Callable[[Ended], None]) -> None:
        self._book = book
        self._committer = committer
        self._on_ended = on_ended

    def note(self, call: Call, result: Answer | StrettoError) -> Sequence[Call]:
        """Note the answer to a call, or the error that it failed with; return the calls that can be made now.

        Errors are not saved: the next run makes these calls again.
        """
        if isinstance(result, StrettoError):
            self._show(self._book.failed(call, result).ended)
            return ()
        progress = self._book.answered(call, result)
        self._committer.add(entry_of(call, result, self._book.requests), partial(self._show, progress.ended))
        return progress.ready

    def _show(self, ended: Ended | None) -> None:
        if ended is not None:
            self._on_ended(ended)
