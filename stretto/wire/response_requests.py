"""Requests for responses (OpenAI's newer API) as chats, which are answered in their place.

Nothing is kept here, so that what names something that is kept is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.wire.errors import unacceptable
from stretto.wire.fields import mapping

_SAME = (
    *("model", "temperature", "top_p", "stream", "parallel_tool_calls", "service_tier"),
    *("user", "metadata", "safety_identifier", "prompt_cache_key", "session_id", "program_id"),
)
"""Fields that chats have under the same name."""
_WITHOUT_MEANING: Mapping[str, tuple[object, ...]] = {
    "store": (False,),
    "background": (False,),
    "truncation": ("disabled",),
    "top_logprobs": (0,),
    "include": ([], ["reasoning.encrypted_content"]),
}
"""Values that change nothing here, where there are no thoughts, and nothing is kept or left out."""
_OWN = ("input", "instructions", "max_output_tokens", "text", "tools", "tool_choice")
NAMES_IN_RESPONSES: Mapping[str, str] = {
    "messages": "input",
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
}
"""Names of a response's fields, by those of a chat."""


def chat_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat that asks for the same as a request for a response.

    Raises:
        RequestRefused: a field is unknown, or says something that has no meaning where nothing is kept.
    """
    for name, value in body.items():
        if name not in (*_SAME, *_OWN) and not _says_nothing(name, value):
            raise unacceptable(name, f"{name} is not supported here; leave it out")
    chat = {name: body[name] for name in _SAME if body.get(name) is not None}
    chat["messages"] = _messages(body)
    if (most := body.get("max_output_tokens")) is not None:
        chat["max_completion_tokens"] = most
    if tools := body.get("tools"):
        chat["tools"] = [_tool(number, tool) for number, tool in enumerate(_list("tools", tools))]
    if (choice := body.get("tool_choice")) is not None and (tools or choice != "auto"):
        is_named = isinstance(choice, dict) and choice.get("type") == "function"
        chat["tool_choice"] = {"type": "function", "function": _rest(choice)} if is_named else choice
    if form := _form(body.get("text")):
        chat["response_format"] = form
    return chat


def _says_nothing(name: str, value: object) -> bool:
    if name == "reasoning" and isinstance(value, dict):
        return all(one is None for one in value.values())
    if name == "stream_options" and isinstance(value, dict):
        return set(value) <= {"include_obfuscation"}
    return value is None or value in _WITHOUT_MEANING.get(name, ())


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a chat: the instructions, and the items of the input."""
    sent = body.get("input")
    items = [{"role": "user", "content": sent}] if isinstance(sent, str) else _list("input", sent)
    messages: list[dict[str, Any]] = []
    if (instructions := body.get("instructions")) is not None:
        messages.append({"role": "system", "content": instructions})
    for number, item in enumerate(items):
        _add_item(messages, mapping(f"input.{number}", item), f"input.{number}")
    return messages


def _add_item(messages: list[dict[str, Any]], item: Mapping[str, Any], place: str) -> None:
    """Add an item to the messages. Calls of tools belong to the message of the model before them."""
    kind = item.get("type", "message")
    if kind == "message":
        messages.append({"role": item.get("role", ""), "content": _content(item.get("content"), place)})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        content = _content(item.get("output"), place)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
    elif kind != "reasoning":
        raise unacceptable(f"{place}.type", f"items of type {kind!r:.80} cannot be read by this model")


def _content(content: Any, place: str) -> Any:
    if not isinstance(content, list):
        return content
    return [_part(mapping(f"{place}.content.{number}", part)) for number, part in enumerate(content)]


def _part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    match part.get("type"):
        case "input_text" | "output_text":
            return {"type": "text", "text": part.get("text")}
        case "refusal":
            return {"type": "text", "text": part.get("refusal")}
        case "input_file":
            return {"type": "file", "file": _rest(part)}
    return part


def _tool(number: int, tool: Any) -> dict[str, Any]:
    found = mapping(f"tools.{number}", tool)
    if found.get("type") != "function":
        raise unacceptable(f"tools.{number}.type", "tools must be of type 'function'")
    return {"type": "function", "function": _rest(found)}


def _form(text: Any) -> dict[str, Any] | None:
    """Return the form of the answer as chats have it; None for a plain text."""
    if text is None:
        return None
    sent = mapping("text", text)
    if others := [name for name, value in sent.items() if name != "format" and value is not None]:
        raise unacceptable(f"text.{others[0]}", f"text.{others[0]} is not supported here; leave it out")
    form = sent.get("format") or {"type": "text"}
    if isinstance(form, dict) and form.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": _rest(form)}
    return None if form == {"type": "text"} else form


def _rest(tagged: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without its type."""
    return {name: value for name, value in tagged.items() if name != "type"}


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise unacceptable(name, f"{name} must be a list{' or a text' if name == 'input' else ''}")
    return value
