"""Requests of each kind that are small enough for a small model: chats with schema, tools, n, and more."""

from __future__ import annotations

from typing import Any

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
PAINT: dict[str, Any] = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "coats": {"enum": [1, 2]}},
    "required": ["colour", "coats"],
    "additionalProperties": False,
}


def function(name: str, argument: str, *values: str) -> dict[str, Any]:
    """Return a strict tool with one argument, which has one of these values."""
    schema = {
        "type": "object",
        "properties": {argument: {"enum": values}},
        "required": [argument],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "strict": True, "parameters": schema}}


TOOLS = [function("weather", "city", "Oslo", "Rome"), function("clock", "zone", "UTC", "CET")]
CLOCK = {"type": "function", "function": {"name": "clock"}}
FORM = {"type": "json_schema", "json_schema": {"name": "paint", "schema": PAINT, "strict": True}}


def chat(text: str, **fields: Any) -> dict[str, Any]:
    """Return the body of a chat without its model: greedy, and 8 tokens long, unless told otherwise."""
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8, **fields}


def kinds(text: str, seed: int = 0) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return a request of each kind that a vLLM server answers, as its path and its body without a model."""
    required = {"tools": TOOLS, "max_tokens": 96}
    return {
        "plain": (CHAT, chat(text)),
        "schema": (CHAT, chat(text, response_format=FORM, max_tokens=96)),
        "required tool": (CHAT, chat(text, tool_choice="required", **required)),
        "named tool": (CHAT, chat(text, tool_choice=CLOCK, **required)),
        "n and seed": (CHAT, chat(text, n=3, seed=seed, temperature=1, max_tokens=4)),
        "stop": (CHAT, chat(text, stop=["e"], max_tokens=16)),
        "logprobs": (CHAT, chat(text, logprobs=True, top_logprobs=2, max_tokens=2)),
        "completion": (COMPLETION, {"prompt": text, "temperature": 0, "max_tokens": 4}),
        "response": ("/v1/responses", {"input": text, "temperature": 0, "max_output_tokens": 8}),
    }
