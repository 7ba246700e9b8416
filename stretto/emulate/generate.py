"""One request for texts: its choices run at the replica, and a writer makes bytes of their tokens."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from stretto.emulate.llm_replica import EmulatedLLM
from stretto.emulate.prepared import PreparedChoice, PreparedRequest
from stretto.emulate.response_bytes import ResponseBytes
from stretto.model.tasks import Done, LLMEvent
from stretto.wire import sse
from stretto.wire.errors import ApiError

LOST = ApiError(500, "The server was restarted or put to sleep while it answered.", "InternalServerError")


class AnswerWriter(Protocol):
    """The interface of what makes the bytes of an answer, in the form of one API."""

    def opened(self, choice: PreparedChoice) -> bytes:
        """Return what a stream begins with for a choice, before its first token."""
        ...

    def token(self, choice: PreparedChoice, number: int, num_cached: int) -> bytes:
        """Return what a stream has for token `number` of a choice; for the last, also why the choice ends.

        `num_cached` is the number of tokens of the prompt that were found in the cache.
        """
        ...

    def empty(self, choice: PreparedChoice) -> bytes:
        """Return what a stream has for a choice that ends without a token."""
        ...

    def ended(self, num_cached: tuple[int, ...]) -> bytes:
        """Return what a stream ends with, given the cached tokens of each choice's prompt."""
        ...

    def whole(self, num_cached: tuple[int, ...]) -> bytes:
        """Return the whole answer of a request that is not streamed."""
        ...


class EmulatedGeneration:
    """One request for texts, from its start at a replica to its last byte.

    `outbox` has the bytes of the answer: events as they come if the request is streamed, else one document.

    Args:
        by_priority: whether the request's priority decides when it is served.
    """

    def __init__(
        self, request: PreparedRequest, replica: EmulatedLLM, writer: AnswerWriter, *, by_priority: bool
    ) -> None:
        self.outbox = ResponseBytes()
        self.is_lost = False
        """Whether the replica has forgotten the request before it ended."""
        self._request = request
        self._replica = replica
        self._writer = writer
        self._priority = request.options.priority if by_priority else None
        self._tasks: list[int] = []
        self._num_open = len(request.choices)
        self._num_cached = [0] * len(request.choices)

    def start(self) -> None:
        """Queue all choices at the replica. Raises CapacityError if one can never run."""
        options = self._request.options
        for choice in self._request.choices:
            if options.stream:
                self.outbox.put(self._writer.opened(choice))
            self._tasks.append(
                self._replica.submit(
                    list(choice.prompt),
                    choice.answer,
                    choice.max_tokens,
                    partial(self._collect, choice),
                    on_token=partial(self._stream, choice) if options.stream else None,
                    priority=self._priority,
                    salt=options.cache_salt,
                    lost=self._lost,
                )
            )

    def abort(self) -> None:
        """Stop all choices that run still."""
        for task in self._tasks:
            self._replica.cancel(task)

    def _stream(self, choice: PreparedChoice, number: int) -> None:
        """Write token `number` of a choice; the last one is written when all is known."""
        index = choice.index
        if number == 0:
            self._num_cached[index] = self._replica.num_cached(self._tasks[index])
        if number < len(choice.answer.ids) - 1:
            self.outbox.put(self._writer.token(choice, number, self._num_cached[index]))

    def _collect(self, choice: PreparedChoice, event: LLMEvent) -> None:
        if not isinstance(event, Done):
            return
        index, num_tokens = choice.index, len(choice.answer.ids)
        self._num_cached[index] = event.usage.num_cached_tokens
        if self._request.options.stream:
            last = (
                self._writer.token(choice, num_tokens - 1, self._num_cached[index])
                if num_tokens
                else self._writer.empty(choice)
            )
            self.outbox.put(last)
        self._num_open -= 1
        if self._num_open == 0:
            num_cached = tuple(self._num_cached)
            is_streamed = self._request.options.stream
            self.outbox.put(self._writer.ended(num_cached) if is_streamed else self._writer.whole(num_cached))
            self.outbox.close()

    def _lost(self) -> None:
        """Break off: the replica has forgotten the request."""
        if not self.is_lost:
            self.is_lost = True
            if self._request.options.stream:
                self.outbox.put(sse.encode_event(LOST.to_json()) + sse.DONE)
            self.outbox.close()
