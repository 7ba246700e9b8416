"""The forms in which models write calls of tools, and what a call is made of.

An agent is asked for texts `NAME: INPUT`. Models that were trained to call tools write JSON objects all the
same, in the forms of those who trained them:

    {"name": "weather", "arguments": {"city": "Oslo"}}                      Hermes, Qwen, Mistral
    {"type": "function", "function": {"name": "weather", "arguments": …}}   OpenAI, arguments as JSON text
    {"name": "weather", "parameters": {"city": "Oslo"}}                     Llama 3
    {"type": "tool_use", "name": "weather", "input": {"city": "Oslo"}}      Anthropic

The input of a tool is a text: arguments that are an object or a list are given to it as JSON.

A server that parses calls itself may answer in place of calling. Such an answer stands in the list of calls
as `{"answer": …}`; a model may write that too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stretto.model.errors import BadReply

_ARGUMENTS = ("arguments", "parameters", "input")
_ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call of a tool that an LLM has written: the tool's name, and its input.

    Attributes:
        id: name that the server gave the call; "" for none.
        said: text that the LLM wrote before its calls.
    """

    name: str
    given: str
    id: str = ""
    said: str = ""

    def written(self) -> str:
        """Return the call as an item of a list of calls, from which `read_tool_call` reads it."""
        return json.dumps(self.to_json())

    def to_json(self) -> dict[str, str]:
        """Return the call as an object, without what is not known of it."""
        parts = {"id": self.id, "name": self.name, "arguments": self.given, "said": self.said}
        return {name: part for name, part in parts.items() if part or name == "arguments"}


def written_answer(text: str) -> str:
    """Return an answer as an item of a list of calls."""
    return json.dumps({_ANSWER: text})


def read_answer(text: str) -> str | None:
    """Return the answer that an item of a list of calls is; None if it is a call."""
    if not text.startswith("{"):
        return None
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    answer = value.get(_ANSWER) if isinstance(value, dict) and len(value) == 1 else None
    return answer if isinstance(answer, str) else None


def is_tool_call(value: object) -> bool:
    """Return whether a JSON value has the form of a call of a tool."""
    return isinstance(value, dict) and _parts(value) is not None


def calls_in(value: object) -> list[str]:
    """Return the calls that an object in prose is or has in a list, each as a text."""
    if is_tool_call(value):
        return [json.dumps(value, ensure_ascii=False)]
    lists = [inner for inner in value.values() if isinstance(inner, list)] if isinstance(value, dict) else []
    calls = [call for inner in lists for call in inner]
    return [call if isinstance(call, str) else json.dumps(call, ensure_ascii=False) for call in calls]


def read_tool_call(text: str) -> WrittenCall:
    """Return the call in a text: a JSON object, or a text like "search: old maps".

    Raises:
        BadReply: the text begins with a brace, and is no call; the message says what would be one.
    """
    text = text.strip()
    if not text.startswith("{"):
        name, _, given = text.partition(":")
        return WrittenCall(name.strip(), given.strip())
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise BadReply(f"the call is not JSON ({error}); write NAME: INPUT") from error
    parts = _parts(value) if isinstance(value, dict) else None
    if parts is None:
        raise BadReply(
            'the call has no name or no arguments; write NAME: INPUT, or {"name": …, "arguments": …}'
        )
    name, arguments = parts
    own, said = (str(value.get(key) or "") for key in ("id", "said"))
    if arguments is None or isinstance(arguments, str):
        return WrittenCall(name, arguments or "", own, said)
    return WrittenCall(name, json.dumps(arguments, ensure_ascii=False), own, said)


def _parts(value: Mapping[str, Any]) -> tuple[str, object] | None:
    """Return the name and the arguments of a call; None if the object is no call."""
    inner = value.get("function")
    call = inner if isinstance(inner, dict) else value
    name = call.get("name")
    arguments = next((call[key] for key in _ARGUMENTS if key in call), _parts)
    if not isinstance(name, str) or not name.strip() or arguments is _parts:
        return None
    return name.strip(), arguments
