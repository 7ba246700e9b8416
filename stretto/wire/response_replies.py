"""Answers in the form of OpenAI's newer API: a response, whole, or as the events of a stream.

A response has items: a message with the text and its sources, and calls of tools. Each event has a type, and
a number of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.wire.answers import AnswerChoice, TokenCounts
from stretto.wire.tool_calls import CallPart

_ECHOED: Mapping[str, object] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "user": None,
}
"""Fields of a request that stand in its response, and what stands there without them."""
ECHOED = (*_ECHOED, "service_tier")
"""Fields of a request that its response needs."""
_CUT: Mapping[str, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response is incomplete, by how its text has ended."""


class ResponseReply:
    """The answer to one request for a response.

    Args:
        request_id: id of the request, part of the response's id.
        model: name of the model, as the request has it.
        body: the request, or those of its fields that `ECHOED` names.
    """

    last = b""
    """What stands behind the last event: nothing."""

    def __init__(self, request_id: str, model: str, body: Mapping[str, Any]) -> None:
        self._id = request_id
        echoed = {name: usual if body.get(name) is None else body[name] for name, usual in _ECHOED.items()}
        if body.get("service_tier"):
            echoed["service_tier"] = body["service_tier"]
        self._head = {
            "id": f"resp_{request_id}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "error": None,
            "incomplete_details": None,
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            **echoed,
        }
        self._items: list[dict[str, object]] = []
        self._text: list[str] = []
        self._sources: list[dict[str, object]] = []
        self._is_message_open = False
        self._finish: str | None = None
        self._num_events = 0

    def whole(self, choices: Sequence[AnswerChoice], counts: TokenCounts) -> dict[str, object]:
        """Return the whole response."""
        self.opened(0)
        for choice in choices:
            self.chunk(choice)
        return self._response(counts)

    def opened(self, _: int) -> list[dict[str, object]]:
        """Return the events that open a stream."""
        begun = {**self._head, "status": "in_progress", "output": [], "usage": None}
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response=begun) for kind in kinds]

    def chunk(self, choice: AnswerChoice) -> list[dict[str, object]]:
        """Return the events for a piece of the answer: text, sources of the text, calls, or its end."""
        events = []
        if choice.text:
            events += self._open_message()
            self._text.append(choice.text)
            events.append(self._in_text("response.output_text.delta", delta=choice.text, logprobs=[]))
        for source in choice.sources:
            events += self._open_message()
            cited = source.to_flat_json(len("".join(self._text)))
            place = {"annotation": cited, "annotation_index": len(self._sources)}
            events.append(self._in_text("response.output_text.annotation.added", **place))
            self._sources.append(cited)
        if choice.tool_calls or choice.finish is not None:
            if not choice.tool_calls and not self._items:
                events += self._open_message()  # an answer without a text is a message, too
            events += self._close_message("incomplete" if choice.finish in _CUT else "completed")
        for call in choice.tool_calls:
            events += self._call(call)
        self._finish = choice.finish or self._finish
        return events

    def ended(self, counts: TokenCounts) -> list[dict[str, object]]:
        """Return the event that ends a stream, with the whole response."""
        response = self._response(counts)
        return [self._event(f"response.{response['status']}", response=response)]

    def _response(self, counts: TokenCounts) -> dict[str, object]:
        why = _CUT.get(self._finish or "")
        usage = {
            "input_tokens": counts.num_prompt,
            "input_tokens_details": {"cached_tokens": counts.num_cached or 0, "cache_write_tokens": 0},
            "output_tokens": counts.num_output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts.num_prompt + counts.num_output,
        }
        return {
            **self._head,
            "status": "completed" if why is None else "incomplete",
            "incomplete_details": None if why is None else {"reason": why},
            "output": list(self._items),
            "usage": usage,
        }

    # --- items

    def _open_message(self) -> list[dict[str, object]]:
        if self._is_message_open:
            return []
        self._is_message_open, self._text, self._sources = True, [], []
        item = self._message("in_progress", [])
        return [
            self._event("response.output_item.added", output_index=len(self._items), item=item),
            self._in_text("response.content_part.added", part=self._part()),
        ]

    def _close_message(self, status: str) -> list[dict[str, object]]:
        if not self._is_message_open:
            return []
        part = self._part()
        item = self._message(status, [part])
        events = [
            self._in_text("response.output_text.done", text=part["text"], logprobs=[]),
            self._in_text("response.content_part.done", part=part),
            self._event("response.output_item.done", output_index=len(self._items), item=item),
        ]
        self._is_message_open = False
        self._items.append(item)
        return events

    def _message(self, status: str, content: list[dict[str, object]]) -> dict[str, object]:
        head = {"id": self._item_id("msg"), "type": "message", "role": "assistant"}
        return {**head, "status": status, "content": content}

    def _part(self) -> dict[str, object]:
        text, sources = "".join(self._text), list(self._sources)
        return {"type": "output_text", "text": text, "annotations": sources, "logprobs": []}

    def _call(self, call: CallPart) -> list[dict[str, object]]:
        place = {"output_index": len(self._items)}
        of_item = {**place, "item_id": self._item_id("fc")}
        head = {"id": of_item["item_id"], "type": "function_call", "call_id": call.id, "name": call.name}
        item = {**head, "arguments": call.arguments, "status": "completed"}
        self._items.append(item)
        begun = {**item, "arguments": "", "status": "in_progress"}
        arguments, done = "response.function_call_arguments", {"arguments": call.arguments}
        return [
            self._event("response.output_item.added", **place, item=begun),
            self._event(f"{arguments}.delta", **of_item, delta=call.arguments),
            self._event(f"{arguments}.done", **of_item, **done, name=call.name),
            self._event("response.output_item.done", **place, item=item),
        ]

    def _item_id(self, kind: str) -> str:
        """Return the id of the item that is next, or open."""
        return f"{kind}_{self._id}_{len(self._items)}"

    def _in_text(self, kind: str, **fields: object) -> dict[str, object]:
        """Return an event of the text of the message that is open."""
        place = {"output_index": len(self._items), "content_index": 0, "item_id": self._item_id("msg")}
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: object) -> dict[str, object]:
        event = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return event
