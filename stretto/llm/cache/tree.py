"""The tree of a prefix cache: lookups, and splits of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stretto.llm.cache.block_runs import BlockRun, Owners, num_common


class CacheHit(NamedTuple):
    """The cached prefix of a prompt; valid as long as the cache does not change.

    Attributes:
        blocks: full blocks of the prefix.
        num_tokens: length of the prefix; tokens after `blocks` are in the next block of `tail`.
        node: the cache's node that contains the last of `blocks`.
        num_in_node: number of blocks of `node` that belong to the prefix.
        tail: node with the block that belongs to the prefix only in part; None if there is none.
    """

    blocks: Sequence[int] = ()
    num_tokens: int = 0
    node: BlockRun | None = None
    num_in_node: int = 0
    tail: BlockRun | None = None


class CacheTree:
    """The tree of a prefix cache's nodes, with one root for each tenant; a root
    exists as long as it has nodes.
    """

    def __init__(self, block_tokens: int) -> None:
        self.owners = Owners()
        self._block_tokens = block_tokens
        self._roots: dict[str, BlockRun] = {}

    def root(self, salt: str) -> BlockRun:
        """Return the root of a tenant's prefixes in the tree. A new root joins the tree only when a node
        is added to it.
        """
        return self._roots.get(salt) or BlockRun(salt, [], [], None)

    def look_up(self, salt: str, tokens: list[int], limit: int) -> CacheHit:
        """Find the longest prefix of tokens[:limit] cached for the tenant `salt`. Changes nothing."""
        node = self._roots.get(salt)
        if node is None:
            return CacheHit()
        size = self._block_tokens
        limit = min(limit, len(tokens))
        blocks: list[int] = []
        num_in_node = place = 0
        while num_in_node == len(node.blocks) and place + size <= limit:
            child = node.child(tokens, place, size)
            if child is None:
                break
            node = child
            num_in_node = self.num_equal(node, tokens, place, limit)
            place += num_in_node * size
            blocks += node.blocks[:num_in_node]
        rest = tokens[place : min(limit, place + size)]
        if num_in_node == len(node.blocks):
            tail, num_in_tail = node.longest_tail(rest)
        else:
            num_in_tail = num_common(node.tokens[num_in_node * size : (num_in_node + 1) * size], rest)
            tail = node if num_in_tail else None
        return CacheHit(blocks, place + num_in_tail, node if blocks else None, num_in_node, tail)

    def num_equal(self, node: BlockRun, tokens: list[int], place: int, limit: int) -> int:
        """Return how many full blocks of a node, from its first on, hold the same
        tokens as tokens[place:limit] begins with.

        The caller has checked already that the first block does.
        """
        size = self._block_tokens
        most = min(len(node.blocks), (limit - place) // size)
        wanted, held = tokens[place : place + most * size], node.tokens
        if wanted == held[: most * size]:
            return most
        num_equal = 1
        while num_equal < most:  # the answer is in [num_equal, most]
            middle = (num_equal + most + 1) // 2
            part = slice(num_equal * size, middle * size)
            if wanted[part] == held[part]:
                num_equal = middle
            else:
                most = middle - 1
        return num_equal

    def add(self, node: BlockRun) -> None:
        """Add a new leaf node to the tree, below its `parent`."""
        assert node.parent is not None
        if node.parent.parent is None:
            self._roots[node.salt] = node.parent
        node.parent.adopt(node, tuple(node.tokens[: self._block_tokens]))

    def split(self, node: BlockRun, num_blocks: int) -> BlockRun:
        """Move the first `num_blocks` blocks of a node to a new parent node, and return that.

        Sequences that hold `node` hold both.
        """
        assert node.parent is not None
        size = self._block_tokens
        num_tokens = num_blocks * size
        head = BlockRun(
            node.salt,
            node.tokens[:num_tokens],
            node.blocks[:num_blocks],
            node.parent,
            node.start,
            node.hashes[:num_blocks],
            num_holders=node.num_holders,
            last_used=node.last_used,
            used_s=node.used_s,
        )
        self.owners.copy(node, head)
        node.parent.adopt(head, tuple(head.tokens[:size]))
        del node.tokens[:num_tokens], node.blocks[:num_blocks], node.hashes[:num_blocks]
        node.start += num_blocks
        head.adopt(node, tuple(node.tokens[:size]))
        return head

    def drop(self, node: BlockRun) -> None:
        """Remove a leaf node from the tree, and the root of its tenant if that has no other children."""
        assert node.parent is not None
        assert not node.children
        node.parent.disown(tuple(node.tokens[: self._block_tokens]))
        self.owners.drop(node)
        if node.parent.parent is None and not node.parent.children:
            del self._roots[node.salt]

    def nodes(self) -> list[BlockRun]:
        """Return all nodes of the tree except the roots."""
        found: list[BlockRun] = []
        stack = list(self._roots.values())
        while stack:
            below = [child for siblings in stack.pop().children.values() for child in siblings.values()]
            found += below
            stack += below
        return found

    def check_invariants(self) -> None:
        """Raise AssertionError unless the tree's nodes and their owners are consistent."""
        size = self._block_tokens
        self.owners.check_invariants()
        for salt, root in self._roots.items():
            assert root.salt == salt
            assert root.children
            assert not root.blocks
        for node in self.nodes():
            parent, first = node.parent, tuple(node.tokens[:size])
            assert parent is not None
            assert parent.children[first[0]][first] is node
            assert node.salt == parent.salt
            assert node.start == parent.start + len(parent.blocks)
            assert node.num_holders <= parent.num_holders or parent.parent is None
            assert node.owners <= parent.owners or parent.parent is None
            assert node.owners or node.num_holders
            assert node.blocks
            is_full = len(node.tokens) == len(node.blocks) * size
            is_tail = len(node.blocks) == 1 and 0 < len(node.tokens) < size and not node.children
            assert is_full or is_tail
