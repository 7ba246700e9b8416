"""The nodes of a prefix cache's tree, and who wants them kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from stretto.cluster.block_hashes import BlockHash

_MAX_TAILS = 16


@dataclass(slots=True, eq=False)
class BlockRun:
    """Cached blocks, one behind the other, that always had the same fate; a root has none.

    All full, or a single one that is not: such a node is a leaf for ever.

    Attributes:
        start: how many blocks are before it.
        hashes: of the full blocks, if they are told.
        children: by their first token, and then by all tokens of their first block; oldest first.
        owners: the queries that used it.
        lessees: those of them for whom it was prefilled ahead.
        num_holders: sequences that hold it, and so all before it.
    """

    salt: str
    tokens: list[int]
    blocks: list[int]
    parent: BlockRun | None
    start: int = 0
    hashes: list[BlockHash] = field(default_factory=list)
    children: dict[int, dict[tuple[int, ...], BlockRun]] = field(default_factory=dict)
    owners: set[str] = field(default_factory=set)
    lessees: set[str] = field(default_factory=set)
    num_holders: int = 0
    last_used: int = 0

    def path(self) -> Iterator[BlockRun]:
        """It and all before it but the root, the last first."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def child(self, tokens: Sequence[int], start: int, size: int) -> BlockRun | None:
        """The one whose first block is tokens[start : start + size]."""
        siblings = self.children.get(tokens[start])
        return siblings.get(tuple(tokens[start : start + size])) if siblings else None

    def adopt(self, child: BlockRun, block: tuple[int, ...]) -> None:
        """A child that begins with `block`, perhaps in the place of another one."""
        self.children.setdefault(block[0], {})[block] = child
        child.parent = self

    def disown(self, block: tuple[int, ...]) -> None:
        """The child that begins with `block` goes."""
        siblings = self.children[block[0]]
        del siblings[block]
        if not siblings:
            del self.children[block[0]]

    def longest_tail(self, rest: Sequence[int]) -> tuple[BlockRun | None, int]:
        """The child whose first block begins with most of `rest`, and how many; of the newest few."""
        best, num_best = None, 0
        if rest and (siblings := self.children.get(rest[0])):
            newest = list(islice(reversed(siblings.items()), _MAX_TAILS))
            for block, child in reversed(newest):
                num = num_common(block, rest)
                if num > num_best:
                    best, num_best = child, num
        return best, num_best


def num_common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))


class Owners:
    """The nodes of each owner and each lessee. Owners of a node own all before it."""

    def __init__(self) -> None:
        self._owned: dict[str, dict[BlockRun, None]] = {}
        self._leased: dict[str, dict[BlockRun, None]] = {}

    def _may_own(self, parent: BlockRun, owner: str) -> bool:
        """Whether it owns what is before, if there is something. One that was forgotten while it ran does
        not, and does not come back in the middle of a prompt."""
        return parent.parent is None or owner in parent.owners

    def own(self, node: BlockRun, owner: str) -> None:
        """One owner more, if it may."""
        assert node.parent is not None
        if owner not in node.owners and self._may_own(node.parent, owner):
            node.owners.add(owner)
            self._owned.setdefault(owner, {})[node] = None

    def lease(self, node: BlockRun, owner: str) -> None:
        """Until `end_lease`; for owners only."""
        if owner in node.owners:
            node.lessees.add(owner)
            self._leased.setdefault(owner, {})[node] = None

    def end_lease(self, node: BlockRun, owner: str) -> None:
        """There has to be one."""
        node.lessees.remove(owner)
        _take(self._leased, node, owner)

    def copy(self, node: BlockRun, other: BlockRun) -> None:
        """`other`, which nobody knows yet, belongs to the same."""
        for owner in node.owners:
            other.owners.add(owner)
            self._owned[owner][other] = None
        for lessee in node.lessees:
            other.lessees.add(lessee)
            self._leased[lessee][other] = None

    def forget(self, owner: str) -> tuple[list[BlockRun], list[BlockRun]]:
        """Nothing is its own any more; returns what it had leased, and what it had owned, deepest first."""
        leased = list(self._leased.pop(owner, ()))
        owned = list(self._owned.pop(owner, ()))
        for node in leased:
            node.lessees.remove(owner)
        for node in owned:
            node.owners.remove(owner)
        return leased, sorted(owned, key=_start, reverse=True)

    def drop(self, node: BlockRun) -> None:
        """The node goes."""
        for owner in node.owners:
            _take(self._owned, node, owner)
        for lessee in node.lessees:
            _take(self._leased, node, lessee)

    def check_invariants(self) -> None:
        """Raises AssertionError unless nodes know their owners, and lessees are owners."""
        assert all(owner in node.owners for owner, nodes in self._owned.items() for node in nodes)
        for lessee, nodes in self._leased.items():
            assert nodes
            assert all(lessee in node.lessees and lessee in node.owners for node in nodes)


def _take(by_owner: dict[str, dict[BlockRun, None]], node: BlockRun, owner: str) -> None:
    nodes = by_owner[owner]
    del nodes[node]
    if not nodes:
        del by_owner[owner]


def _start(node: BlockRun) -> int:
    return node.start
