"""Groups of sequences that share enough leading blocks for attention to read these once for all."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sharers:
    """A group of sequences that share their leading KV blocks, so that attention reads these only once.

    Attributes:
        members: positions of the sequences in the list that was grouped.
        num_blocks: number of leading blocks that all members share.
    """

    members: tuple[int, ...]
    num_blocks: int

    @property
    def num_saved(self) -> int:
        """Number of KV blocks that attention need not read when it reads the shared blocks once for the group
        instead of once for each member.
        """
        return self.num_blocks * (len(self.members) - 1)


def group_by_prefix(tables: list[list[int]], min_blocks: int) -> list[Sharers]:
    """Group sequences that begin with the same KV blocks, so that attention reads shared blocks once for each
    group; return the groups.

    A sequence is given by its block table, the list of its KV blocks. The groups are chosen so that as few
    blocks as possible are read more than once. Sequences that share fewer than `min_blocks` leading blocks
    are left out. The last block of a table is never shared.
    """
    by_depth: dict[int, list[int]] = {}
    for member, table in enumerate(tables):
        if len(table) > min_blocks:
            by_depth.setdefault(table[min_blocks - 1], []).append(member)
    return [found for members in by_depth.values() for found in _best(tables, members)]


def _best(tables: list[list[int]], members: list[int]) -> list[Sharers]:
    """Return all members as one group, or the best groups of each branch: whichever saves more."""
    if len(members) < 2:
        return []
    first, last = min(tables[m] for m in members), max(tables[m] for m in members)
    shortest = min(len(tables[m]) for m in members) - 1
    num_blocks = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), shortest)
    together = Sharers(tuple(members), min(num_blocks, shortest))
    branches: dict[int, list[int]] = {}
    for member in members:
        if len(tables[member]) > together.num_blocks + 1:
            branches.setdefault(tables[member][together.num_blocks], []).append(member)
    if len(branches) < 2:
        return [together]
    apart = [found for branch in branches.values() for found in _best(tables, branch)]
    return apart if sum(found.num_saved for found in apart) > together.num_saved else [together]
