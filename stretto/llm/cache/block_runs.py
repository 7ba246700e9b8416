"""The nodes of a prefix cache's tree, and their owners."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from stretto.cluster.block_hashes import BlockHash

_MAX_TAILS = 16


class Siblings(dict[tuple[int, ...], "BlockRun"]):
    """The children of one node of the prefix cache's tree that begin with the same token, by the tokens of
    their first block, oldest first. Searches by the beginning of a block take O(log n).
    """

    def __init__(self) -> None:
        super().__init__()
        self._sorted: list[tuple[int, ...]] = []

    def __setitem__(self, block: tuple[int, ...], child: BlockRun) -> None:
        if block not in self:
            insort(self._sorted, block)
        super().__setitem__(block, child)

    def __delitem__(self, block: tuple[int, ...]) -> None:
        super().__delitem__(block)
        del self._sorted[bisect_left(self._sorted, block)]

    def beginning_with(self, tokens: tuple[int, ...]) -> BlockRun | None:
        """Return a child whose first block begins with `tokens`; None if there is none."""
        place = bisect_left(self._sorted, tokens)
        block = self._sorted[place] if place < len(self._sorted) else ()
        return self[block] if block[: len(tokens)] == tokens else None

    def beginnings_of(self, block: tuple[int, ...]) -> list[BlockRun]:
        """Return the children whose first block is `block` or a beginning of it, the shortest first."""
        if len(self) < len(block):
            found = [tokens for tokens in self if block[: len(tokens)] == tokens]
            return [self[tokens] for tokens in sorted(found, key=len)]
        beginnings = (block[:num_tokens] for num_tokens in range(1, len(block) + 1))
        return [self[tokens] for tokens in beginnings if tokens in self]


@dataclass(slots=True, eq=False)
class BlockRun:
    """A node of the prefix cache's tree: a run of consecutive cached blocks; a root has none.

    Either all blocks are full, or the run is a single block that is not; then the node stays a leaf.

    Attributes:
        start: number of blocks before the run, on the path from the root.
        hashes: hashes of the full blocks, if the cache reports events.
        children: nodes that follow, by their first token and then by all tokens of their first block; oldest
            first.
        owners: queries that used the run of blocks.
        lessees: owners for which it was prefilled ahead and not used yet, so that it is evicted last.
        num_holders: number of sequences that hold the run, and with it all nodes before it.
        used_s: time of the last use, by the clock of `EvictionQueue`.
        promises: times at which owners are expected to need it again, by owner; infinite for never.
        due_s: earliest time at which it is expected to be needed again, and infinite if it is expected of no
            owner; None if too little is known. `note_promises` computes it.
    """

    salt: str
    tokens: list[int]
    blocks: list[int]
    parent: BlockRun | None
    start: int = 0
    hashes: list[BlockHash] = field(default_factory=list)
    children: dict[int, Siblings] = field(default_factory=dict)
    owners: set[str] = field(default_factory=set)
    lessees: set[str] = field(default_factory=set)
    num_holders: int = 0
    last_used: int = 0
    used_s: float = 0.0
    promises: dict[str, float] = field(default_factory=dict)
    due_s: float | None = None

    def note_promises(self) -> None:
        """Compute `due_s` anew, because the promises or the owners of the node have changed."""
        due_s = min(self.promises.values(), default=None)
        is_known = due_s != math.inf or len(self.promises) == len(self.owners)
        self.due_s = due_s if is_known else None

    def path(self) -> Iterator[BlockRun]:
        """Yield this node and all nodes before it in the tree except the root, the last one first."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def child(self, tokens: Sequence[int], start: int, size: int) -> BlockRun | None:
        """Find the child node whose first block holds exactly
        the tokens tokens[start : start + size]; None if there is none.
        """
        siblings = self.children.get(tokens[start])
        return siblings.get(tuple(tokens[start : start + size])) if siblings else None

    def adopt(self, child: BlockRun, block: tuple[int, ...]) -> None:
        """Add a child node whose first block holds the tokens `block`; it
        replaces a child with the same first block.
        """
        if block[0] not in self.children:
            self.children[block[0]] = Siblings()
        self.children[block[0]][block] = child
        child.parent = self

    def disown(self, block: tuple[int, ...]) -> None:
        """Remove the child node whose first block holds the tokens `block`."""
        siblings = self.children[block[0]]
        del siblings[block]
        if not siblings:
            del self.children[block[0]]

    def longest_tail(self, rest: Sequence[int]) -> tuple[BlockRun | None, int]:
        """Find the child node whose first block has the longest common prefix with the tokens `rest`.

        Returns that child and the length of the prefix in tokens: (None, 0) if no first token is equal. Only
        the newest few children are considered.
        """
        best, num_best = None, 0
        if rest and (siblings := self.children.get(rest[0])):
            newest = list(islice(reversed(siblings.items()), _MAX_TAILS))
            for block, child in reversed(newest):
                num = num_common(block, rest)
                if num > num_best:
                    best, num_best = child, num
        return best, num_best


def num_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of tokens in the common prefix of two sequences of tokens."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))


class Owners:
    """An index of the prefix cache's nodes by owner and by lessee.

    Owners are the queries that used a node; an owner of a node owns all nodes before it. A
    lessee is an owner for which the node was prefilled ahead; while it has one, the node is evicted last.
    """

    def __init__(self) -> None:
        self._owned: dict[str, dict[BlockRun, None]] = {}
        self._leased: dict[str, dict[BlockRun, None]] = {}

    def _may_own(self, parent: BlockRun, owner: str) -> bool:
        """Return whether an owner may own a child of `parent`: it must own `parent`, unless that is a root.

        An owner that was forgotten while its sequence ran does not, and is not added again in mid-prompt.
        """
        return parent.parent is None or owner in parent.owners

    def own(self, node: BlockRun, owner: str) -> None:
        """Record that a query uses a node.

        Ignored if the query was forgotten while its sequence ran, so that it does not own the node before
        this one.
        """
        assert node.parent is not None
        if owner not in node.owners and self._may_own(node.parent, owner):
            node.owners.add(owner)
            self._owned.setdefault(owner, {})[node] = None

    def lease(self, node: BlockRun, owner: str) -> None:
        """Record that a node was prefilled ahead for the query `owner`: it is evicted last until `end_lease`.

        Ignored if the query does not own the node.
        """
        if owner in node.owners:
            node.lessees.add(owner)
            self._leased.setdefault(owner, {})[node] = None

    def end_lease(self, node: BlockRun, owner: str) -> None:
        """End the lease of a node, which was to be evicted last because it had been
        prefilled ahead for the query `owner`.
        """
        node.lessees.remove(owner)
        _take(self._leased, node, owner)

    def copy(self, node: BlockRun, other: BlockRun) -> None:
        """Give `other`, a new part of the split `node`, the same owners, lessees and
        promises as `node` has.
        """
        for owner in node.owners:
            other.owners.add(owner)
            self._owned[owner][other] = None
        for lessee in node.lessees:
            other.lessees.add(lessee)
            self._leased[lessee][other] = None
        other.promises.update(node.promises)
        other.due_s = node.due_s

    def forget(self, owner: str) -> tuple[list[BlockRun], list[BlockRun]]:
        """Remove a query from the owners and lessees of all nodes, with its promises.

        Returns the nodes that were leased for it, and the nodes that it owned, deepest first.
        """
        leased = list(self._leased.pop(owner, ()))
        owned = list(self._owned.pop(owner, ()))
        for node in leased:
            node.lessees.remove(owner)
        for node in owned:
            node.owners.remove(owner)
            if node.promises:
                node.promises.pop(owner, None)
                node.note_promises()
        return leased, sorted(owned, key=_start, reverse=True)

    def owned_by(self, owner: str) -> list[BlockRun]:
        """Return the nodes that a query has used."""
        return list(self._owned.get(owner, ()))

    def drop(self, node: BlockRun) -> None:
        """Remove a node from the index, because it leaves the cache's tree."""
        for owner in node.owners:
            _take(self._owned, node, owner)
        for lessee in node.lessees:
            _take(self._leased, node, lessee)

    def check_invariants(self) -> None:
        """Raise AssertionError unless this index and the cache's nodes agree on who owns each node, and all
        lessees are owners.
        """
        assert all(owner in node.owners for owner, nodes in self._owned.items() for node in nodes)
        for lessee, nodes in self._leased.items():
            assert nodes
            assert all(lessee in node.lessees and lessee in node.owners for node in nodes)
        for nodes in self._owned.values():
            for node in nodes:
                assert node.promises.keys() <= node.owners


def _take(by_owner: dict[str, dict[BlockRun, None]], node: BlockRun, owner: str) -> None:
    nodes = by_owner[owner]
    del nodes[node]
    if not nodes:
        del by_owner[owner]


def _start(node: BlockRun) -> int:
    return node.start
