"""The second attempt of a request that waits long for its first byte, beside the first one.

The attempt whose answer begins first goes on; the other is aborted. The second one has a ticket of its own
at the state machine, and takes the place of the first when it wins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stretto.http.client.answer_parser import AnswerParser
from stretto.model.errors import EngineFailure
from stretto.router.attempt import Attempt, AttemptOwner
from stretto.router.messages import Send, Ticket
from stretto.router.worker_link import WorkerLink


class Hedged(AttemptOwner, Protocol):
    """The request that has a second attempt."""

    def hedge_begins(self, answer: AnswerParser) -> None:
        """Handle the head of the second attempt's answer."""
        ...

    def hedge_fails(self, reason: str, *, was_sent: bool) -> None:
        """Handle that the second attempt has failed."""
        ...

    def hedge_is_over(self) -> None:
        """Go on with the first attempt alone."""
        ...


class HedgeAttempt:
    """The second attempt of a request.

    Args:
        data: the request in two parts, as for `Attempt`.
        forget: called with the ticket when the attempt has ended or goes on as the only one.

    Attributes:
        action: where it was sent, why, and its ticket.
        link: the way to its worker.
    """

    def __init__(
        self,
        action: Send,
        link: WorkerLink,
        data: tuple[bytes, bytes],
        request: Hedged,
        forget: Callable[[Ticket], object],
    ) -> None:
        self.action = action
        self.link = link
        self._request = request
        self._forget = forget
        self._attempt: Attempt | None = Attempt(link.connections, data, self, may_reuse=True)

    def hand_over(self) -> Attempt:
        """Return the attempt, which reports to the request from now on."""
        attempt, self._attempt = self._attempt, None
        assert attempt is not None, "it has not ended"
        attempt.report_to(self._request)
        self._forget(self.action.ticket)
        return attempt

    def stop(self) -> None:
        """Abort the attempt, if it has not ended."""
        if self._attempt is not None:
            self._attempt.abort()
            self._attempt = None
        self._forget(self.action.ticket)

    # --- actions of the state machine

    def give_up(self, reason: str) -> None:
        """Abort the attempt, which is refused next."""
        if self._attempt is not None:
            self._attempt.abort()
            self._attempt = None

    def refuse(self, status: int, message: str, retry_after_s: float | None) -> None:
        """End the attempt, which is not repeated."""
        self.stop()
        self._request.hedge_is_over()

    def cut(self, reason: str) -> None:
        """End the attempt."""
        self.refuse(0, reason, None)

    # --- what the worker does

    def on_head(self, answer: AnswerParser) -> None:
        """Tell the request, which stops the attempt or goes on with it."""
        self._request.hedge_begins(answer)

    def on_body(self, data: bytes) -> None:
        """Take nothing: at the head the attempt was handed over or stopped."""

    def on_end(self) -> None:
        """Take nothing, as `on_body`."""

    def on_failed(self, failure: EngineFailure, *, was_sent: bool) -> None:
        """Tell the request."""
        self._attempt = None
        self._request.hedge_fails(failure.message, was_sent=was_sent)

    def on_broken(self) -> None:
        """End the request with this attempt."""
        self.stop()
        self._request.on_broken()
