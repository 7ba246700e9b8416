"""The parameters of a semantic function, and checks of the places of its prompt against them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar

from stretto.graph.graph import HINT, WHEN
from stretto.model.errors import TemplateError
from stretto.programs.outputs import Input, Output
from stretto.programs.prompt_text import Part, PromptSlot

T = TypeVar("T")

_RESERVED = frozenset({HINT, WHEN, "kv"})


def with_kinds(
    function: str, parts: tuple[Part, ...], inputs: Mapping[str, object], outputs: Mapping[str, Output]
) -> tuple[Part, ...]:
    """Return the parts of a prompt with each place as an input or an output, by the parameters of its
    function.

    Raises:
        TemplateError: there is no such parameter, or an output stands there twice.
    """
    found: list[Part] = []
    made: set[str] = set()
    for part in parts:
        if isinstance(part, PromptSlot) and part.kind == "either":
            if part.name not in inputs and part.name not in outputs:
                known = ", ".join([*inputs, *outputs]) or "none"
                raise TemplateError(
                    f"{function}, {part.position}: there is no parameter {part.name!r}; there are {known}. "
                    f"Write {{{{output:{part.name}}}}} for an output"
                )
            part = PromptSlot(part.name, "output" if part.name in outputs else "input", part.position)
        if isinstance(part, PromptSlot) and part.kind == "output":
            if part.name in made:
                raise TemplateError(
                    f"{function}, {part.position}: the output {part.name!r} stands there twice; "
                    f"write {{{{input:{part.name}}}}} to repeat its text"
                )
            made.add(part.name)
        found.append(part)
    return tuple(found)


def check_places(
    function: str, parts: tuple[Part, ...], inputs: Mapping[str, object], outputs: Mapping[str, Output]
) -> None:
    """Check that the places of a prompt and the parameters of its function fit each other.

    Raises:
        TemplateError: they do not; the message names the place.
    """
    places = [part for part in parts if isinstance(part, PromptSlot)]
    made: set[str] = set()
    for place in places:
        where = f"{function}, {place.position}"
        if place.name in _RESERVED:
            raise TemplateError(f"{where}: {place.name!r} is a reserved name")
        if place.kind == "output":
            if place.name in inputs:
                raise TemplateError(f"{where}: the output {place.name!r} is also an input")
            made.add(place.name)
        elif place.name not in inputs and place.name not in made:
            known = ", ".join([*inputs, *made]) or "none"
            raise TemplateError(f"{where}: there is no input {place.name!r}; there are {known}")
    used = {place.name for place in places}
    if unused := [name for name in (*inputs, *outputs) if name not in used]:
        raise TemplateError(f"{function}: the prompt does not use the parameter {unused[0]!r}")
    if not made:
        raise TemplateError(f"{function}: the prompt has no output; write {{{{output:name}}}} where it goes")


def declared_in(function: Callable[..., object], kind: type[T]) -> dict[str, T]:
    """Return the parameters whose default is of a kind, such as an `Output`."""
    return {
        parameter.name: parameter.default
        for parameter in inspect.signature(function).parameters.values()
        if isinstance(parameter.default, kind)
    }


def input_signature(function: Callable[..., object], outputs: Mapping[str, Output]) -> inspect.Signature:
    """Return the signature of the inputs alone, which positional arguments are bound to in their order.

    Raises:
        TemplateError: a parameter collects arguments, or one with a default value precedes one without.
    """
    name = getattr(function, "__name__", "")
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TemplateError(f"{name}: *{parameter.name} cannot be a place of a prompt")
        if isinstance(parameter.default, Input):
            parameter = parameter.replace(default=parameter.empty)
        if parameter.name not in outputs:
            parameters.append(parameter)
    try:
        return inspect.Signature(parameters)
    except ValueError as error:  # an `Input` after a default value, in a position
        raise TemplateError(f"{name}: an input without a value follows one with a default value") from error
