"""Checks of the arguments of a caller, before anything runs."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from types import UnionType
from typing import get_args

from stretto.core import Chunk, Document, Hit
from stretto.errors import UserError
from stretto.graph.compile import ExecutionGraph
from stretto.graph.types import item_type
from stretto.tasks import Objective

_KINDS: Mapping[str, type | UnionType] = {
    "text": str,
    "number": int | float,
    "bool": bool,
    "document": Document,
    "chunk": Chunk,
    "hit": Hit,
}


def check_inputs(egraph: ExecutionGraph, inputs: Mapping[str, object]) -> None:
    """Check that `inputs` has a value of the right type for each input of a graph, and no others.

    Raises:
        UserError: one is missing, unknown, or of another type.
    """
    for name, type_ in egraph.graph.inputs:
        if name not in inputs:
            raise UserError(f"{egraph.graph.name}: the query brings no input {name!r}")
        if not _is_of_type(inputs[name], type_):
            value = reprlib.repr(inputs[name])
            raise UserError(f"{egraph.graph.name}: input {name!r} takes {type_}, not {value}")
    if unknown := [name for name in inputs if name not in egraph.inputs]:
        raise UserError(f"{egraph.graph.name} has no input {unknown[0]!r}")


def check_criteria(criteria: Objective | None) -> None:
    """Check that `criteria` is "latency", "throughput" or None. Raises UserError."""
    if criteria is not None and criteria not in get_args(Objective):
        raise UserError(f"objective must be one of {', '.join(get_args(Objective))}, got {criteria!r}")


def check_deadline(deadline_s: float | None) -> None:
    """Check that `deadline_s` is a number of seconds, or None. Raises UserError."""
    if deadline_s is not None and not (isinstance(deadline_s, int | float) and deadline_s == deadline_s):
        raise UserError(f"deadline_s must be a number of seconds, got {deadline_s!r}")


def _is_of_type(value: object, type_: str) -> bool:
    """Return whether a query may bring `value`. Vectors and "any" are not checked."""
    item = item_type(type_)
    if type_ != "any" and item is not None:
        return isinstance(value, list | tuple) and all(_is_of_type(i, item) for i in value)
    return type_ not in _KINDS or isinstance(value, _KINDS[type_])
