"""Finds which LLM requests of a graph have prompts that begin alike, and when each is predicted to start.

An instance that has computed one of them holds the beginning of the others. Two parts of prompts are alike if
they are the same constant or the same value. The text that a request writes counts as a further part of its
own prompt, because later prompts may go on from it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stretto.graph.graph import ANSWER, HINT, Constant, Graph, Primitive, Ref
from stretto.graph.ops import Ops
from stretto.graph.verify import sort_topologically

_NO_END = "expand"


@dataclass(frozen=True, slots=True)
class Share:
    """A beginning that the prompts of several LLM requests of a graph have in common.

    Attributes:
        num_parts: number of leading parts of the prompt; one more than it has if the answer is included.
        members: (node, predicted start in seconds) of each request, by start. Nodes are numbered as in the
            graph by itself.
    """

    num_parts: int
    members: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class PromptReuse:
    """The requests of a graph that begin like the one of a node, as far as the graph tells.

    Attributes:
        node: number of the node in the graph by itself.
        end_s: predicted seconds from the start of the graph to the end of the request.
        shares: the beginnings that others have too, the longest first.
        num_constants: number of leading parts that are constants; they are in other queries' prompts too.
        num_own: number of leading parts that all items have, if the node is applied to a list; else 0.
        num_requests: number of LLM requests of the graph on the same engine.
        is_whole: whether the graph cannot grow, so that no other request of the query begins alike.
    """

    node: int
    end_s: float
    shares: tuple[Share, ...]
    num_constants: int
    num_own: int = 0
    num_requests: int = 1
    is_whole: bool = True

    def grown(self) -> PromptReuse:
        """Return the same for a graph that is a part of another one."""
        return replace(self, is_whole=False)


@dataclass(slots=True)
class _Beginning:
    members: list[tuple[int, float]] = field(default_factory=list)
    longer: dict[Hashable, _Beginning] = field(default_factory=dict)


def find_reuse(
    graph: Graph, ops: Ops, fused_into: Mapping[int, int], own_s: Mapping[str, float]
) -> dict[int, PromptReuse]:
    """Return, by the node number of each LLM request, which others begin like it. A single request is left
    out, unless the graph cannot grow and it is applied once: then nothing will ever begin like it.

    Args:
        fused_into: number of the prefill with which a decode runs as one request, by the decode's number.
        own_s: predicted seconds of each step alone, by its name.
    """
    specs = [ops[primitive.op] for primitive in graph]
    requests = [
        i for i, spec in enumerate(specs) if (spec.computes_prompt or spec.makes_text) and i not in fused_into
    ]
    is_whole = all(primitive.op != _NO_END for primitive in graph)
    if len(requests) < 2 and not (is_whole and requests and not graph.primitives[requests[0]].is_mapped()):
        return {}
    starts_s = _starts_s(graph, own_s)
    fused = {prefill: decode for decode, prefill in fused_into.items()}
    root = _Beginning()
    paths: dict[int, list[_Beginning]] = {}
    requests.sort(key=lambda number: starts_s[graph.primitives[number].name])  # as members are to be
    for number in requests:
        primitive = graph.primitives[number]
        last = graph.primitives[fused.get(number, number)]
        keys = _parts(graph, ops, primitive)
        if _writes_text(ops, last) and len(keys) == len(_prompt_of(graph, ops, primitive).prompt):
            keys.append((Ref(last.name),))
        paths[number] = _enter(root, (primitive.engine, *keys), number, starts_s[primitive.name])
    found: dict[int, PromptReuse] = {}
    members_of: dict[int, tuple[tuple[int, float], ...]] = {}
    for number, path in paths.items():
        primitive, prompt = graph.primitives[number], _prompt_of(graph, ops, graph.primitives[number])
        last = graph.primitives[fused.get(number, number)]
        shares: list[Share] = []
        for num_parts in range(len(path), 0, -1):
            beginning = path[num_parts - 1]
            num_known = len(shares[-1].members) if shares else 1
            if len(beginning.members) > num_known:
                members = members_of.setdefault(id(beginning), tuple(beginning.members))
                shares.append(Share(num_parts, members))
        is_constant = [isinstance(part, Constant) for part in prompt.prompt]
        found[number] = PromptReuse(
            number,
            starts_s[last.name] + own_s[last.name],
            tuple(shares),
            is_constant.index(False) if False in is_constant else len(is_constant),
            len(_parts(graph, ops, primitive)) if primitive.is_mapped() else 0,
            len(root.longer[primitive.engine].members),
            is_whole,
        )
    return found


def _enter(root: _Beginning, keys: Sequence[Hashable], number: int, start_s: float) -> list[_Beginning]:
    """Add a request to all its beginnings; return those after the first key, which is the engine."""
    path = []
    beginning = root
    for key in keys:
        beginning = beginning.longer.setdefault(key, _Beginning())
        beginning.members.append((number, start_s))
        path.append(beginning)
    return path[1:]


def _prompt_of(graph: Graph, ops: Ops, primitive: Primitive) -> Primitive:
    """Return the prefill with the prompt of an LLM request: itself, or the one whose KV a decode takes."""
    kv = primitive.arg("kv") if ops[primitive.op].makes_text else None
    return primitive if kv is None else graph.by_name.get(kv.ref.name, primitive)


def _parts(graph: Graph, ops: Ops, primitive: Primitive) -> list[Hashable]:
    """Return the leading parts of a prompt as keys that compare, up to the first that differs by item."""
    prefill = _prompt_of(graph, ops, primitive)
    keys: list[Hashable] = []
    for part in prefill.prompt:
        if isinstance(part, Constant):
            keys.append((part.text, part.role))
            continue
        arg = prefill.arg(part.port)
        assert arg is not None
        if arg.each:
            break
        ref = arg.ref
        keys.append((Ref(ref.name, "", ref.index) if ref.port == ANSWER else ref,))
    return keys


def _writes_text(ops: Ops, primitive: Primitive) -> bool:
    return ops[primitive.op].makes_text and not primitive.is_mapped() and not primitive.setting("items")


def _starts_s(graph: Graph, own_s: Mapping[str, float]) -> dict[str, float]:
    """Return the predicted seconds until each step can start, if nothing else delays it."""
    ends_s: dict[str, float] = {}
    starts_s: dict[str, float] = {}
    before: dict[str, list[str]] = {}
    for earlier, later in graph.order:
        before.setdefault(later, []).append(earlier)
    for primitive in (sort_topologically(graph) if graph.order else graph).primitives:
        sources = [arg.ref.name for arg in primitive.args if arg.port != HINT]
        sources += before.get(primitive.name, ())
        start_s = max((ends_s[name] for name in sources if name in ends_s), default=0.0)
        starts_s[primitive.name] = start_s
        ends_s[primitive.name] = start_s + own_s[primitive.name]
    return starts_s
