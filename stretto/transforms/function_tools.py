"""Tools of agents, made of Python functions: name, description and JSON schema come from the function itself.

The docstring is the description. Lines like `name: what it means` behind "Args:" describe the arguments, as
does `Annotated[int, Field(description=…)]`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, get_type_hints, overload

from stretto.model.errors import ConfigError
from stretto.model.tools import BadArguments, Tool
from stretto.transforms.annotations import ObjectFields

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?|Notes?):\s*$")
_ARGUMENT = re.compile(r"^(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


@overload
def tool(function: Callable[..., object], /) -> Tool: ...


@overload
def tool(
    *,
    effects: bool = ...,
    name: str | None = ...,
    description: str | None = ...,
    timeout_s: float = ...,
    idempotent: bool = ...,
) -> Callable[[Callable[..., object]], Tool]: ...


def tool(
    function: Callable[..., object] | None = None,
    /,
    *,
    effects: bool = False,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float = 60.0,
    idempotent: bool = False,
) -> Tool | Callable[[Callable[..., object]], Tool]:
    """Make a Python function a tool of agents, as a decorator with or without settings in parentheses.

        @tool(effects=True)
        def send(to: str, text: str) -> str: ...

    The function may be a coroutine function. Its parameters may have all types that pydantic knows; those
    without an annotation take anything. Arguments are checked and converted before each call.

    Args:
        effects: whether it changes something outside the app; `Tool` says what follows from that.
        timeout_s: seconds that a call may take.
        idempotent: whether a function with effects may be called again with the same arguments.
        name: name by which the LLM calls it; None for that of the function.
        description: what it does; None for the docstring.

    Raises:
        ConfigError: a parameter collects arguments (`*args`), or its type has no JSON schema.
    """

    def make(function: Callable[..., object]) -> Tool:
        called: str = name or getattr(function, "__name__", "") or type(function).__name__
        summary, described = _documented(inspect.getdoc(function) or "")
        fields = ObjectFields(f"tool {called!r}", _parameters(called, function), described)
        return Tool(
            called,
            " ".join((description or summary or called.replace("_", " ")).split()),
            _Checked(function, fields),
            effects=effects,
            schema=json.dumps(fields.schema, ensure_ascii=False),
            timeout_s=timeout_s,
            idempotent=idempotent,
        )

    return make if function is None else make(function)


def as_tools(given: Iterable[Tool | Callable[..., object]]) -> tuple[Tool, ...]:
    """Return tools, which may be given as plain functions: those have no effects.

    Raises:
        ConfigError: one is neither a tool nor a function, or two have the same name.
    """
    tools = tuple(one if isinstance(one, Tool) else _of_function(one) for one in given)
    names = [one.name for one in tools]
    if len(set(names)) < len(names):
        raise ConfigError(f"two tools have the same name: {', '.join(names)}")
    return tools


def _of_function(given: object) -> Tool:
    if not callable(given):
        raise ConfigError(f"a tool is a function or a Tool, got {given!r:.80}")
    return tool(given)


class _Checked:
    """A function that is called with arguments in JSON, once they fit its parameters."""

    def __init__(self, function: Callable[..., object], fields: ObjectFields) -> None:
        self._function = function
        self._fields = fields

    def __call__(self, given: str) -> object:
        try:
            arguments = self._fields.checked(self._read(given))
        except ValueError as error:
            raise BadArguments(str(error)) from error
        return self._function(**arguments)

    def _read(self, given: str) -> object:
        """Return the arguments as data. A text that is no object is the argument of a function with one."""
        properties = self._fields.schema["properties"]
        if not given.lstrip().startswith("{"):
            if not given.strip() and not self._fields.schema.get("required"):
                return {}
            if len(properties) != 1:
                raise BadArguments(f"the arguments must be a JSON object with {', '.join(properties)}")
            return {next(iter(properties)): given}
        try:
            return json.loads(given, strict=False)
        except (ValueError, RecursionError) as error:
            raise BadArguments(f"the arguments are not JSON: {error}") from error


def _parameters(name: str, function: Callable[..., object]) -> dict[str, tuple[Any, Any]]:
    try:
        signature = inspect.signature(function)
        own = function if inspect.isroutine(function) else type(function).__call__
        hints = get_type_hints(own, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"tool {name!r}: its signature cannot be read: {error}") from error
    found: dict[str, tuple[Any, Any]] = {}
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"tool {name!r}: an LLM gives arguments by name, so {parameter.name!r} cannot be one that is "
                "positional only or collects others"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        found[parameter.name] = (hints.get(parameter.name, Any), default)
    return found


def _documented(text: str) -> tuple[str, dict[str, str]]:
    """Return the description of a function, and those of its arguments, from its docstring."""
    summary: list[str] = []
    described: dict[str, str] = {}
    section, current, indent = "", "", 0
    for line in text.splitlines():
        if found := _SECTION.match(line):
            section, current, indent = found[1], "", 0
        elif not section:
            summary.append(line)
        elif section in ("Args", "Arguments", "Parameters") and line.strip():
            depth = len(line) - len(line.lstrip())
            indent = indent or depth
            if depth == indent and (argument := _ARGUMENT.match(line.strip())):
                current = argument[1]
                described[current] = argument[2]
            elif current:
                described[current] += f" {line.strip()}"
    return " ".join(" ".join(summary).split()), described
