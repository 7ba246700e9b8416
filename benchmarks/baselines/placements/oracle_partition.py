"""The placement policy `oracle_partition`: each instance gets a fixed part of all prefixes.

The parts are made beforehand, by someone who knows all prompts: `partition` splits their key portions evenly.
Prompts that it has not seen go by the hash of their first block.

Source: Preble §5.2, baseline 2 (oracle partition).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.index_members import HeldTokens
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.placement import Choice
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.scored_placement import ScoredPlacement


class OraclePartition(ScoredPlacement):
    """A placement policy that sends all prompts with the same key portion to the same instance.

    Args:
        parts: number of the part of each known key portion, by the hash of one of its blocks.
    """

    names = ("part",)

    def __init__(self, parts: Mapping[BlockHash, int]) -> None:
        super().__init__()
        self.parts = parts

    def best(
        self, request: PlacementRequest, options: Sequence[InstanceView], held: HeldTokens, now_s: float
    ) -> Choice:
        """Return the instance to which the prompt's part belongs."""
        part = self._part(request)
        view = sorted(options, key=lambda view: view.id)[part % len(options)]
        return Choice(view.id, held.of(view), {"part": part}, f"part {part} of the prompts belongs to it")

    def terms(
        self, request: PlacementRequest, view: InstanceView, held_tokens: int, now_s: float
    ) -> tuple[float, ...]:
        """Return the number of the prompt's part, which is the same for all instances."""
        return (self._part(request),)

    def _part(self, request: PlacementRequest) -> int:
        for key in request.keys.values():
            if self.parts:
                for block in reversed(key.blocks):
                    if block in self.parts:
                        return self.parts[block]
            if key.blocks:
                return int.from_bytes(key.blocks[0], "little") % 65_537
        return 0


def partition(key_portions: Iterable[tuple[BlockHash, float]], num_parts: int) -> dict[BlockHash, int]:
    """Return the number of the part of each key portion, so that all parts have about the same load.

    Args:
        key_portions: hash of a block of each key portion, and its load.
    """
    loads = [0.0] * num_parts
    parts: dict[BlockHash, int] = {}
    for block, load in sorted(key_portions, key=lambda pair: (-pair[1], pair[0])):
        part = loads.index(min(loads))
        parts[block] = part
        loads[part] += load
    return parts
