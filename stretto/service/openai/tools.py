"""Tools of a chat: the answer is one JSON object, which a schema holds models in this process to.

    {"tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}
    {"answer": "It rains in Oslo."}

So every model that can be held to a schema can call tools, and no call names an unknown tool or has wrong
arguments. Where a call is required the second form is not allowed, and where the chat asks for JSON of a
schema the answer is that JSON.

A server that takes tools is offered them in its own form (`Decode.tools`), and its reply comes in the same
object, which may then have both. The answer that is JSON of a schema is asked for in words there, too: a
server holds either calls to schemas or the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.model.tools import ToolChoice, ToolFunction, ToolOffer
from stretto.service.openai.errors import invalid, unsupported
from stretto.transforms.call_schemas import calls_schema, moved, object_schema
from stretto.wire.fields import Fields, flag, mapping, text

MAX_TOOLS = 128
_MAX_CALLS = 8
"""Largest number of calls in one answer."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ANSWER, _CALLS = "answer", "tool_calls"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a chat says of tools.

    Attributes:
        functions: functions that the answer may call.
        is_required: whether the answer must call one.
        max_calls: largest number of calls in the answer.
        answer: JSON schema of an answer that calls nothing; None for a text.
    """

    functions: tuple[ToolFunction, ...]
    is_required: bool = False
    max_calls: int = _MAX_CALLS
    answer: Mapping[str, Any] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the functions."""
        return tuple(one.name for one in self.functions)

    def schema(self) -> str:
        """Return the JSON schema of the answer, as text.

        Raises:
            Refused: a schema is nested too deeply.
        """
        try:
            return json.dumps(self._schema())
        except RecursionError as error:
            raise invalid("tools", "a schema is nested too deeply") from error

    def _schema(self) -> dict[str, object]:
        listed, defs = calls_schema(self.functions, self.max_calls, min_calls=1)
        forms = [object_schema(**{_CALLS: listed})]
        if not self.is_required:
            answer: object = {"type": "string"}
            if self.answer is not None:
                defs[_ANSWER] = moved(self.answer, f"#/$defs/{_ANSWER}")
                answer = {"$ref": f"#/$defs/{_ANSWER}"}
            forms.append(object_schema(**{_ANSWER: answer}))
        return {"anyOf": forms, "$defs": defs}

    def offer(self) -> str:
        """Return what servers that take tools are sent, as the decoding setting `tools`; "" for nothing."""
        if self.answer is not None:
            return ""
        choice: ToolChoice = "required" if self.is_required else "auto"
        functions = tuple(one.to_openai() for one in self.functions)
        return ToolOffer("", functions, choice, max_calls=self.max_calls).to_json()

    def instructions(self) -> str:
        """Return the text that tells the model of its tools and of the form of its answer."""
        lines = [
            json.dumps(
                {"name": one.name, "description": one.description, "parameters": one.parameters},
                ensure_ascii=False,
            )
            for one in self.functions
        ]
        ask = f'To call tools, write {{"{_CALLS}": [{{"name": NAME, "arguments": ARGUMENTS}}]}}.'
        if not self.is_required:
            ask += f' To answer without a tool, write {{"{_ANSWER}": ANSWER}}.'
        return "\n".join(["You can call these tools:", *lines, "Write one JSON object.", ask])

    @staticmethod
    def written_answer(answer: str) -> str:
        """Return an answer without calls as the model has written it."""
        return json.dumps({_ANSWER: answer}, ensure_ascii=False)

    @staticmethod
    def written_calls(calls: Sequence[Mapping[str, object]]) -> str:
        """Return calls (name and arguments) as the model has written them."""
        return json.dumps({_CALLS: list(calls)}, ensure_ascii=False)


def read_tools(
    tools: Sequence[Mapping[str, Any]], choice: Any, is_parallel: bool, answer: Mapping[str, Any] | None
) -> ToolUse | None:
    """Read what a chat says of tools; None if the answer may call none.

    Args:
        choice: field `tool_choice`; None if there is none.
        is_parallel: whether an answer may have several calls.
        answer: JSON schema of an answer that calls nothing; None for a text.

    Raises:
        Refused, RequestRefused: a tool or the choice has another form, or cannot be honoured.
    """
    if not tools:
        if choice not in (None, "none"):
            raise invalid("tool_choice", "there are no tools to choose from")
        return None
    if len(tools) > MAX_TOOLS:
        raise invalid("tools", f"there are {len(tools)} tools; at most {MAX_TOOLS} are read")
    functions = tuple(_function(f"tools.{number}", tool) for number, tool in enumerate(tools))
    if len({one.name for one in functions}) < len(functions):
        raise invalid("tools", "two tools have the same name")
    max_calls = _MAX_CALLS if is_parallel else 1
    match choice:
        case None | "auto":
            return ToolUse(functions, max_calls=max_calls, answer=answer)
        case "none":
            return None
        case "required":
            return ToolUse(functions, is_required=True, max_calls=max_calls)
        case {"type": "function", "function": {"name": name}}:
            chosen = tuple(one for one in functions if one.name == name)
            if not chosen:
                raise invalid("tool_choice", f"there is no tool {name!r:.80}")
            return ToolUse(chosen, is_required=True, max_calls=1)
    raise unsupported("tool_choice", "tool_choice must be auto, none, required, or name a function")


def _function(place: str, tool: Mapping[str, Any]) -> ToolFunction:
    if tool.get("type") != "function":
        raise unsupported(f"{place}.type", "tools must be of type 'function'")
    sent = Fields(mapping(f"{place}.function", tool.get("function")))
    name = sent.take("name", text, "")
    if not _NAME.fullmatch(name):
        raise invalid(f"{place}.function.name", "a name has 1 to 64 letters, digits and _, . or -")
    found = ToolFunction(
        name,
        sent.take("description", text, ""),
        sent.take("parameters", mapping, {"type": "object", "properties": {}}),
        sent.take("strict", flag, False),  # models in this process are held to the schema in any case
    )
    if unknown := [key for key, value in sent.left().items() if value is not None]:
        raise unsupported(f"{place}.function.{unknown[0]}")
    return found
