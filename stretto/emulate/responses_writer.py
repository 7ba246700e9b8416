"""The bytes of answers in the form of OpenAI's newer API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.emulate.openai_writer import finish_word, made_calls
from stretto.emulate.prepared import PreparedChoice, PreparedRequest
from stretto.wire import sse
from stretto.wire.answers import AnswerChoice, TokenCounts
from stretto.wire.response_replies import ResponseReply


class ResponsesWriter:
    """A writer of the answer to one request for a response, which has one choice.

    Args:
        number: number of the request, part of the response's id.
        body: the request as it came.
    """

    def __init__(self, request: PreparedRequest, model: str, number: int, body: Mapping[str, Any]) -> None:
        self._request = request
        self._reply = ResponseReply(str(number), model, body)

    def opened(self, choice: PreparedChoice) -> bytes:
        """Return the events that open a stream."""
        return _encoded(self._reply.opened(choice.index))

    def token(self, choice: PreparedChoice, number: int, num_cached: int) -> bytes:
        """Return the events of one token; nothing if it adds no text and is not the last."""
        is_last = number == len(choice.answer.ids) - 1
        events = self._reply.chunk(AnswerChoice(text=choice.answer.pieces[number]))
        return _encoded(events) + (self._end(choice) if is_last else b"")

    def empty(self, choice: PreparedChoice) -> bytes:
        """Return the events of an answer without a token."""
        return self._end(choice)

    def ended(self, num_cached: tuple[int, ...]) -> bytes:
        """Return the event that ends a stream."""
        return _encoded(self._reply.ended(self._counts(num_cached)))

    def whole(self, num_cached: tuple[int, ...]) -> bytes:
        """Return the whole response."""
        (choice,) = self._request.choices
        said = AnswerChoice(
            text=choice.answer.text, tool_calls=made_calls(choice), finish=finish_word(choice)
        )
        return json.dumps(self._reply.whole([said], self._counts(num_cached)), ensure_ascii=False).encode()

    def _end(self, choice: PreparedChoice) -> bytes:
        ending = AnswerChoice(tool_calls=made_calls(choice), finish=finish_word(choice))
        return _encoded(self._reply.chunk(ending))

    def _counts(self, num_cached: tuple[int, ...]) -> TokenCounts:
        num_output = sum(len(choice.answer.ids) for choice in self._request.choices)
        return TokenCounts(self._request.num_prompt_tokens, num_output, sum(num_cached))


def _encoded(events: Sequence[Mapping[str, object]]) -> bytes:
    return b"".join(b"event: %b\n" % str(one["type"]).encode() + sse.encode_event(one) for one in events)
