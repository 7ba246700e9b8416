"""The bytes of answers in the form of OpenAI's two APIs, as vLLM sends them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from stretto.emulate.prepared import PreparedChoice, PreparedRequest
from stretto.wire import sse
from stretto.wire.answer_writing import chunk_json, whole_json
from stretto.wire.answers import AnswerChoice, ModelAnswer, TokenCounts
from stretto.wire.logprobs import TokenLogprob
from stretto.wire.response_replies import ResponseReply
from stretto.wire.tool_calls import CallPart

_MARK = "\ue000"
_LOGPROB = -0.5
_PART_CHARS = 16
"""Number of characters of a part of a call's arguments."""


class OpenAIWriter:
    """A writer of answers in the form of OpenAI's APIs.

    Args:
        number: number of the request, part of the answer's id.
        transfer: says another server where the KV of the prompt is; None for a request that does not ask.
    """

    def __init__(
        self,
        request: PreparedRequest,
        model: str,
        number: int,
        transfer: Mapping[str, object] | None = None,
    ) -> None:
        self._request = request
        self._transfer = {} if transfer is None else {"kv_transfer_params": transfer}
        prefix = "chatcmpl" if request.api == "chat" else "cmpl"
        options = request.options
        self._head = ModelAnswer(
            id=f"{prefix}-{options.request_id or number}", model=model, created_s=int(time.time())
        )
        self._is_plain = (
            options.logprobs is None and not options.return_token_ids and not options.continuous_usage
        )
        self._num_tokens = 0
        self._num_chars = [len(choice.echoed) for choice in request.choices]
        self._frames: list[tuple[bytes, bytes] | None] = [None] * len(request.choices)

    def opened(self, choice: PreparedChoice) -> bytes:
        """Return the chunk that opens a chat's choice, or echoes a prompt; else nothing."""
        opened = AnswerChoice(index=choice.index, prompt_token_ids=self._prompt_ids(choice))
        if self._request.api == "chat":
            return self._chunk(replace(opened, role="assistant"))
        if choice.echoed or opened.prompt_token_ids is not None:
            return self._chunk(replace(opened, text=choice.echoed))
        return b""

    def token(self, choice: PreparedChoice, number: int, num_cached: int) -> bytes:
        """Return the chunk of one token; nothing if it adds no text and is not the last."""
        self._num_tokens += 1
        answer, options = choice.answer, self._request.options
        piece, is_last = answer.pieces[number], number == len(answer.ids) - 1
        if self._is_plain and not is_last:
            if not piece:
                return b""
            before, behind = self._frames[choice.index] or self._frame(choice)
            return before + _as_json(piece) + behind
        opened = self._calls(choice) if is_last else b""
        offset = self._num_chars[choice.index]
        self._num_chars[choice.index] += len(piece)
        logprobs = None if options.logprobs is None else (logprob_of(piece, options.logprobs),)
        return opened + self._chunk(
            AnswerChoice(
                index=choice.index,
                text=piece,
                finish=finish_word(choice) if is_last else None,
                stop_reason=answer.stop_reason if is_last else None,
                logprobs=logprobs,
                text_offset=offset,
                token_ids=(answer.ids[number],) if options.return_token_ids else None,
            )
        )

    def empty(self, choice: PreparedChoice) -> bytes:
        """Return the chunk that ends a choice without a token."""
        return self._chunk(AnswerChoice(index=choice.index, finish=choice.answer.finish))

    def ended(self, num_cached: tuple[int, ...]) -> bytes:
        """Return the counts, if they are wanted, and the mark that ends the stream."""
        if not self._request.options.include_usage:
            return sse.DONE
        last = replace(self._head, counts=self._counts(num_cached))
        return sse.encode_event(chunk_json(self._request.api, last)) + sse.DONE

    def whole(self, num_cached: tuple[int, ...]) -> bytes:
        """Return the whole answer."""
        self._num_tokens = sum(len(choice.answer.ids) for choice in self._request.choices)
        choices = tuple(map(self._whole_choice, self._request.choices))
        answer = replace(self._head, choices=choices, counts=self._counts(num_cached))
        body = {**whole_json(self._request.api, answer), **self._transfer}
        return json.dumps(body, ensure_ascii=False).encode()

    def _whole_choice(self, choice: PreparedChoice) -> AnswerChoice:
        options, answer = self._request.options, choice.answer
        logprobs = None
        if options.logprobs is not None:
            logprobs = tuple(logprob_of(piece, options.logprobs) for piece in answer.pieces)
        return AnswerChoice(
            index=choice.index,
            text=choice.echoed + answer.text,
            tool_calls=made_calls(choice),
            finish=finish_word(choice),
            stop_reason=answer.stop_reason,
            logprobs=logprobs,
            text_offset=len(choice.echoed),
            token_ids=answer.ids if options.return_token_ids else None,
            prompt_token_ids=self._prompt_ids(choice),
        )

    def _chunk(self, choice: AnswerChoice) -> bytes:
        counts = self._counts(()) if self._request.options.continuous_usage else None
        chunk = replace(self._head, choices=(choice,), counts=counts)
        return sse.encode_event(chunk_json(self._request.api, chunk))

    def _calls(self, choice: PreparedChoice) -> bytes:
        """Return the chunks of a choice's calls: each opens with its name; its arguments come in parts."""
        parts = [part for call in made_calls(choice) for part in (replace(call, arguments=""), *_cut(call))]
        return b"".join(self._chunk(AnswerChoice(index=choice.index, tool_calls=(part,))) for part in parts)

    def _frame(self, choice: PreparedChoice) -> tuple[bytes, bytes]:
        """Return what stands before and behind the text in every plain chunk of a choice."""
        chunk = self._chunk(AnswerChoice(index=choice.index, text=_MARK))
        before, _, behind = chunk.partition(f'"{_MARK}"'.encode())
        self._frames[choice.index] = before, behind
        return before, behind

    def _counts(self, num_cached: tuple[int, ...]) -> TokenCounts:
        """Return the counts of tokens; those of a prompt with several answers count once."""
        num_prompt = self._request.num_prompt_tokens
        return TokenCounts(num_prompt, self._num_tokens, sum(num_cached[:: self._request.options.n]))

    def _prompt_ids(self, choice: PreparedChoice) -> tuple[int, ...] | None:
        return choice.prompt if self._request.options.return_token_ids else None


def made_calls(choice: PreparedChoice) -> tuple[CallPart, ...]:
    """Return the calls of a choice; none if it is cut at its limit of tokens before them."""
    return choice.calls if choice.answer.finish == "stop" else ()


def finish_word(choice: PreparedChoice) -> str:
    """Return why a choice has ended, in OpenAI's words."""
    return "tool_calls" if made_calls(choice) else choice.answer.finish


def _cut(call: CallPart) -> list[CallPart]:
    text = call.arguments
    return [
        CallPart(call.index, arguments=text[at : at + _PART_CHARS]) for at in range(0, len(text), _PART_CHARS)
    ]


@lru_cache(maxsize=1 << 14)
def _as_json(piece: str) -> bytes:
    return json.dumps(piece).encode()


def logprob_of(piece: str, num_top: int) -> TokenLogprob:
    """Return the made-up log-probability of a token, with those of `num_top` tokens in its place."""
    others = ((f"{piece}{number}", _LOGPROB - number) for number in range(1, num_top))
    return TokenLogprob(piece, _LOGPROB, ((piece, _LOGPROB), *others))


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
