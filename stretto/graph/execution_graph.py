"""A graph in the form that the graph scheduler runs: integer ids instead of names.

An `ExecutionGraph` holds no state and no values of a query, so that all queries with the
same settings share one.
A *value* is an out port of a primitive, or a graph input; nodes and values are numbered in graph order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stretto.graph.graph import WHEN, Constant, Graph, Slot
from stretto.graph.ops import Ops, OpSpec
from stretto.graph.passes.weigh import Verdict
from stretto.graph.reuse import PromptReuse
from stretto.graph.strategy import NO_STRATEGY, Strategy
from stretto.model.record import record
from stretto.model.tasks import Decode


@record
class In:
    """One in port of a compiled node: which value it reads, and how.

    Attributes:
        port: name of the port.
        value: id of the value.
        index: the item of the value to read; None reads all of it.
        each: the node is applied to each item of the value.
        piece: number of items with which the node may start; None waits for the whole value.
        optional: the value may be absent.
        is_hint: the node does not wait for the value, and uses it only if it is there.
        blocks: the node can start only when the whole value exists.
    """

    port: str
    value: int
    index: int | None
    each: bool
    piece: int | None
    optional: bool
    is_hint: bool = False
    blocks: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", self.piece is None and not self.is_hint)


@record
class Node:
    """A compiled primitive: one step of an `ExecutionGraph`, with integer ids instead of names.

    Attributes:
        ins: the in ports. One that reads a stream has a `piece`.
        outs: ids of the produced values, in the order of the op's out ports. A decode has a second one, the
            KV of what it has generated, if something reads that.
        after: nodes that must end first although this node reads nothing from them (ORDER edges).
        num_blocking: number of in ports and ORDER predecessors that must be complete before the node can
            start. Hints and streams do not count.
        is_mapped: the op is applied to each item of the inputs marked `each`.
        is_effect: the node changes something outside the graph; its value only says that this has happened.
        depth: edges on the longest way to an output (Teola, Algorithm 2).
        path_s: predicted seconds on the slowest way to an output, this node included.
        fused: id of the decode that runs as one LLM request together with this prefill; or None.
        decode: decoding settings of a decode; None for other ops.
        fused_into: id of the prefill that a fused decode runs with; or None.
        template: name of the graph. Outputs of one step of one template have similar lengths.
        own_s: predicted seconds of the node alone.
        strategy: choices of the app's user: attempts, fallback engine.
        hints: nodes that take this node's value as a hint, if every reader does; else empty. A hint is a
            value that a node uses if it is there, and does not wait for.
        hint_from: the node whose value this one takes as a hint, then that node's own hint, and so on.
        runs_once: the step must not run a second time, because it would change something outside again: it is
            an effect, or a call whose functions have effects (setting `effects`).
        is_watched: attempts of the step have to be followed, as its strategy says.
        reuse: which other LLM requests of the graph begin like its own; None if it is the only one.
    """

    id: int
    name: str
    op: str
    spec: OpSpec
    engine: str | None
    ins: tuple[In, ...]
    outs: tuple[int, ...]
    after: tuple[int, ...]
    num_blocking: int
    is_mapped: bool
    is_effect: bool
    prompt: tuple[Constant | Slot, ...]
    config: Mapping[str, object]
    depth: int
    path_s: float
    decode: Decode | None = None
    fused: int | None = None
    fused_into: int | None = None
    hints: tuple[int, ...] = ()
    hint_from: tuple[int, ...] = ()
    template: str = ""
    own_s: float = 0.0
    strategy: Strategy = NO_STRATEGY
    reuse: PromptReuse | None = None
    runs_once: bool = field(init=False)
    is_watched: bool = field(init=False)

    def __post_init__(self) -> None:
        may_repeat = self.spec.is_idempotent or bool(self.config.get("idempotent"))
        changes = self.is_effect or bool(self.config.get("effects"))
        object.__setattr__(self, "runs_once", changes and not may_repeat)
        object.__setattr__(self, "is_watched", self.strategy.watches and not self.hints)


@dataclass(frozen=True, slots=True)
class StreamedOutput:
    """Permission to show the text of a decode to the caller, as output `name`, while it is
    being generated. An `expand` step passes its permission on to the steps that replace it.

    The text may be shown once every value in `unless` (ids) is known to be absent (its step was skipped),
    because a `select` prefers those values to the text.
    """

    name: str
    unless: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConnectionTables:
    """The connections of a compiled graph as look-up tables, which a query that begins with this graph copies
    instead of building its own.

    Attributes:
        nodes: the nodes by id.
        blocking: number of inputs and earlier nodes that a node waits for, by its id.
        producers: id of the node that produces a value, by the id of the value.
        readers: the (node id, position among its `ins`) pairs that read a value, by its id, if there are any.
        num_readers: how many these are.
        followers: ids of the nodes that wait for a node without reading from it, if there are any.
        effects: ids of the nodes that change something outside the graph, as keys.
        unblocked: ids of the nodes that wait for nothing.
    """

    nodes: Mapping[int, Node]
    blocking: Mapping[int, int]
    producers: Mapping[int, int]
    readers: Mapping[int, tuple[tuple[int, int], ...]]
    num_readers: Mapping[int, int]
    followers: Mapping[int, tuple[int, ...]]
    effects: Mapping[int, None]
    unblocked: tuple[int, ...]

    @classmethod
    def of(
        cls,
        nodes: Sequence[Node],
        readers: Sequence[tuple[tuple[int, int], ...]],
        followers: Sequence[tuple[int, ...]],
    ) -> ConnectionTables:
        """Build the look-up tables of a graph from its nodes, from the readers of each value (the
        nodes that take it as input) and the followers of each node (those that wait for its end without
        reading from it).
        """
        of_values = {value: found for value, found in enumerate(readers) if found}
        return cls(
            {node.id: node for node in nodes},
            {node.id: node.num_blocking for node in nodes},
            {out: node.id for node in nodes for out in node.outs},
            of_values,
            {value: len(found) for value, found in of_values.items()},
            {node: found for node, found in enumerate(followers) if found},
            {node.id: None for node in nodes if node.is_effect},
            tuple(node.id for node in nodes if not node.num_blocking),
        )


@dataclass(frozen=True, slots=True)
class ExecutionGraph:
    """An app compiled for running: its steps with their connections, numbered. The graph scheduler runs it
    (an "e-graph" in the papers).

    Attributes:
        inputs: value id of each graph input.
        readers: the (node id, position among its `ins`) pairs that read a value, by value id.
        followers: the nodes that wait for a node without reading from it (ORDER edges), by node id.
        outputs: (name, value id, item index) of each output.
        streamed: the outputs that the text of a decode or `expand` may be shown as, by node id.
        ops: specifications of the ops that `graph` uses.
        engine_nodes: one node for each engine, and kind of engine, that the graph needs.
        passes: names of the optimisation passes that were applied.
        verdicts: decisions about the passes that were weighed.
        tables: the same connections as a running graph keeps them.
        is_one_call: whether it is a prefill of its inputs with a decode of text, which run as one request.
        is_in_order: whether each node has a larger number than all that it waits for.
    """

    graph: Graph
    nodes: tuple[Node, ...]
    inputs: Mapping[str, int]
    num_values: int
    readers: tuple[tuple[tuple[int, int], ...], ...]
    followers: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[str, int, int | None], ...]
    streamed: Mapping[int, tuple[StreamedOutput, ...]]
    ops: Ops
    engine_nodes: tuple[Node, ...]
    passes: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    tables: ConnectionTables = field(init=False)
    is_one_call: bool = field(init=False)
    is_in_order: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_one_call", self._is_one_call())
        is_in_order = all(node < follower for node, all_ in enumerate(self.followers) for follower in all_)
        object.__setattr__(self, "is_in_order", is_in_order)
        object.__setattr__(self, "tables", ConnectionTables.of(self.nodes, self.readers, self.followers))

    def _is_one_call(self) -> bool:
        if len(self.nodes) != 2:
            return False
        first, last = self.nodes
        decode = last.decode
        return (
            first.fused == last.id
            and not (first.is_mapped or first.is_watched or first.hints or first.hint_from)
            and all(arg.value in self.inputs.values() and arg.index is None for arg in first.ins)
            and all(arg.port != WHEN for arg in first.ins)
            and decode is not None
            and decode.items is None
            and [(value, index) for _, value, index in self.outputs] == [(last.outs[0], None)]
        )


def rebase(
    egraph: ExecutionGraph, node_base: int, values: Sequence[int], under: Node | None = None
) -> list[Node]:
    """Return the nodes of a compiled graph, renumbered so that they can be added to a graph that is running.

    Args:
        node_base: id that the first node gets.
        values: new id of each value of `egraph`.
        under: node that `egraph` replaces, if any; its depth and path are added to those of the new nodes,
            and it passes its strategy on to those without one.
    """
    return [_rebased(node, node_base, values, under) for node in egraph.nodes]


def _rebased(node: Node, base: int, values: Sequence[int], under: Node | None) -> Node:
    """Return a node with new ids; written out, as it is made for every step of a session."""
    depth, path_s, strategy, reuse = node.depth, node.path_s, node.strategy, node.reuse
    if under is not None:
        depth += under.depth
        path_s += under.path_s
        reuse = None if reuse is None else reuse.grown()
        if strategy == NO_STRATEGY:
            strategy = under.strategy.passed_on(node.engine)
    return Node(
        node.id + base,
        node.name,
        node.op,
        node.spec,
        node.engine,
        tuple(
            [
                In(arg.port, values[arg.value], arg.index, arg.each, arg.piece, arg.optional, arg.is_hint)
                for arg in node.ins
            ]
        ),
        tuple([values[value] for value in node.outs]),
        tuple([other + base for other in node.after]),
        node.num_blocking,
        node.is_mapped,
        node.is_effect,
        node.prompt,
        node.config,
        depth,
        path_s,
        node.decode,
        None if node.fused is None else node.fused + base,
        None if node.fused_into is None else node.fused_into + base,
        tuple([other + base for other in node.hints]),
        tuple([other + base for other in node.hint_from]),
        node.template,
        node.own_s,
        strategy,
        reuse,
    )
