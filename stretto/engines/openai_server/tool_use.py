"""Tools as a chat server takes them: functions beside the messages, calls in replies, results as messages.

A task says the same twice: its prompt in words, for servers and models that take no tools, and its decoding
setting `tools` as an offer. Where a server takes tools, the offer's instructions, the values in the prompt
and the messages made of calls are the conversation, and the words around the values are left out.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from stretto.llm.output.list_items import ListItems
from stretto.llm.output.tool_calls import WrittenCall, read_tool_call, written_answer
from stretto.model.errors import BadReply
from stretto.model.tasks import Decode
from stretto.model.tools import ToolOffer, ToolResult
from stretto.model.values import Prompt
from stretto.wire.requests import ChatMessage
from stretto.wire.tool_calls import CallPart, joined_calls

_LIKE_CALLS = re.compile(r"\s*(?:```(?:json)?\s*)?(?:<\|?(?:tool_call|python_tag)\|?>\s*)?[\[{]")
"""The beginning of a reply in which a server has left calls as the text that the model wrote."""
_ABOUT_TOOLS = re.compile(r"tool|function|jinja", re.IGNORECASE)
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_TAGS = re.compile(r"</?tool_call>|<\|python_tag\|>")


def refuses_tools(refusal: str) -> bool:
    """Return whether the words of a server's refusal are about the tools of a request."""
    return _ABOUT_TOOLS.search(refusal) is not None


def tool_messages(prompt: Prompt, offer: ToolOffer) -> tuple[ChatMessage, ...]:
    """Return the messages of a conversation with tools: instructions, question, and the turns so far."""
    messages = [ChatMessage("system", offer.instructions)]
    for place, segment in enumerate(prompt):
        if segment.calls:
            messages += _turn(segment.calls, place)
        elif segment.name is not None:
            messages.append(ChatMessage("user", segment.text))
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


def items_of(text: str, parts: list[CallPart], offer: ToolOffer, max_items: int | None) -> list[str]:
    """Return a reply with tools as a list of calls: those that the server has parsed, or else those that the
    model has written as text; or else the text is the answer.
    """
    calls = [WrittenCall(call.name, call.arguments, call.id) for call in joined_calls(parts) if call.name]
    said = text
    if not calls and _LIKE_CALLS.match(text) and (written := _written(text, offer)) is not None:
        if not written:
            return []
        calls, said = written, ""
    if not calls:
        return [written_answer(text)] if text else []
    calls = calls[:max_items]
    return [replace(calls[0], said=said).written(), *(call.written() for call in calls[1:])]


def _written(text: str, offer: ToolOffer) -> list[WrittenCall] | None:
    """Return the calls of offered tools in a text; None if it has anything else."""
    parser = ListItems(takes_calls=True)
    try:
        items = [*parser.feed(_TAGS.sub(" ", text)), *parser.finish()]
        calls = [read_tool_call(item) for item in items]
    except BadReply:
        return None
    return calls if all(call.name in offer.names for call in calls) else None
