"""The messages of a chat as a prompt. Models know three roles; what tools returned is a message of the user.

Calls and results of tools are written in the form that `ToolUse` asks models for, so that an answer stands in
the next prompt as it was generated. Beside these words stands what servers that take tools get (`ToolPart`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.graph.one_call import PromptMessage
from stretto.model.tools import ToolPart, ToolResult
from stretto.service.openai.errors import invalid, unsupported
from stretto.service.openai.tools import ToolUse
from stretto.wire.requests import ChatMessage

MAX_MESSAGES = 4096
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "user"}
_OUTPUTS = ("annotations", "refusal", "audio", "function_call")
"""Fields of an answer that clients send back with it. `annotations` cite sources of the text; the others are
refused where they say something."""
_BETWEEN = "\n\n"


def prompt_of(messages: Sequence[ChatMessage], tools: ToolUse | None) -> tuple[PromptMessage, ...]:
    """Return the prompt that asks a model to answer a chat.

    System messages at the beginning become one, with the description of the tools at its end.

    Raises:
        Refused: a message has a role, a part or a field that cannot be part of a prompt.
    """
    if len(messages) > MAX_MESSAGES:
        raise invalid("messages", f"there are {len(messages)} messages; at most {MAX_MESSAGES} are read")
    names: dict[str, str] = {}
    results = _results(messages)
    found: list[tuple[str, list[str], list[ToolPart | None]]] = []
    was_tool = False
    for place, message in enumerate(messages):
        role = _ROLES.get(message.role)
        if role is None:
            known = ", ".join(_ROLES)
            raise invalid(
                f"messages.{place}.role", f"the role {message.role!r:.80} is unknown; known: {known}"
            )
        text = _text(message, f"messages.{place}", names, results, is_with_tools=tools is not None)
        is_tool = message.role == "tool"
        is_head = role == "system" and len(found) == 1 and found[0][0] == "system"
        if not is_head and not (is_tool and was_tool):
            found.append((role, [], []))
        found[-1][1].append(text.words if isinstance(text, ToolPart) else text)
        found[-1][2].append(text if isinstance(text, ToolPart) else None)
        was_tool = is_tool
    prompt = [_joined(*one) for one in found]
    if tools is not None:
        words, has_head = tools.instructions(), found[0][0] == "system"
        words = f"{_BETWEEN}{words}" if has_head else words
        told = PromptMessage(None if has_head else "system", words, ToolPart(words))
        prompt.insert(int(has_head), told)
    return tuple(prompt)


def _joined(role: str, texts: Sequence[str], parts: Sequence[ToolPart | None]) -> PromptMessage:
    """Return messages that are one in words; `parts` are None where they tell nothing of tools."""
    words = _BETWEEN.join(texts)
    if len(parts) == 1 or None in parts:
        return PromptMessage(role, words, parts[0] if len(parts) == 1 else None)
    return PromptMessage(role, words, ToolPart(words))


def _results(messages: Sequence[ChatMessage]) -> Mapping[str, str]:
    """Return what tools have returned, by the ids of the calls."""
    return {
        str(message.extra.get("tool_call_id")): _plain_text(message, f"messages.{place}")
        for place, message in enumerate(messages)
        if message.role == "tool"
    }


def _text(
    message: ChatMessage,
    place: str,
    names: dict[str, str],
    results: Mapping[str, str],
    *,
    is_with_tools: bool,
) -> str | ToolPart:
    """Return the text of a message, or the part of a conversation with tools that it is.

    Args:
        names: names of the tools that earlier messages called, by the ids of the calls.
        results: what tools have returned, by the same ids.
    """
    extra = {name: value for name, value in message.extra.items() if value is not None}
    extra.pop("annotations", None)
    calls = extra.pop("tool_calls", None) if message.role == "assistant" else None
    call_id = extra.pop("tool_call_id", None) if message.role == "tool" else None
    tool = extra.pop("name", None) if message.role == "tool" else None
    if unknown := [name for name, value in extra.items() if name not in _OUTPUTS or value not in ("", [])]:
        raise unsupported(f"{place}.{unknown[0]}")
    text = _plain_text(message, place)
    if calls:
        return _called(calls, text, f"{place}.tool_calls", names, results)
    if message.role == "tool":
        if not isinstance(call_id, str):
            raise invalid(f"{place}.tool_call_id", "a message of a tool names the call that it answers")
        name = tool if isinstance(tool, str) else names.get(call_id, "")
        words = f"Result of {name or call_id}: {text}"
        return ToolPart(words) if call_id in names else words  # else no message has the call
    if message.role == "assistant" and is_with_tools:
        return ToolPart(ToolUse.written_answer(text), text)
    return text


def _plain_text(message: ChatMessage, place: str) -> str:
    if message.content is None:
        if message.role != "assistant":
            raise invalid(f"{place}.content", "a message has a content")
        return ""
    if isinstance(message.content, str):
        return message.content
    for number, part in enumerate(message.content):
        if part["type"] != "text":
            raise unsupported(
                f"{place}.content.{number}",
                f"parts of type {part['type']!r:.80} cannot be read by this model",
            )
    return message.text


def _called(calls: Any, text: str, place: str, names: dict[str, str], results: Mapping[str, str]) -> ToolPart:
    """Return an assistant's message that calls tools, with the results; note the names of the tools."""
    if not isinstance(calls, list):
        raise invalid(place, "must be a list")
    written: list[Mapping[str, object]] = []
    turn: list[ToolResult] = []
    for number, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        call_id = call.get("id") if isinstance(call, dict) else None
        if not isinstance(name, str) or not isinstance(arguments, str) or not isinstance(call_id, str):
            raise invalid(f"{place}.{number}", "a call has an id, and a function with name and arguments")
        names[call_id] = name
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            given = arguments
        written.append({"name": name, "arguments": given})
        turn.append(ToolResult(name, arguments, results.get(call_id, ""), id=call_id, said=text))
    words = (f"{text}{_BETWEEN}" if text else "") + ToolUse.written_calls(written)
    return ToolPart(words, calls=tuple(turn))
