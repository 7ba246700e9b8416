"""Tools as a chat server takes them: functions beside the messages, calls in replies, results as messages.

A task says the same twice: its prompt in words, for servers and models that take no tools, and its decoding
setting `tools` as an offer. Where a server takes tools, the offer's instructions, the values in the prompt
and the messages made of calls are the conversation, and the words around the values are left out.

The reply comes in the form in which the words ask for it, whoever has made the calls: as a list of them
(`items = "calls"`), or as one object with calls or a text (`ObjectReply`).
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from stretto.llm.output.tool_calls import WrittenCall, written_answer
from stretto.llm.output.written_calls import may_begin_calls, written_calls, written_calls_of_objects
from stretto.model.tasks import Decode
from stretto.model.tools import ToolOffer, ToolResult
from stretto.model.values import Prompt
from stretto.wire.requests import ChatMessage
from stretto.wire.tool_calls import CallPart, joined_calls

_ABOUT_TOOLS = re.compile(r"tool|function|jinja", re.IGNORECASE)
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_MOST_BEGIN = 1000
"""Characters after which a reply that may still be calls is held until its end, without another look."""


def refuses_tools(refusal: str) -> bool:
    """Return whether the words of a server's refusal are about the tools of a request."""
    return _ABOUT_TOOLS.search(refusal) is not None


def tool_messages(prompt: Prompt, offer: ToolOffer) -> tuple[ChatMessage, ...]:
    """Return the messages of a conversation with tools: instructions, question, and the turns so far."""
    messages = [ChatMessage("system", offer.instructions)] if offer.instructions else []
    role = "user"
    for place, segment in enumerate(prompt):
        role = segment.role or role
        if (part := segment.tools) is not None:
            messages += [ChatMessage(role, part.text)] if part.text else []
            messages += _turn(part.calls, place) if part.calls else []
        elif segment.name is not None:
            messages.append(ChatMessage(role, segment.text))
    return tuple(messages)


def _turn(calls: tuple[ToolResult, ...], place: int) -> list[ChatMessage]:
    """Return the messages of a turn: the model's calls, and the result of each."""
    names = [call.id or f"call_{place}_{number}" for number, call in enumerate(calls)]
    listed = [
        {"id": name, "type": "function", "function": {"name": _name(call), "arguments": _object(call)}}
        for name, call in zip(names, calls, strict=True)
    ]
    said = next((call.said for call in calls if call.said), None)
    results = [
        ChatMessage("tool", call.text, {"tool_call_id": name})
        for name, call in zip(names, calls, strict=True)
    ]
    return [ChatMessage("assistant", said, {"tool_calls": listed}), *results]


def _name(call: ToolResult) -> str:
    """Return the name of a call as servers take it, also if the model wrote no name."""
    return _NO_NAME.sub("_", call.name)[:64] or "_"


def _object(call: ToolResult) -> str:
    """Return the arguments of a call as a JSON object, which servers want, also if the model wrote none."""
    try:
        given = json.loads(call.arguments or "{}", strict=False)
    except (ValueError, RecursionError):
        given = None
    return (
        call.arguments
        if isinstance(given, dict) and call.arguments
        else json.dumps(given if isinstance(given, dict) else {"input": call.arguments})
    )


def asked_with(decode: Decode, offer: ToolOffer) -> Decode:
    """Return the settings of a request with tools: its reply is a text, calls, or both."""
    return replace(
        decode,
        items=None,
        max_items=None,
        fallback=None,
        json_schema=None,
        schema_if_able=False,
        max_tokens=max(decode.max_tokens, offer.max_tokens) if decode.items else decode.max_tokens,
    )


def _made(parts: list[CallPart]) -> list[WrittenCall]:
    """Return the calls that a server has parsed."""
    return [WrittenCall(call.name, call.arguments, call.id) for call in joined_calls(parts) if call.name]


class ListReply:
    """A reply with tools as a list of calls: those that the server has parsed, or else those that the model
    has written as text; or else the text is the answer. Nothing of it is passed on before its end.

    Args:
        max_calls: largest number of calls; None for no limit.

    Attributes:
        value: the list, at the end.
    """

    def __init__(self, offer: ToolOffer, max_calls: int | None) -> None:
        self._offer = offer
        self._max_calls = max_calls
        self._pieces: list[str] = []
        self.value: list[str] = []

    def feed(self, text: str) -> list[str]:
        """Take more of the reply's text."""
        self._pieces.append(text)
        return []

    def finish(self, parts: list[CallPart]) -> list[str]:
        """Take the calls that the server has parsed, at the end of the reply; return the items."""
        calls, text = _made(parts), "".join(self._pieces)
        said = text
        if not calls and (written := written_calls(text, self._offer.names)) is not None:
            calls, said, text = written, "", ""
        if calls:
            calls = calls[: self._max_calls]
            self.value = [replace(calls[0], said=said).written(), *(call.written() for call in calls[1:])]
        elif text:
            self.value = [written_answer(text)]
        return list(self.value)


class ObjectReply:
    """A reply with tools as one JSON object: `{"answer": "…", "tool_calls": [{"name": …, "arguments": …}]}`,
    of which either may be missing. Its text is passed on as it comes, unless it may turn out to be calls.
    """

    def __init__(self, offer: ToolOffer) -> None:
        self._offer = offer
        self._begin = ""
        self._held: list[str] = []
        self._has_text = False
        self._written: list[str] = []

    @property
    def value(self) -> str:
        """The object as far as it has been written."""
        return "".join(self._written)

    def feed(self, text: str) -> list[str]:
        """Take more of the reply's text; return what that adds to the object."""
        if self._has_text:
            return [self._write(_inside(text))]
        self._held.append(text)
        if len(self._begin) >= _MOST_BEGIN:
            return []
        self._begin += text
        return [] if may_begin_calls(self._begin) else [self._begin_text("".join(self._held))]

    def finish(self, parts: list[CallPart]) -> list[str]:
        """Take the calls that the server has parsed at the end of the reply; return the object's end."""
        calls, added, held = _made(parts), "", "".join(self._held)
        if not calls and not self._has_text:
            calls = written_calls_of_objects(held, self._offer.names)
            held = "" if calls else held
        if not self._has_text and (held.strip() or not calls):
            added = self._begin_text(held)
        if self._has_text:
            added += self._write('"')
        if calls:
            listed = [call.to_json() for call in calls[: self._offer.max_calls]]
            begin = ", " if self._has_text else "{"
            added += self._write(f'{begin}"tool_calls": {json.dumps(listed, ensure_ascii=False)}')
        return [added + self._write("}")]

    def _begin_text(self, text: str) -> str:
        self._has_text = True
        return self._write('{"answer": "' + _inside(text))

    def _write(self, text: str) -> str:
        self._written.append(text)
        return text


def reply_form(offer: ToolOffer, wanted: Decode) -> ListReply | ObjectReply | None:
    """Return the form in which a reply with tools is wanted; None for a text as it is."""
    if wanted.items is not None:
        return ListReply(offer, wanted.max_items)
    return None if offer.choice == "none" else ObjectReply(offer)


def _inside(text: str) -> str:
    """Return a text as it stands inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
