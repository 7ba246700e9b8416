"""Random applications cut into fragments, each a graph for a session."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.graph import Arg, Graph, Primitive, Ref
from stretto.graph.op_table import OPS
from stretto.graph.passes.base import Profiles
from stretto.graph.passes.pipeline import PASSES, optimise
from stretto.graph.verify import verify
from stretto.model.errors import GraphError
from stretto.model.values import Failure
from support.random_apps import App


@dataclass(frozen=True)
class Fragmented:
    """An application as one graph with every variable as an output, and as fragments that produce them."""

    whole: Graph
    fragments: tuple[Graph, ...]
    inputs: Mapping[str, object]

    @property
    def variables(self) -> list[str]:
        """Names of the variables that fragments produce, but those that hold no comparable value."""
        return [name for name, _ in self.whole.outputs]

    def compile(self, profiles: Profiles, passes: Collection[str]) -> list[ExecutionGraph]:
        """The fragments, optimised as far as a fragment by itself verifies: one may zip lists whose common
        origin is in another."""
        return [compile_graph(_optimised(graph, profiles, passes), profiles) for graph in self.fragments]


def failing_steps(app: App) -> list[str]:
    """Steps that fail under the same name whatever is fused: all engine steps but prefills."""
    return [primitive.name for primitive in app.graph if primitive.engine and primitive.op != "prefill"]


def fragmented(app: App, sizes: Sequence[int]) -> Fragmented:
    """Cut `app` into fragments of the given numbers of primitives, and the rest."""
    types = verify(app.graph)
    primitives = list(app.graph.primitives)
    parts: list[list[Primitive]] = []
    for size in (*sizes, len(primitives)):
        if primitives:
            parts.append(primitives[:size])
            primitives = primitives[size:]
    fragments = []
    for number, part in enumerate(parts):
        later = [arg.ref for other in parts[number + 1 :] for primitive in other for arg in primitive.args]
        fragments.append(_fragment(app.graph, part, types, {(ref.name, ref.port) for ref in later}))
    made = [ref for part in parts for ref in _made(part) if "kv" not in types[ref.name, ref.port]]
    whole = replace(app.graph, outputs=tuple((_variable(ref), ref) for ref in made))
    return Fragmented(whole, tuple(fragments), app.inputs)


def comparable(value: object) -> object:
    """Return values that can be compared: failures by their message, also within lists."""
    if isinstance(value, Failure):
        return type(value.error).__name__, str(value.error)
    if isinstance(value, list):
        return [comparable(item) for item in value]
    return value


def _fragment(
    graph: Graph,
    part: Sequence[Primitive],
    types: Mapping[tuple[str, str], str],
    read_later: Collection[tuple[str, str]],
) -> Graph:
    own = {primitive.name for primitive in part}
    inputs: dict[str, str] = {}

    def moved(arg: Arg) -> Arg:
        ref = arg.ref
        if ref.name in own:
            return arg
        inputs[_variable(ref)] = types[ref.name, ref.port]
        return replace(arg, ref=Ref(_variable(ref), "", ref.index))

    primitives = tuple(replace(one, args=tuple(moved(arg) for arg in one.args)) for one in part)
    outputs = [
        (_variable(ref), ref)
        for ref in _made(part)
        if "kv" not in types[ref.name, ref.port] or (ref.name, ref.port) in read_later
    ]
    order = tuple((before, after) for before, after in graph.order if {before, after} <= own)
    return Graph("fragment", tuple(inputs.items()), primitives, order, tuple(outputs))


def _made(part: Sequence[Primitive]) -> list[Ref]:
    return [Ref(primitive.name, port) for primitive in part for port in OPS[primitive.op].outputs]


def _variable(ref: Ref) -> str:
    return f"{ref.name}.{ref.port}" if ref.port else ref.name


def _optimised(graph: Graph, profiles: Profiles, passes: Collection[str]) -> Graph:
    try:
        verify(graph)
        return optimise(graph, profiles, {name: run for name, run in PASSES.items() if name in passes})
    except GraphError:
        return graph
