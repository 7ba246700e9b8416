"""Answers of the API as JSON: whole ones, and the chunks of streams.

A `ReplyForm` writes them in the words of one API: `CompletionForm` for chats and completions,
`ResponseReply` for responses. `TextReply` reads the texts of LLM calls for it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from stretto.service.openai.generation import GeneratedText, counts_of
from stretto.service.openai.tool_answer import ToolAnswer
from stretto.service.openai.wanted import WantedText
from stretto.wire.answer_writing import chunk_json, whole_json
from stretto.wire.answers import AnswerChoice, ModelAnswer, TokenCounts
from stretto.wire.paths import Api
from stretto.wire.sse import DONE

_PREFIXES: Mapping[Api, str] = {"chat": "chatcmpl", "completions": "cmpl"}


class ReplyForm(Protocol):
    """The form of the answer to one request.

    Attributes:
        last: what stands behind the last event of a stream.
    """

    last: bytes

    def whole(self, choices: Sequence[AnswerChoice], counts: TokenCounts) -> dict[str, object]:
        """Return a whole answer."""
        ...

    def opened(self, index: int) -> list[dict[str, object]]:
        """Return the events that open one of the answers of a stream."""
        ...

    def chunk(self, choice: AnswerChoice) -> list[dict[str, object]]:
        """Return the events for a piece of an answer."""
        ...

    def ended(self, counts: TokenCounts) -> list[dict[str, object]]:
        """Return the events that end a stream."""
        ...


class CompletionForm:
    """The answer to a chat, or to a request for completions.

    Args:
        request_id: id of the request, part of the answer's id.
        model: name of the model, as the request has it.
        tier: `service_tier` of the request; None if it has none.
        has_usage: whether a stream ends with the counts.
    """

    last = DONE

    def __init__(
        self, api: Api, request_id: str, model: str, tier: str | None = None, *, has_usage: bool = False
    ) -> None:
        self._api = api
        self._has_usage = has_usage
        self._tier = {} if tier is None else {"service_tier": tier}
        answer_id = f"{_PREFIXES[api]}-{request_id}"
        self._head = ModelAnswer(id=answer_id, model=model, created_s=int(time.time()))

    def whole(self, choices: Sequence[AnswerChoice], counts: TokenCounts) -> dict[str, object]:
        """Return a whole answer."""
        answer = replace(self._head, choices=tuple(choices), counts=counts)
        return {**whole_json(self._api, answer), **self._tier}

    def chunk(self, choice: AnswerChoice) -> list[dict[str, object]]:
        """Return a chunk of a streamed answer."""
        return [{**chunk_json(self._api, replace(self._head, choices=(choice,))), **self._tier}]

    def opened(self, index: int) -> list[dict[str, object]]:
        """Return what opens a streamed answer: of a chat, a chunk with its role."""
        return self.chunk(AnswerChoice(index=index, role="assistant")) if self._api == "chat" else []

    def ended(self, counts: TokenCounts) -> list[dict[str, object]]:
        """Return the chunk without choices that has the counts, if they are wanted."""
        if not self._has_usage:
            return []
        return [{**chunk_json(self._api, replace(self._head, counts=counts)), **self._tier}]


class TextReply:
    """The answers of LLM calls to one request, whole or as they come.

    Args:
        form: writes them.
        request_id: id of the request, part of the ids of calls.
    """

    def __init__(self, wanted: WantedText, form: ReplyForm, request_id: str) -> None:
        self.form = form
        self._wanted = wanted
        self._request_id = request_id
        self._ended: dict[int, GeneratedText] = {}
        self._begun: set[int] = set()
        self._tools: dict[int, ToolAnswer] = {}

    def whole(self, answers: Sequence[GeneratedText]) -> dict[str, object]:
        """Return the whole answer."""
        choices = []
        for index, one in enumerate(answers):
            text = self._fed(index, one.text)
            last = self._last(index, one)
            choices.append(replace(last, text=self._echo(index) + text + last.text))
        return self.form.whole(choices, counts_of(answers, self._wanted.n))

    def events(self, index: int, piece: str | GeneratedText) -> list[dict[str, object]]:
        """Return the events for a piece of an answer, or for its end."""
        events: list[dict[str, object]] = []
        if index not in self._begun:
            self._begun.add(index)
            events += self.form.opened(index)
            if echo := self._echo(index):
                events += self.form.chunk(AnswerChoice(index=index, text=echo))
        if isinstance(piece, str):
            if text := self._fed(index, piece):
                events += self.form.chunk(AnswerChoice(index=index, text=text))
            return events
        self._ended[index] = piece
        last = self._last(index, piece)
        if last.text or last.tool_calls:
            events += self.form.chunk(replace(last, finish=None))
        events += self.form.chunk(AnswerChoice(index=index, finish=last.finish))
        return events

    def ended(self) -> list[dict[str, object]]:
        """Return the events that end a stream."""
        answers = [self._ended[index] for index in sorted(self._ended)]
        return self.form.ended(counts_of(answers, self._wanted.n))

    def _echo(self, index: int) -> str:
        return self._wanted.echoes[index // self._wanted.n] if self._wanted.echoes else ""

    def _fed(self, index: int, piece: str) -> str:
        """Return the text to show that a piece adds."""
        return piece if self._wanted.tools is None else self._answer(index).feed(piece)

    def _last(self, index: int, ended: GeneratedText) -> AnswerChoice:
        """Return what the end of an answer adds: the rest of its text, calls, and how it has ended."""
        last = AnswerChoice(index=index, finish=ended.finish)
        if self._wanted.tools is None:
            return last
        text, calls = self._answer(index).finish()
        return replace(
            last,
            text=text,
            tool_calls=calls,
            finish="tool_calls" if calls and ended.finish == "stop" else ended.finish,
        )

    def _answer(self, index: int) -> ToolAnswer:
        assert self._wanted.tools is not None
        if index not in self._tools:
            self._tools[index] = ToolAnswer(f"{self._request_id}-{index}", self._wanted.tools)
        return self._tools[index]
