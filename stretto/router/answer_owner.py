"""What the answer to a request asks of the exchange that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from stretto.http.body_readers import BodyReaders
from stretto.http.client.answer_parser import AnswerParser
from stretto.http.client_request import ClientRequest
from stretto.http.served import Answering
from stretto.router.answers import UsageReader
from stretto.router.attempts import Attempts
from stretto.router.messages import RouterAction, Ticket
from stretto.router.outgoing import OutgoingRequest
from stretto.router.programs import RoutedProgram
from stretto.router.router_state import RouterState
from stretto.sched.request_trace import RequestTrace


class AnswerOwner(Protocol):
    """The exchange of a request, as its answer knows it. Attributes are those of `RoutedExchange`."""

    client: Answering
    request: ClientRequest
    readers: BodyReaders
    program: RoutedProgram | None
    ticket: Ticket
    outgoing: OutgoingRequest
    trace: RequestTrace
    attempts: Attempts
    act: Callable[[Sequence[RouterAction]], None]

    @property
    def router_state(self) -> RouterState:
        """The state machine."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether the request has been answered, or its client has left."""
        ...

    def should_be_good(self, answer: AnswerParser) -> bool:
        """Return whether an answer says that it is what was asked for, where others may be asked too."""
        ...

    def head_came(self) -> None:
        """Note that the head of an answer has come that is kept until it is whole."""
        ...

    def answered(self, answer: AnswerParser, read: UsageReader) -> None:
        """Note that the last bytes of an answer are written."""
        ...

    def refused_by_worker(self, status: int, reason: str, wait_s: float | None) -> None:
        """Bring an answer to the state machine that is not passed on."""
        ...

    def fail(self, message: str) -> None:
        """End everything with an error of the router."""
        ...

    def end_second(self) -> None:
        """Abort the second attempt, if there is one."""
        ...
