"""What callers hand to a runtime, checked before anything runs."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from types import UnionType

from stretto.core import Chunk, Document, Hit
from stretto.engine import Engine
from stretto.errors import ConfigError, UserError
from stretto.graph.compile import ExecutionGraph
from stretto.graph.passes.pipeline import select_passes
from stretto.graph.types import item_type

_KINDS: Mapping[str, type | UnionType] = {
    "text": str,
    "number": int | float,
    "bool": bool,
    "document": Document,
    "chunk": Chunk,
    "hit": Hit,
}


def pass_names(passes: str | Iterable[str]) -> tuple[str, ...]:
    """Names of passes in the order they run. Raises ConfigError if there is no such pass."""
    if not isinstance(passes, Iterable):
        raise ConfigError(f"passes={passes!r} are no names of passes")
    return select_passes(passes if isinstance(passes, str) else list(passes))


def check_inputs(egraph: ExecutionGraph, inputs: Mapping[str, object]) -> None:
    """Raises UserError unless `inputs` are what the graph takes."""
    for name, type_ in egraph.graph.inputs:
        if name not in inputs:
            raise UserError(f"{egraph.graph.name}: the query brings no input {name!r}")
        if not _is_of_type(inputs[name], type_):
            value = reprlib.repr(inputs[name])
            raise UserError(f"{egraph.graph.name}: input {name!r} takes {type_}, not {value}")
    if unknown := [name for name in inputs if name not in egraph.inputs]:
        raise UserError(f"{egraph.graph.name} has no input {unknown[0]!r}")


def _is_of_type(value: object, type_: str) -> bool:
    """Whether a query may bring `value`; what types do not say (vectors, "any") is not checked."""
    item = item_type(type_)
    if type_ != "any" and item is not None:
        return isinstance(value, list | tuple) and all(_is_of_type(i, item) for i in value)
    return type_ not in _KINDS or isinstance(value, _KINDS[type_])


def check_resources(engines: Iterable[Engine], available: Mapping[str, float] | None) -> None:
    """Raises ConfigError if the engines ask for more in all than there is."""
    if available is None:
        return
    asked: dict[str, float] = {}
    for engine in engines:
        for kind, amount in engine.resources.items():
            asked[kind] = asked.get(kind, 0.0) + amount * engine.instances
    for kind, amount in asked.items():
        if amount > available.get(kind, 0.0):
            raise ConfigError(f"the engines ask for {amount:g} {kind}, there is {available.get(kind, 0.0):g}")
