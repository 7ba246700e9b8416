"""The pass `pipeline_decode`: hand on the items of a decoded list one by one, while decoding goes on.

Source: Teola §4.2, pass 4. Differs: items leave through an incremental parser as a stream of unknown
length, so nothing is cloned and no count is guessed.
"""

from __future__ import annotations

from dataclasses import replace

from stretto.graph.graph import Graph
from stretto.graph.ops import Ops
from stretto.graph.passes.base import Profiles, with_primitives
from stretto.graph.written_order import whole_list_readers


def pipeline_decode(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
    """Let steps that handle list items independently start on each item of a list that an LLM is generating,
    as soon as the item is complete.

    This holds for "batchable" primitives that read a "splittable" decode, and for those that read
    them.
    """
    waiting = whole_list_readers(graph, ops)
    item_streams: set[str] = set()
    primitives = []
    for primitive in graph:
        if not primitive.allows("pipeline_decode") or primitive.name in waiting:
            pass
        elif ops[primitive.op].makes_text and "splittable" in primitive.hints and primitive.setting("items"):
            item_streams.add(primitive.name)
        elif "batchable" in primitive.hints and any(
            arg.each and arg.ref.name in item_streams for arg in primitive.args
        ):
            if any(arg.each and arg.piece != 1 for arg in primitive.args):
                args = tuple(replace(arg, piece=1) if arg.each else arg for arg in primitive.args)
                primitive = replace(primitive, args=args)
            if not ops.spec(primitive).flatten:
                item_streams.add(primitive.name)
        primitives.append(primitive)
    return with_primitives(graph, primitives)
