"""Which outputs of a query are answers of an LLM that did not end by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stretto.model.tasks import Ending


def endings_of(ended: Sequence[tuple[Ending, object]], outputs: Mapping[str, object]) -> tuple[Ending, ...]:
    """Return the ends of LLM requests, each with the names of the outputs that are its answer.

    Steps that choose among values pass on the object itself, so an output is an answer if it is that object.

    Args:
        ended: ends, each with what the request's step has delivered.
        outputs: values by name.
    """
    return tuple(
        replace(ending, outputs=tuple(name for name, value in outputs.items() if _has(value, result)))
        for ending, result in ended
    )


def _has(value: object, result: object) -> bool:
    """Return whether a value is the answer in a result, or has it among its items."""
    answers = result if isinstance(result, tuple) else (result,)
    items = value if isinstance(value, list | tuple) else ()
    return any(one is answer for answer in answers for one in (value, *items))
