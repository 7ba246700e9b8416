"""The nodes of a prefix cache's tree, and who wants them kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stretto.llm.block_hashes import BlockHash
from stretto.llm.eviction import Rank

_MAX_TAILS = 16


@dataclass(slots=True, eq=False)
class Node:
    """A cached block, or a root with `block` None. Nodes of less than a full block are leaves for ever.

    Attributes:
        children: by their first token.
        owners: the queries that used it.
        lessees: those of them for whom it was prefilled ahead.
    """

    id: int
    hash: BlockHash
    tokens: tuple[int, ...]
    block: int | None
    parent: Node | None
    children: dict[int, list[Node]] = field(default_factory=dict)
    owners: set[str] = field(default_factory=set)
    lessees: set[str] = field(default_factory=set)
    last_used: int = 0

    @property
    def rank(self) -> Rank:
        """Lowest is evicted first."""
        return bool(self.lessees), self.last_used, self.id

    def longest_tail(self, rest: Sequence[int]) -> tuple[int | None, int]:
        """The child's block that begins with most of `rest`, and how many; of the newest few."""
        best, num_best = None, 0
        if rest:
            for child in self.children.get(rest[0], ())[-_MAX_TAILS:]:
                num = _num_common(child.tokens, rest)
                if num > num_best:
                    best, num_best = child.block, num
        return best, num_best


def _num_common(a: Sequence[int], b: Sequence[int]) -> int:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))


class Owners:
    """The nodes of each owner and each lessee. Owners of a node own all before it."""

    def __init__(self) -> None:
        self._owned: dict[str, dict[int, Node]] = {}
        self._leased: dict[str, dict[int, Node]] = {}

    def own(self, node: Node, owner: str) -> None:
        """One owner more; but one that was forgotten while it ran, and so does not own what is before the
        node, does not come back."""
        assert node.parent is not None
        if node.parent.block is not None and owner not in node.parent.owners:
            return
        if owner not in node.owners:
            node.owners.add(owner)
            self._owned.setdefault(owner, {})[node.id] = node

    def lease(self, node: Node, owner: str) -> None:
        """Until `end_lease`; for owners only."""
        if owner in node.owners:
            node.lessees.add(owner)
            self._leased.setdefault(owner, {})[node.id] = node

    def end_lease(self, node: Node, owner: str) -> None:
        """There has to be one."""
        node.lessees.remove(owner)
        _take(self._leased, node, owner)

    def forget(self, owner: str) -> tuple[list[Node], list[Node]]:
        """Nothing is its own any more; returns what it had leased and what it had owned, oldest first."""
        leased = list(self._leased.pop(owner, {}).values())
        owned = list(self._owned.pop(owner, {}).values())
        for node in leased:
            node.lessees.remove(owner)
        for node in owned:
            node.owners.remove(owner)
        return leased, owned

    def drop(self, node: Node) -> None:
        """The node goes."""
        for owner in node.owners:
            _take(self._owned, node, owner)
        for lessee in node.lessees:
            _take(self._leased, node, lessee)

    def check_invariants(self) -> None:
        """Raises AssertionError unless nodes know their owners, and lessees are owners."""
        assert all(owner in node.owners for owner, nodes in self._owned.items() for node in nodes.values())
        for lessee, nodes in self._leased.items():
            assert nodes
            assert all(lessee in node.lessees and lessee in node.owners for node in nodes.values())


def _take(by_owner: dict[str, dict[int, Node]], node: Node, owner: str) -> None:
    nodes = by_owner[owner]
    del nodes[node.id]
    if not nodes:
        del by_owner[owner]
