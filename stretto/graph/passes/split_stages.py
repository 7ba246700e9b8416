"""The pass `split_stages`: stream long lists through batchable primitives, an efficient batch at a time.

Source: Teola §4.2, pass 2. Differs: the edge is marked and the engine scheduler cuts pieces at run time, so
the length of the list need not be known and the graph does not grow with it.
"""

from __future__ import annotations

from dataclasses import replace

from stretto.graph.graph import Arg, Graph
from stretto.graph.ops import Ops
from stretto.graph.passes.base import DEFAULT_PROFILE, Profiles, with_primitives
from stretto.graph.written_order import whole_list_readers


def split_stages(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
    """Let each batchable step of a graph start as soon as one batch of its input list exists, instead of
    waiting for the whole list.

    The batch is the largest that its engine runs efficiently. A step that reads the pieces of an earlier one
    takes pieces of that size if they are smaller, so that a pipeline moves in step.
    """
    waiting = whole_list_readers(graph, ops)
    stage_piece: dict[str, int] = {}
    primitives = []
    for primitive in graph:
        allowed = primitive.allows("split_stages") and primitive.name not in waiting
        if "batchable" not in primitive.hints or not primitive.is_mapped() or not allowed:
            primitives.append(primitive)
            continue
        profile = profiles.get(primitive.engine or "", DEFAULT_PROFILE)
        upstream = [
            stage_piece[arg.ref.name] for arg in primitive.args if arg.each and arg.ref.name in stage_piece
        ]
        piece = min([profile.max_efficient_batch, *upstream])
        if not ops.spec(primitive).flatten:
            stage_piece[primitive.name] = piece
        if any(_waits(arg, piece) for arg in primitive.args):
            args = tuple(replace(arg, piece=piece) if _waits(arg, piece) else arg for arg in primitive.args)
            primitive = replace(primitive, args=args)
        primitives.append(primitive)
    return with_primitives(graph, primitives)


def _waits(arg: Arg, piece: int) -> bool:
    """Return whether the argument waits for more than `piece` items."""
    return arg.each and (arg.piece is None or arg.piece > piece)
