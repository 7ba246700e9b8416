"""The second attempt of a request that waits long for its first byte, beside the first one.

The attempt whose answer begins first goes on; the other is aborted. The second one has a ticket of its own
at the state machine, and takes the place of the first when it wins.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from stretto.http.client.answer_parser import AnswerParser
from stretto.model.errors import EngineFailure
from stretto.router.answer_owner import AnswerOwner
from stretto.router.answers import is_page
from stretto.router.attempt import Attempt, AttemptOwner
from stretto.router.messages import Send, Ticket
from stretto.router.worker_link import WorkerLink


class HedgeAttempt:
    """The second attempt of a request.

    Args:
        taken: the answer to the request, which gets what this attempt brings once it goes on alone.
        forget: called with the ticket when the attempt has ended or goes on as the only one.

    Attributes:
        action: where it was sent, why, and its ticket.
        link: the way to its worker.
    """

    def __init__(
        self,
        action: Send,
        link: WorkerLink,
        exchange: AnswerOwner,
        taken: AttemptOwner,
        forget: Callable[[Ticket], object],
    ) -> None:
        self.action = action
        self.link = link
        self._exchange = exchange
        self._taken = taken
        self._forget = forget
        data = exchange.outgoing.data_for(link)
        self._attempt: Attempt | None = Attempt(link.connections, data, self, may_reuse=True)

    def hand_over(self) -> Attempt:
        """Return the attempt, which reports to the request from now on."""
        attempt, self._attempt = self._attempt, None
        assert attempt is not None, "it has not ended"
        attempt.report_to(self._taken)
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
        self._exchange.attempts.second = None

    def cut(self, reason: str) -> None:
        """End the attempt."""
        self.refuse(0, reason, None)

    # --- what the worker does

    def on_head(self, answer: AnswerParser) -> None:
        """Go on with this attempt in place of the first if its answer is good; else it is over."""
        exchange, ticket = self._exchange, self.action.ticket
        if answer.status >= 400 or (exchange.should_be_good(answer) and is_page(answer.content_type)):
            self.give_up("")
            status = answer.status if answer.status >= 400 else 502
            exchange.act(exchange.router_state.refused(ticket, status, monotonic()))
            return
        exchange.attempts.stop()
        exchange.trace.failed("the second attempt began first")
        exchange.act(exchange.router_state.hedge_won(exchange.ticket, monotonic()))
        self._taken.on_head(answer)

    def on_body(self, data: bytes) -> None:
        """Take nothing: at the head the attempt was handed over or stopped."""

    def on_end(self) -> None:
        """Take nothing, as `on_body`."""

    def on_failed(self, failure: EngineFailure, *, was_sent: bool) -> None:
        """Go on with the first attempt alone."""
        self._attempt = None
        exchange = self._exchange
        if exchange.attempts.second is not None:
            ticket, reason, now_s = self.action.ticket, failure.message, monotonic()
            exchange.act(exchange.router_state.failed(ticket, reason, now_s, was_sent=was_sent))

    def on_broken(self) -> None:
        """End the request with this attempt."""
        self.stop()
        self._taken.on_broken()
