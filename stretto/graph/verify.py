"""The rules that a valid graph obeys, checked after lowering and after every pass.

Everything a run relies on is checked here, so that neither the compiler nor the schedulers check
anything again: names, ports, types, no cycles, prompts, and that the streams which meet at one
primitive were cut from the same list.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from heapq import heappop, heappush

from stretto.graph.graph import ANSWER, HINT, WHEN, Arg, Graph, Primitive, Ref, Slot
from stretto.graph.op_table import OPS
from stretto.graph.ops import Ops, OpSpec
from stretto.graph.types import accepts, is_promptable, item_type, list_of
from stretto.model.errors import GraphError


def verify(graph: Graph, ops: Ops = OPS) -> dict[tuple[str, str], str]:
    """Check that a graph of an app's steps is valid, and return the type of every value in it.

    The keys of the result are (name of the input or primitive, out port) pairs; a primitive is a step, a port
    one of its outputs.

    Args:
        ops: the known ops and types.

    Raises:
        GraphError: the graph breaks a rule; the message names the primitive and the port.
    """
    types: dict[tuple[str, str], str] = {}
    origins: dict[str, str] = {}
    for name, type_ in graph.inputs:
        if (name, "") in types:
            raise GraphError(f"input %{name} is declared twice")
        if not ops.is_type(type_):
            raise GraphError(f"input %{name} has the unknown type {type_!r:.80}")
        types[name, ""] = type_
        origins[name] = name
    if unknown := graph.late - {name for name, _ in graph.inputs}:
        raise GraphError(f"%{min(unknown)} is late, and no input")
    names = graph.by_name
    if len(names) != len(graph.primitives):
        raise GraphError(f"two primitives of {graph.name} have the same name")
    for primitive in graph.primitives:
        if primitive.name in origins:
            raise GraphError(f"%{primitive.name} is defined twice")
        spec = ops.spec(primitive)
        _verify_primitive(primitive, spec, ops, names, types, origins)
        for port in spec.outputs:
            if f"{primitive.name}.{port}" in names:
                raise GraphError(f"%{primitive.name}.{port} is both a value of %{primitive.name} and a name")
    for name, ref in graph.outputs:
        if _type_of(ref, types) is None:
            raise GraphError(f"output {name!r} is %{ref}, which nothing produces")
    if len(dict(graph.outputs)) < len(graph.outputs):
        raise GraphError(f"two outputs of {graph.name} have the same name")
    _verify_order(graph)
    return types


def _verify_primitive(
    primitive: Primitive,
    spec: OpSpec,
    ops: Ops,
    names: Iterable[str],
    types: dict[tuple[str, str], str],
    origins: dict[str, str],
) -> None:
    where = f"%{primitive.name}"
    if (spec.runs_on is None) != (primitive.engine is None):
        raise GraphError(f"{where}: {primitive.op} {'needs an' if spec.runs_on else 'runs on no'} engine")
    fed: set[str] = set()
    given: list[str] = []
    origin: str | None = None
    for arg in primitive.args:
        if arg.port in fed:
            raise GraphError(f"{where}: port {arg.port!r} is fed twice")
        fed.add(arg.port)
        type_ = _type_of(arg.ref, types)
        if type_ is None:
            hint = " (a cycle, or out of order)" if arg.ref.name in names else ""
            raise GraphError(f"{where}: port {arg.port!r} reads %{arg.ref}, which nothing produces{hint}")
        if arg.each:
            item = item_type(type_)
            if item is None or arg.ref.index is not None or spec.runs_on is None:
                raise GraphError(f"{where}: port {arg.port!r} cannot take each of %{arg.ref}: {type_}")
            own = origins[arg.ref.name]
            if origin is not None and own != origin:
                raise GraphError(
                    f"{where}: port {arg.port!r} zips %{arg.ref} with a stream of different origin "
                    f"(%{own} and %{origin})"
                )
            origin, type_ = own, item
        elif arg.piece is not None:
            raise GraphError(f"{where}: port {arg.port!r} takes all of %{arg.ref} and cannot stream it")
        if arg.piece is not None and arg.piece < 1:
            raise GraphError(f"{where}: port {arg.port!r} has the piece size {arg.piece}")
        _verify_port(where, primitive, spec, arg, type_)
        if arg.port != WHEN:
            given.append(type_)
    for port in spec.ports:
        if not port.optional and not port.variadic and port.name not in fed:
            raise GraphError(f"{where}: port {port.name!r} is not fed")
    _verify_prompt(where, primitive, spec, fed)
    result = spec.result if isinstance(spec.result, str) else spec.result(primitive, given)
    if not ops.is_type(result):
        raise GraphError(f"{where}: its result has the unknown type {result!r:.80}")
    if origin is not None and not spec.flatten and result != "effect":
        result = list_of(result)
    for port_name in spec.outputs:
        types[primitive.name, port_name] = result
    for port in spec.optional_outputs:
        types[primitive.name, port.name] = port.type if origin is None else list_of(port.type)
    origins[primitive.name] = primitive.name if origin is None or spec.flatten else origin


def _verify_port(where: str, primitive: Primitive, spec: OpSpec, arg: Arg, type_: str) -> None:
    if arg.port == WHEN:
        if arg.each:
            raise GraphError(f"{where}: a guard takes a whole value")
        return
    if (port := spec.port(arg.port)) is None:
        raise GraphError(f"{where}: {primitive.op} has no port {arg.port!r}")
    if not accepts(port.type, type_):
        raise GraphError(f"{where}: port {arg.port!r} takes {port.type}, %{arg.ref} is {type_}")
    is_answer = arg.ref.port == ANSWER and type_ == "kv"
    if spec.computes_prompt and arg.port != HINT and not (is_answer or is_promptable(type_)):
        raise GraphError(f"{where}: port {arg.port!r}: a {type_} cannot stand in a prompt")


def _verify_prompt(where: str, primitive: Primitive, spec: OpSpec, fed: set[str]) -> None:
    slots = {part.port for part in primitive.prompt if isinstance(part, Slot)}
    if spec.computes_prompt:
        if not primitive.prompt:
            raise GraphError(f"{where}: an empty prompt")
        if reserved := slots & {HINT, WHEN}:
            raise GraphError(f"{where}: {min(reserved)!r} is no variable of a prompt")
        if unused := fed - slots - {HINT, WHEN}:
            raise GraphError(f"{where}: port {min(unused)!r} is not used in the prompt")
        if unfed := slots - fed:
            raise GraphError(f"{where}: port {min(unfed)!r} of the prompt is not fed")
    elif primitive.prompt:
        raise GraphError(f"{where}: {primitive.op} takes no prompt")


def _type_of(ref: Ref, types: dict[tuple[str, str], str]) -> str | None:
    type_ = types.get((ref.name, ref.port))
    if type_ is None or ref.index is None:
        return type_
    return item_type(type_)


def _verify_order(graph: Graph) -> None:
    """Check that order edges name primitives and close no cycle together with the edges of the values."""
    if not graph.order:
        return
    position = {primitive.name: i for i, primitive in enumerate(graph.primitives)}
    backward = False
    for before, after in graph.order:
        for name in (before, after):
            if name not in position:
                raise GraphError(f"order names %{name}, which is no primitive")
        backward = backward or position[before] >= position[after]
    if backward:
        sort_topologically(graph)


def sort_topologically(graph: Graph) -> Graph:
    """Return the graph with its primitives sorted so that each comes after all that it must wait for.

    Primitives that may stand in either order keep the order they have.

    Raises:
        GraphError: the graph has a cycle; the message names its primitives.
    """
    remaining = {primitive.name: 0 for primitive in graph.primitives}
    followers: dict[str, list[str]] = {name: [] for name in remaining}
    edges = [(arg.ref.name, p.name) for p in graph.primitives for arg in p.args if arg.ref.name in remaining]
    for before, after in [*edges, *graph.order]:
        followers[before].append(after)
        remaining[after] += 1
    position = {name: i for i, name in enumerate(remaining)}
    ready = [(position[name], name) for name, count in remaining.items() if count == 0]
    sorted_names: list[str] = []
    while ready:
        _, name = heappop(ready)
        sorted_names.append(name)
        for follower in followers[name]:
            remaining[follower] -= 1
            if remaining[follower] == 0:
                heappush(ready, (position[follower], follower))
    if len(sorted_names) < len(remaining):
        stuck = ", ".join(f"%{name}" for name in remaining if name not in set(sorted_names))
        raise GraphError(f"a cycle through {stuck}")
    primitives = tuple(graph.by_name[name] for name in sorted_names)
    return replace(graph, primitives=primitives)
