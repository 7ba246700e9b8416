"""The pass `split_prefill`: cut a prefill where its later segments become known later than its first ones.

The longest already known prefix of a prompt is computed first, while its other segments are still being
retrieved or decoded. A cut never changes a result: each part carries the whole prompt so far and takes the
part before it as a hint.

Source: Teola §4.2, pass 3. Differs: up to 64 cuts, by availability rather than by the place of a
placeholder, and none where an extra request would cost more than it saves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stretto.graph.graph import HINT, WHEN, Arg, Graph, Primitive, PromptParts, Ref, Slot
from stretto.graph.ops import Ops
from stretto.graph.passes.base import DEFAULT_PROFILE, Profiles, is_worth_a_prefill

_MAX_CUTS = 64
"""Largest number of cuts of a prompt. One with more is not cut: the parts would hold its square."""


def split_prefill(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
    """Split each prefill of a graph where a later part of its prompt becomes known later than the parts
    before it, so that the known parts are computed early.

    It becomes a chain of partial prefills, each of a longer prefix than the one before, and the whole prefill
    last. A cut that would not save more than its extra request costs is left out.
    """
    ordered = _ordered(graph)
    waits_for = _dependencies(graph, ordered)
    primitives: list[Primitive] = []
    order = list(graph.order)
    names = set(graph.by_name) | {name for name, _ in graph.inputs}
    for primitive in graph:
        if ops[primitive.op].computes_prompt and primitive.allows("split_prefill"):
            profile = profiles.get(primitive.engine or "", DEFAULT_PROFILE)
            hint = primitive.arg(HINT)
            hinting = graph.by_name.get(hint.ref.name) if hint else None
            start = len(hinting.prompt) if hinting else primitive.num_continued()
            befores = ordered.get(primitive.name, ())
            for cut in _cuts(primitive, start, befores, waits_for):
                if not is_worth_a_prefill(primitive.prompt[start:cut], profile):
                    continue
                name = _fresh(f"{primitive.name}.", names)
                part = _part(primitive, name, primitive.prompt[:cut])
                order += [(before, name) for before in befores]
                primitives.append(part)
                primitive = with_hint(primitive, name)
                start = cut
        primitives.append(primitive)
    if len(primitives) == len(graph.primitives):
        return graph
    return replace(graph, primitives=tuple(primitives), order=tuple(order))


def _ordered(graph: Graph) -> dict[str, list[str]]:
    """Return for each primitive the names of those that have to end before it without giving it a value."""
    ordered: dict[str, list[str]] = {}
    for before, after in graph.order:
        ordered.setdefault(after, []).append(before)
    return ordered


def _dependencies(graph: Graph, ordered: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return for each input and primitive what must end or come first, itself included, as a bit mask. Inputs
    that are not late wait for nothing.
    """
    waits_for = {name: 0 for name, _ in graph.inputs}
    for place, name in enumerate(sorted(graph.late), start=len(graph.primitives)):
        waits_for[name] = 1 << place
    for bit, primitive in enumerate(graph):
        mask = 1 << bit
        for arg in primitive.args:
            mask |= waits_for[arg.ref.name]
        for before in ordered.get(primitive.name, ()):
            mask |= waits_for.get(before, 0)
        waits_for[primitive.name] = mask
    return waits_for


def _cuts(
    primitive: Primitive, start: int, befores: Sequence[str], waits_for: Mapping[str, int]
) -> list[int]:
    """Return the places in the prompt, after `start`, where the next segment is known later than all before.

    A segment taken from each item of a list ends the search: what follows differs from item to item.
    """
    known = 0
    for before in befores:
        known |= waits_for[before]
    if guard := primitive.arg(WHEN):
        known |= waits_for[guard.ref.name]
    cuts = []
    for place, part in enumerate(primitive.prompt):
        if isinstance(part, Slot):
            arg = primitive.arg(part.port)
            assert arg is not None
            later = waits_for[arg.ref.name] & ~known
            if later and place > start:
                cuts.append(place)
            if arg.each:
                break
            known |= later
    return cuts if len(cuts) <= _MAX_CUTS else []


def _part(primitive: Primitive, name: str, prompt: PromptParts) -> Primitive:
    used = {part.port for part in prompt if isinstance(part, Slot)} | {HINT, WHEN}
    args = tuple(arg for arg in primitive.args if arg.port in used)
    return replace(primitive, name=name, prompt=prompt, args=args)


def with_hint(primitive: Primitive, name: str) -> Primitive:
    """Return the prefill `primitive` with a hint that the primitive `name` has computed a prefix of
    its prompt.

    The hint replaces an earlier one, if there is any.
    """
    args = tuple(arg for arg in primitive.args if arg.port != HINT)
    return replace(primitive, args=(*args, Arg(HINT, Ref(name))))


def _fresh(stem: str, names: set[str]) -> str:
    number = 1
    while f"{stem}{number}" in names:
        number += 1
    names.add(f"{stem}{number}")
    return f"{stem}{number}"
