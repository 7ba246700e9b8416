"""Chats whose token ids a worker may report, as vLLM prepares them for a chat template.

Source: vLLM 0.32, `entrypoints/chat_utils.py`, for text alone. Differs: several parts of one message are no
plain text, except in a tool's result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stretto.model.record import record

_OTHERWISE = (
    "add_special_tokens",
    "cache_salt",
    "chat_template",
    "continue_final_message",
    "documents",
    "functions",
    "mm_processor_kwargs",
    "reasoning_effort",
    "truncate_prompt_tokens",
)
"""Fields with which a chat's token ids, or its blocks, are others than those of its messages and tools."""
_KWARGS = ("add_generation_prompt", "enable_thinking", "thinking")
"""Arguments of templates that requests may set."""
_FUNCTION = {"name": None, "description": None, "parameters": None}
"""The fields of a function in the order in which vLLM gives them to a template."""

PROBE_CHAT: Mapping[str, Any] = {
    "messages": [
        {"role": "system", "content": "You are a café's\n\n\tguide: ½ 日本語 🎼"},
        {"role": "user", "content": "Which voice enters first, and why? 3,14"},
        {"role": "assistant", "content": "The tenor.\n\nIt has rested longest. "},
        {"role": "user", "content": " def f(x): return {'n': x[0]}  "},
    ],
    "tools": [
        {
            "function": {
                "parameters": {"type": "object", "properties": {"é": {"type": "string"}}},
                "name": "look_up",
                "description": "Looks <b>up</b> a word's use.",
            },
            "type": "function",
        },
        {"type": "function", "function": {"name": "stop"}},
    ],
    "add_generation_prompt": True,
}
"""A chat whose token ids show whether two templates, and two vocabularies, are the same."""


@record
class Chat:
    """What a chat template makes the prompt of a request from.

    Attributes:
        messages: messages as they came, which may be anything.
        tools: tools as they came; None or empty without any.
        kwargs: arguments of the template.
    """

    messages: Any
    tools: Any
    kwargs: Mapping[str, bool]

    def prepared_messages(self) -> list[dict[str, Any]]:
        """Return the messages as a template gets them.

        Raises:
            LookupError, TypeError, ValueError, AttributeError: they are none, or have more than text.
        """
        return [_prepared(message) for message in self.messages]

    def prepared_tools(self) -> list[dict[str, Any]] | None:
        """Return the tools as a template gets them; None without any. Raises as `prepared_messages`."""
        if not self.tools:
            return None
        functions = [{**_FUNCTION, **one["function"]} for one in self.tools]
        return [{"type": "function", "function": function} for function in functions]


def chat_of(path: str, fields: Mapping[str, Any]) -> Chat | None:
    """Return the chat of a request; None for other requests, and for chats whose prompt or blocks something
    else decides too.
    """
    if not path.endswith("/chat/completions") or any(fields.get(name) for name in _OTHERWISE):
        return None
    kwargs = fields.get("chat_template_kwargs") or {}
    if not isinstance(kwargs, dict):
        return None
    wanted = fields.get("add_generation_prompt")
    kwargs = {"add_generation_prompt": True if wanted is None else wanted, **kwargs}
    if not all(name in _KWARGS and isinstance(value, bool) for name, value in kwargs.items()):
        return None
    return Chat(fields.get("messages"), fields.get("tools"), kwargs)


def _prepared(message: Any) -> dict[str, Any]:
    role = message["role"]
    prepared = {"role": role, "content": _content(message.get("content"), is_tool=role == "tool")}
    if role == "assistant":
        if message.get("tool_calls"):
            prepared["tool_calls"] = [_call(one) for one in message["tool_calls"]]
        if (reasoning := message.get("reasoning")) is not None:
            prepared["reasoning"] = prepared["reasoning_content"] = reasoning
    elif role == "tool" and "tool_call_id" in message:
        prepared["tool_call_id"] = message["tool_call_id"]
    if isinstance(message.get("name"), str):
        prepared["name"] = message["name"]
    return prepared


def _content(content: Any, *, is_tool: bool) -> str:
    if isinstance(content, str | None):
        return content or ""
    if (len(content) != 1 and not is_tool) or any(part["type"] != "text" for part in content):
        raise ValueError("content that is no plain text")
    return "\n".join(part["text"] for part in content)


def _call(call: Any) -> dict[str, Any]:
    """Return a call of a tool with its arguments as an object."""
    function = call["function"]
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    elif not isinstance(arguments, dict | list):
        arguments = {}
    return {**call, "function": {**function, "arguments": arguments}}
