"""Checks of the places of a prompt against the parameters of its function."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.graph.graph import HINT, WHEN
from stretto.model.errors import TemplateError
from stretto.programs.outputs import Output
from stretto.programs.prompt_text import Part, PromptSlot

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
