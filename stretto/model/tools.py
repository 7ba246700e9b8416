"""Tools of an agent: Python functions that an LLM may call, what came of a call, and the record of a run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from stretto.model.errors import ConfigError
from stretto.model.record import record

_TEXT_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    }
)
_MAX_NAME_CHARS = 64  # OpenAI's limit


@record
class ToolFunction:
    """A tool as a model is told of it.

    Attributes:
        parameters: JSON schema of its arguments, an object.
        strict: whether a server is asked to hold calls to the schema.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False

    def to_openai(self) -> dict[str, Any]:
        """Return it in the form of OpenAI's field `tools`."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": {**function, **({"strict": True} if self.strict else {})}}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that an LLM may call. `stretto.components.tool` makes one of a Python function.

    Attributes:
        name: name by which the LLM calls it: letters, digits, underscores and hyphens, at most 64.
        description: what it does, on one line, for the LLM to read.
        function: function from the arguments to the result, which the LLM reads as text: data such as a dict
            as JSON. It may be a coroutine function. Arguments come as one text: without a `schema` the input,
            with one a JSON object. It raises `BadArguments` for arguments that it cannot use.
        effects: whether it changes something outside the app. Such a function is called once for each call
            that the LLM writes, never again after a failure, and the calls of a turn run one after the other.
        schema: JSON schema of the arguments, an object, as JSON text; "" for a tool that takes one text.
        timeout_s: seconds that a call may take. The run then goes on without it; a function that is no
            coroutine function cannot be stopped.
        idempotent: whether a function with effects may be called again with the same arguments, because that
            changes nothing more.
    """

    name: str
    description: str
    function: Callable[[str], object]
    effects: bool = False
    schema: str = ""
    timeout_s: float = 60.0
    idempotent: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w-]+", self.name, re.ASCII) or len(self.name) > _MAX_NAME_CHARS:
            raise ConfigError(
                f"tool {self.name!r}: a name is at most {_MAX_NAME_CHARS} letters, digits, underscores and "
                "hyphens"
            )
        if not self.description.strip() or "\n" in self.description:
            raise ConfigError(f"tool {self.name!r}: the description must be one line of text")
        if not 0 < self.timeout_s < math.inf:
            raise ConfigError(f"tool {self.name!r}: timeout_s must be positive, got {self.timeout_s!r}")
        if self.idempotent and not self.effects:
            raise ConfigError(f"tool {self.name!r}: idempotent=True is for tools with effects=True")

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON schema of the arguments, an object."""
        found: Mapping[str, Any] = json.loads(self.schema or _TEXT_SCHEMA)
        return found

    @property
    def declared(self) -> ToolFunction:
        """The tool as a model is told of it."""
        return ToolFunction(self.name, self.description, self.parameters)


ToolChoice: TypeAlias = Literal["auto", "required", "none"]
"""Whether a reply may call tools, must call one, or must call none."""


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """What a server that takes calls of tools is sent besides the conversation.

    Attributes:
        instructions: text of the system message; "" if the conversation has its own, or none.
        tools: functions that the LLM may call, in OpenAI's form.
        max_tokens: largest number of output tokens, whether the reply is calls or an answer.
        max_calls: largest number of calls in a reply; None leaves it to the decode.
    """

    instructions: str
    tools: tuple[Mapping[str, Any], ...]
    choice: ToolChoice = "auto"
    max_tokens: int = 256
    max_calls: int | None = None

    def to_json(self) -> str:
        """Return the offer as JSON text, the form in which settings of steps hold it."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> ToolOffer:
        """Read what `to_json` has written."""
        found = json.loads(text)
        return ToolOffer(**{**found, "tools": tuple(found["tools"])})

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools."""
        return tuple(tool["function"]["name"] for tool in self.tools)


class BadArguments(ValueError):
    """A tool cannot use the arguments that an LLM has written. The message tells the LLM what is wrong."""


ToolOutcome: TypeAlias = Literal["done", "failed", "refused", "timed_out", "in_doubt"]
"""How a call of a tool has ended: it returned, it raised, it was not made because the call cannot be used, it
took too long, or nobody knows whether its effect has happened."""


@record
class ToolResult:
    """A call of a tool that an LLM has written, and what came of it.

    Attributes:
        name: name of the tool, as it was written.
        arguments: arguments as they were written: JSON text, or the input of a tool that takes one text.
        text: what the LLM reads: the result, or what was wrong.
        id: name that the server gave the call; "" for none.
        said: text that the LLM wrote before its calls.
    """

    name: str
    arguments: str
    text: str
    outcome: ToolOutcome = "done"
    id: str = ""
    said: str = ""

    def __str__(self) -> str:
        call = f"{self.name}: {self.arguments}" if self.arguments else self.name
        return f"{call}\n{self.text}"


@record
class ToolPart:
    """A part of a conversation with tools, in words and as servers take it that take tools.

    Attributes:
        words: the part as models read it that are told of tools in words.
        text: text of the message that servers get in its place; "" for none.
        calls: calls with their results, of which servers get messages in its place.
    """

    words: str
    text: str = ""
    calls: tuple[ToolResult, ...] = ()


RunEnd: TypeAlias = Literal["answered", "max_turns"]
"""Why an agent's run has ended: the LLM wanted no more calls, or it had to answer after the last turn."""


@record
class AgentRun:
    """The record of an agent's run: its answer, why it ended, and the calls of each turn."""

    answer: str
    ended: RunEnd
    turns: tuple[tuple[ToolResult, ...], ...] = ()

    @property
    def calls(self) -> tuple[ToolResult, ...]:
        """All calls of the run, in the order in which they were written."""
        return tuple(call for turn in self.turns for call in turn)
