"""The pass `share_prefix`: compute the common beginning of several prompts once.

Source: Parrot §5.3, as common-subexpression elimination on the graph. The pass sees what is equal by
construction; what is equal by value only (two users' same question) is left to the engine's prefix cache.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from stretto.graph.graph import HINT, WHEN, Arg, Constant, Graph, Primitive, Ref
from stretto.graph.ops import Ops
from stretto.graph.passes.base import DEFAULT_PROFILE, Profiles, is_worth_a_prefill, texts_of
from stretto.graph.passes.split_prefill import with_hint

_Key = tuple[Hashable, ...]


def share_prefix(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
    """Rewrite a graph so that the common beginning of several prompts is computed once.

    Equal prefills become one. For prompts that begin alike, one partial prefill of that beginning is added,
    if it is long enough to pay; the others take it as a hint, a prefix that is computed already.
    """
    merged = _merge_equal(graph, ops)
    ordered: dict[str, frozenset[str]] = {}
    for before, after in merged.order:
        ordered[after] = ordered.get(after, frozenset()) | {before}
    groups: dict[Hashable, list[Primitive]] = {}
    for primitive in merged:
        is_free = primitive.arg(HINT) is None and not primitive.num_continued()
        if ops[primitive.op].computes_prompt and is_free and primitive.allows("share_prefix"):
            guard = primitive.arg(WHEN)
            shared = _shareable(primitive)
            if shared:
                key = (primitive.engine, primitive.config, guard, ordered.get(primitive.name), shared[0])
                groups.setdefault(key, []).append(primitive)
    for group in groups.values():
        merged = _share(merged, group, profiles)
    return merged


def _shareable(primitive: Primitive) -> list[_Key]:
    """Return the prompt's leading parts as comparable keys, up to the first that differs between items."""
    keys: list[_Key] = []
    for part in primitive.prompt:
        if isinstance(part, Constant):
            keys.append((part,))
            continue
        arg = primitive.arg(part.port)
        assert arg is not None
        if arg.each:
            break
        keys.append((arg.ref, arg.port))
    return keys


def _merge_equal(graph: Graph, ops: Ops) -> Graph:
    """Merge prefills that are equal except for their names (as `split_prefill` makes them)."""
    kept: dict[Hashable, list[Primitive]] = {}
    renamed: dict[str, str] = {}
    primitives = []
    before: dict[str, frozenset[str]] = {}
    for earlier, later in graph.order:
        before[later] = before.get(later, frozenset()) | {earlier}

    def are_equal(a: Primitive, b: Primitive) -> bool:
        if (a.prompt, a.args, a.config, a.hints) != (b.prompt, b.args, b.config, b.hints):
            return False
        if a.strategy != b.strategy:
            return False
        earlier = [{renamed.get(name, name) for name in before.get(own.name, ())} for own in (a, b)]
        return earlier[0] == earlier[1]

    for primitive in graph:
        if any(arg.ref.name in renamed for arg in primitive.args):
            primitive = replace(primitive, args=tuple(_rename(arg, renamed) for arg in primitive.args))
        if ops[primitive.op].computes_prompt and primitive.allows("share_prefix"):
            reads = tuple([arg.ref.name for arg in primitive.args])  # cheaper to hash than a whole primitive
            alike = kept.setdefault((primitive.engine, texts_of(primitive.prompt), reads), [])
            equal = next((other for other in alike if are_equal(other, primitive)), None)
            if equal is not None:
                renamed[primitive.name] = equal.name
                continue
            alike.append(primitive)
        primitives.append(primitive)
    if not renamed:
        return graph
    order = dict.fromkeys((renamed.get(a, a), renamed.get(b, b)) for a, b in graph.order)
    outputs = tuple((name, replace(ref, name=renamed.get(ref.name, ref.name))) for name, ref in graph.outputs)
    return replace(graph, primitives=tuple(primitives), order=tuple(order), outputs=outputs)


def _rename(arg: Arg, renamed: dict[str, str]) -> Arg:
    if arg.ref.name not in renamed:
        return arg
    return replace(arg, ref=Ref(renamed[arg.ref.name], arg.ref.port, arg.ref.index))


def _share(graph: Graph, group: Sequence[Primitive], profiles: Profiles) -> Graph:
    if len(group) < 2:
        return graph
    keys = [_shareable(primitive) for primitive in group]
    length = _common_length(keys)
    head = group[0]
    profile = profiles.get(head.engine or "", DEFAULT_PROFILE)
    if not is_worth_a_prefill(head.prompt[:length], profile):
        return graph
    primitives: list[Primitive] = []
    order = list(graph.order)
    members = {primitive.name for primitive in group}
    if length == len(head.prompt):
        shared = head.name
        members.discard(shared)
    else:
        shared = graph.fresh_name(f"{head.name}.shared")
        order += [(before, shared) for before, after in graph.order if after == head.name]
    ports = {key[1] for key in keys[0][:length] if len(key) == 2} | {WHEN}
    for primitive in graph:
        if primitive.name == head.name and shared != head.name:
            args = tuple(arg for arg in head.args if arg.port in ports)
            primitives.append(replace(head, name=shared, prompt=head.prompt[:length], args=args))
        primitives.append(with_hint(primitive, shared) if primitive.name in members else primitive)
    return replace(graph, primitives=tuple(primitives), order=tuple(order))


def _common_length(keys: Sequence[Sequence[_Key]]) -> int:
    length = 0
    for parts in zip(*keys, strict=False):
        if any(part != parts[0] for part in parts):
            break
        length += 1
    return length
