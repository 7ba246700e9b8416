"""Compile a verified graph into the form that the graph scheduler runs: integer ids instead of names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stretto.graph.execution_graph import ExecutionGraph, In, Node, StreamedOutput
from stretto.graph.graph import HINT, RECORD, WHEN, Graph, Primitive, Ref
from stretto.graph.op_table import OPS
from stretto.graph.ops import Ops, OpSpec
from stretto.graph.passes.weigh import Verdict
from stretto.graph.reuse import find_reuse
from stretto.graph.verify import sort_topologically
from stretto.model.errors import ConfigError
from stretto.model.profile import Profile
from stretto.model.tasks import Decode


def compile_graph(
    graph: Graph,
    profiles: Mapping[str, Profile],
    ops: Ops = OPS,
    *,
    passes: tuple[str, ...] = (),
    verdicts: tuple[Verdict, ...] = (),
) -> ExecutionGraph:
    """Compile a verified graph for running: number its steps and values, measure depths, and fuse prefills
    with decodes.

    A prefill is fused with its decode, to run as one LLM request, if that decode is the only reader. `graph`
    is not verified again. `passes` and `verdicts` are attributes of the result.

    Raises:
        ConfigError: a decode has an unknown setting, or a setting with an unusable value.
        GraphError: an op of the graph is not in `ops`.
    """
    wires = _wire(graph, ops)
    nodes = _nodes(graph, wires, profiles, ops)
    values, node_ids = wires.values, wires.node_ids
    return ExecutionGraph(
        graph=graph,
        nodes=tuple(nodes),
        inputs={name: i for i, (name, _) in enumerate(graph.inputs)},
        num_values=len(values),
        readers=tuple(map(tuple, wires.readers)),
        followers=tuple(map(tuple, wires.followers)),
        outputs=tuple((name, values[ref.name, ref.port], ref.index) for name, ref in graph.outputs),
        streamed=_streamed(graph, ops, node_ids, values),
        ops=ops,
        engine_nodes=_engine_nodes(nodes),
        passes=passes,
        verdicts=verdicts,
    )


@dataclass(slots=True)
class _Wires:
    """How the primitives of a graph are joined, by the numbers of primitives and values.

    Attributes:
        values: number of each value, by the name and port that it comes from.
        node_ids: number of each primitive, by name.
        read: names and ports that a primitive reads.
        ins: inputs of each primitive.
        readers: primitives that read each value, and at which of their inputs.
        after: primitives that each has to wait for, beside those whose values it reads.
        followers: primitives that wait for each so.
    """

    values: dict[tuple[str, str], int]
    node_ids: dict[str, int]
    read: set[tuple[str, str]]
    ins: list[tuple[In, ...]]
    readers: list[list[tuple[int, int]]]
    after: list[list[int]]
    followers: list[list[int]]


def _wire(graph: Graph, ops: Ops) -> _Wires:
    """Number the primitives and values of a graph, and note which reads and follows which."""
    values: dict[tuple[str, str], int] = {(name, ""): i for i, (name, _) in enumerate(graph.inputs)}
    node_ids = {primitive.name: i for i, primitive in enumerate(graph.primitives)}
    read = {(ref.name, ref.port) for ref in _refs(graph)}
    for primitive in graph:
        for port in _out_ports(primitive, ops, read):
            values[primitive.name, port] = len(values)
    after: list[list[int]] = [[] for _ in graph.primitives]
    followers: list[list[int]] = [[] for _ in graph.primitives]
    for before, later in graph.order:
        after[node_ids[later]].append(node_ids[before])
        followers[node_ids[before]].append(node_ids[later])
    readers: list[list[tuple[int, int]]] = [[] for _ in values]
    all_ins: list[tuple[In, ...]] = []
    for node_id, primitive in enumerate(graph):
        ins = _compile_ins(primitive, ops[primitive.op], values)
        all_ins.append(ins)
        for position, arg in enumerate(ins):
            readers[arg.value].append((node_id, position))
    return _Wires(values, node_ids, read, all_ins, readers, after, followers)


def _nodes(graph: Graph, wires: _Wires, profiles: Mapping[str, Profile], ops: Ops) -> list[Node]:
    """Return the steps of a graph, with prefills fused with their decodes."""
    values, node_ids, readers, after = wires.values, wires.node_ids, wires.readers, wires.after
    own_s = {primitive.name: _typical_s(primitive, profiles, ops) for primitive in graph}
    depths, paths_s = _depths(graph, node_ids, wires.followers, own_s)
    fusions = _fusions(graph, ops, node_ids, after, readers, values)
    fused_into = {decode: prefill for prefill, decode in fusions.items()}
    for decode in fused_into:  # it never runs by itself, so it has nothing to gain from pieces
        wires.ins[decode] = tuple(replace(arg, piece=None) for arg in wires.ins[decode])
    reuse = find_reuse(graph, ops, fused_into, own_s)
    needed = {values[ref.name, ref.port] for _, ref in graph.outputs}
    nodes: list[Node] = []
    for node_id, (primitive, ins) in enumerate(zip(graph.primitives, wires.ins, strict=True)):
        spec = ops[primitive.op]
        config = dict(primitive.config)
        outs = tuple(values[primitive.name, port] for port in _out_ports(primitive, ops, wires.read))
        reads = [wires.ins[reader][position] for out in outs for reader, position in readers[out]]
        is_needed = wires.followers[node_id] or ops.is_effect(primitive) or not needed.isdisjoint(outs)
        only_hints = not is_needed and all(arg.is_hint for arg in reads)
        hint = primitive.arg(HINT) if any(arg.is_hint for arg in ins) else None
        hinting = None if hint is None else node_ids.get(hint.ref.name)
        nodes.append(
            Node(
                id=node_id,
                name=primitive.name,
                op=primitive.op,
                spec=spec,
                engine=primitive.engine,
                ins=ins,
                outs=outs,
                after=tuple(after[node_id]),
                num_blocking=sum(1 for arg in ins if arg.blocks) + len(after[node_id]),
                is_mapped=any(arg.each for arg in ins),
                is_effect=ops.is_effect(primitive),
                prompt=primitive.prompt,
                config=config,
                depth=depths[primitive.name],
                path_s=paths_s[primitive.name],
                decode=decode_of(primitive) if spec.makes_text else None,
                fused=fusions.get(node_id),
                fused_into=fused_into.get(node_id),
                hints=tuple(reader for out in outs for reader, _ in readers[out]) if only_hints else (),
                hint_from=() if hinting is None else (hinting, *nodes[hinting].hint_from),
                template=graph.name,
                own_s=own_s[primitive.name],
                strategy=primitive.strategy,
                reuse=reuse.get(node_id),
            )
        )
    return nodes


def _refs(graph: Graph) -> Iterator[Ref]:
    for primitive in graph:
        for arg in primitive.args:
            yield arg.ref
    for _, ref in graph.outputs:
        yield ref


def _out_ports(primitive: Primitive, ops: Ops, read: Collection[tuple[str, str]]) -> list[str]:
    """Return the out ports of a primitive: those of its op, with the optional ones that something reads."""
    spec = ops.spec(primitive)
    optional = (port.name for port in spec.optional_outputs)
    return [*spec.outputs, *(port for port in optional if (primitive.name, port) in read)]


def _engine_nodes(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return a node for each engine, and kind of engine, that the nodes need or fall back on."""
    found: dict[tuple[str, str | None], Node] = {}
    for node in nodes:
        fallback = node.strategy.fallback
        if node.engine is not None:
            found.setdefault((node.engine, node.spec.runs_on), node)
        if node.engine is not None and fallback is not None:
            found.setdefault((fallback, node.spec.runs_on), replace(node, engine=fallback))
    return tuple(found.values())


def _compile_ins(primitive: Primitive, spec: OpSpec, values: Mapping[tuple[str, str], int]) -> tuple[In, ...]:
    ins = []
    for arg in primitive.args:
        port = spec.port(arg.port)
        optional = arg.port != WHEN and port is not None and port.optional
        value = values[arg.ref.name, arg.ref.port]
        is_hint = spec.computes_prompt and arg.port == HINT and not arg.each
        ins.append(In(arg.port, value, arg.ref.index, arg.each, arg.piece, optional, is_hint))
    return tuple(ins)


def _depths(
    graph: Graph, node_ids: Mapping[str, int], followers: list[list[int]], own_s: Mapping[str, float]
) -> tuple[dict[str, int], dict[str, float]]:
    """Return the longest way from each primitive to an output or effect: in edges, and in seconds.

    Source: Teola, Algorithm 2, lines 2-5.
    """
    depths: dict[str, int] = {}
    paths_s: dict[str, float] = {}
    consumers = graph.consumers
    for primitive in reversed((sort_topologically(graph) if graph.order else graph).primitives):
        below = {reader.name for reader, _ in consumers.get(primitive.name, ())}
        below |= {graph.primitives[i].name for i in followers[node_ids[primitive.name]]}
        depths[primitive.name] = 1 + max((depths[name] for name in below), default=-1)
        paths_s[primitive.name] = own_s[primitive.name] + max((paths_s[name] for name in below), default=0.0)
    return depths, paths_s


def _typical_s(primitive: Primitive, profiles: Mapping[str, Profile], ops: Ops) -> float:
    """Return the predicted seconds of a primitive before its inputs are known.

    A mapped primitive counts a full batch, any other one unit.
    """
    profile = profiles.get(primitive.engine or "")
    if profile is None:
        return 0.0
    if ops[primitive.op].makes_text:
        max_tokens = primitive.setting("max_tokens")
        return profile.per_output_s * (max_tokens if isinstance(max_tokens, int) else Decode().max_tokens)
    return profile.batch_s(profile.max_efficient_batch if primitive.is_mapped() else 1)


def _fusions(
    graph: Graph,
    ops: Ops,
    node_ids: Mapping[str, int],
    after: list[list[int]],
    readers: list[list[tuple[int, int]]],
    values: Mapping[tuple[str, str], int],
) -> dict[int, int]:
    """Return {prefill id: decode id} of the pairs that run as one LLM request.

    A pair is fused if the decode waits for nothing else and nothing else reads the prefill's KV. This is
    dependent pre-scheduling (Teola §6) for neighbours on one engine: the decode starts without a way back
    through the schedulers.
    """
    fusions: dict[int, int] = {}
    outputs = {ref.name for _, ref in graph.outputs}
    for primitive in graph:
        if not ops[primitive.op].makes_text or len(primitive.args) != 1:
            continue
        arg = primitive.args[0]
        decode, kv = node_ids[primitive.name], arg.ref
        prefill = graph.by_name.get(kv.name)
        if prefill is None or not ops[prefill.op].computes_prompt or prefill.engine != primitive.engine:
            continue
        if arg.each != prefill.is_mapped():
            continue
        only_reader = len(readers[values[kv.name, kv.port]]) == 1 and kv.name not in outputs
        if only_reader and set(after[decode]) <= {node_ids[prefill.name]}:
            fusions[node_ids[prefill.name]] = decode
    return fusions


def decode_of(primitive: Primitive) -> Decode:
    """Return the decoding settings (`Decode`: length, form of the output, sampling) of a decode, a step that
    generates text.

    Raises:
        ConfigError: there is no setting of this name. Values are not checked here.
    """
    settings: dict[str, Any] = dict(primitive.config)
    if unknown := settings.keys() - Decode.__dataclass_fields__.keys():
        known = ", ".join(Decode.__dataclass_fields__)
        raise ConfigError(f"decoding has no setting {min(unknown)!r}; it has {known}", step=primitive.name)
    return Decode(**settings)


def _streamed(
    graph: Graph, ops: Ops, node_ids: Mapping[str, int], values: Mapping[tuple[str, str], int]
) -> dict[int, tuple[StreamedOutput, ...]]:
    found: dict[int, list[StreamedOutput]] = {}

    def visit(ref: Ref, output: str, unless: tuple[int, ...]) -> None:
        name, primitive = ref.name, graph.by_name.get(ref.name)
        if primitive is None or ref.index is not None or ref.port == RECORD:
            return
        is_text = not primitive.is_mapped() and not primitive.setting("items")
        if primitive.op == "expand" or (ops[primitive.op].makes_text and is_text):
            found.setdefault(node_ids[name], []).append(StreamedOutput(output, unless))
        elif primitive.op == "select" and primitive.arg(WHEN) is None:
            for arg in primitive.args:
                visit(arg.ref, output, unless)
                unless = (*unless, values[arg.ref.name, arg.ref.port])

    for output, ref in graph.outputs:
        visit(ref, output, ())
    return {node: tuple(outputs) for node, outputs in found.items()}
