"""The text of a prompt in the order in which a server's template is likely to put it: the tools, then the
system prompt, then the messages. It is for OpenAI's APIs and Anthropic's.

Images, audio and other long data count by their hash.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, TypeAlias

_MAX_PART = 2048
"""Characters of a value that is no text, such as the URL of an image with its data, which are kept as they
are; longer ones are hashed."""
Area: TypeAlias = Literal["tool", "system", "message", "answer", "text"]
"""What a part of a prompt is. An answer is what the model has said before; a text is a whole prompt."""
_SYSTEM_ROLES = ("system", "developer")
TOOL_FIELDS = ("tools", "functions")
_HEADS = {"messages": "system", "responses": "instructions"}
"""Field with the system prompt, by the last part of the path."""

dumped = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Returns a value as JSON in the order of its keys."""


class PromptPart(NamedTuple):
    """A part of a prompt.

    Attributes:
        place: where it stands, such as "tools[3]", "system" or "messages[2]".
        text: text of the part as `prompt_text` has it, without the role.
    """

    place: str
    area: Area
    text: str


def prompt_text(path: str, fields: Mapping[str, Any]) -> str | None:
    """Return the text of a request with messages; None for other requests."""
    api = path.rsplit("/", 1)[-1]
    if (items := _items_field(api, fields)) is None:
        return None
    tools = TOOL_FIELDS if api == "completions" else TOOL_FIELDS[:1]
    parts = [dumped(fields[name]) for name in tools if fields.get(name)]
    head = _HEADS.get(api)
    if head is not None:
        parts.append(content_text(fields.get(head)))
    items_value = fields.get(items)
    if isinstance(items_value, list):
        parts += map(message_text, items_value)
    else:
        parts.append(content_text(items_value))
    return "".join(parts)


def prompt_parts(path: str, fields: Mapping[str, Any]) -> Iterator[PromptPart]:
    """Yield the parts of a prompt, each tool and each message apart. A prompt of token ids has none."""
    api = path.rsplit("/", 1)[-1]
    items = _items_field(api, fields)
    if items is None:
        text = fields.get("text" if api == "generate" else "prompt")
        if isinstance(text, str) and api in ("generate", "completions"):
            yield PromptPart("prompt", "text", text)
        return
    for name in TOOL_FIELDS if api == "completions" else TOOL_FIELDS[:1]:
        tools = fields.get(name)
        if isinstance(tools, list):
            yield from (
                PromptPart(f"{name}[{number}]", "tool", dumped(tool)) for number, tool in enumerate(tools)
            )
    if (head := _HEADS.get(api)) is not None:
        system = fields.get(head)
        if isinstance(system, list):
            for number, one in enumerate(system):
                yield PromptPart(f"{head}[{number}]", "system", content_text(one))
        elif system:
            yield PromptPart(head, "system", content_text(system))
    messages = fields.get(items)
    if not isinstance(messages, list):
        yield PromptPart(items, "message", content_text(messages))
        return
    for number, message in enumerate(messages):
        area = area_of(message)
        if isinstance(message, dict):  # whose role counts as its area
            message = {name: value for name, value in message.items() if name != "role"}
        yield PromptPart(f"{items}[{number}]", area, message_text(message))


def tool_name(tool: Any) -> str:
    """Return the name of a tool; "" if it has none."""
    if not isinstance(tool, dict):
        return ""
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    return name if isinstance(name, str) else ""


def _items_field(api: str, fields: Mapping[str, Any]) -> str | None:
    """Return the name of the field with the messages; None if the request has no messages."""
    if api == "responses":
        return "input"
    return "messages" if api == "messages" or (api == "completions" and "messages" in fields) else None


def area_of(message: Any) -> Area:
    """Return what a message is."""
    if not isinstance(message, Mapping):
        return "message"
    role, kind = message.get("role"), message.get("type")
    if role == "assistant" or kind in ("function_call", "reasoning"):
        return "answer"
    return "system" if role in _SYSTEM_ROLES else "message"


def message_text(message: Any) -> str:
    """Return the text of a message, with its fields that are no content behind their names."""
    if not isinstance(message, dict):
        return content_text(message)
    parts: list[str] = []
    for name, value in message.items():
        if name == "content":
            parts.append(content_text(value))
        elif value is not None:
            parts += ("\0", name, "\0", value if isinstance(value, str) else dumped(value))
    return "".join(parts)


def content_text(content: Any) -> str:
    """Return the text of a message's content; parts that are no text count by their hash if they are long."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join(map(content_text, content))
    if isinstance(content, dict) and isinstance(content.get("text"), str):
        return str(content["text"])
    text = dumped(content)
    if len(text) <= _MAX_PART:
        return text
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
