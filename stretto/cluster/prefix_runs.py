"""Runs of blocks that the same instances hold, and the table that finds them by their first block.

The table has no pointers to children: block hashes are chained, so that a dict from the first block of each
run finds the next run of a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from stretto.cluster.prefix_hashes import HASH_BYTES

_NUM_PARTS = 256
"""Parts of the dict of runs, by the first byte of a hash: a dict that grows is copied, which would take
milliseconds if there was only one."""


class IndexRun:
    """Consecutive blocks that the same instances hold.

    Attributes:
        blocks: hashes of the blocks, 8 bytes each.
        parent: the run before it; None at a prompt's beginning.
        start: number of blocks before it.
        holders: bit set of the places of the instances that hold it.
        num_children: number of runs that follow it.
        uses: number of requests that used it; each counts less as time passes.
        used_s: time of the last use.
    """

    __slots__ = ("blocks", "holders", "num_children", "parent", "start", "used_s", "uses")

    def __init__(self, blocks: bytes, parent: IndexRun | None, start: int) -> None:
        self.blocks = blocks
        self.parent = parent
        self.start = start
        self.holders = 0
        self.num_children = 0
        self.uses = 0.0
        self.used_s = 0.0

    @property
    def num_blocks(self) -> int:
        """Number of its blocks."""
        return len(self.blocks) // HASH_BYTES

    def recent_uses(self, now_s: float, rate_s: float) -> float:
        """Return the number of requests that used it lately: one of `rate_s` seconds ago counts as 1/e."""
        if now_s <= self.used_s or not self.uses:
            return self.uses
        return self.uses * math.exp((self.used_s - now_s) / rate_s)

    def parents(self) -> Iterator[IndexRun]:
        """Yield this run and all before it, the last one first."""
        one: IndexRun | None = self
        while one is not None:
            yield one
            one = one.parent


class RunTable:
    """The runs of a tree, by their first blocks."""

    def __init__(self) -> None:
        self._first: tuple[dict[bytes, IndexRun], ...] = tuple({} for _ in range(_NUM_PARTS))
        self._found: tuple[bytes, tuple[tuple[IndexRun, ...], int]] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._first))

    def __iter__(self) -> Iterator[IndexRun]:
        return (run for part in self._first for run in part.values())

    def path(self, data: bytes) -> tuple[Sequence[IndexRun], int]:
        """Return the runs with which a prompt begins, and how many of the prompt's blocks they have; only a
        part of the last run may be the prompt's.

        The last path is kept until runs change, because a prompt is sent right after it was looked up.

        `data` has the hashes of the prompt's blocks, 8 bytes each.
        """
        if self._found is None or self._found[0] is not data:
            self._found = data, self._find(data)
        return self._found[1]

    def levels(self, data: bytes) -> list[tuple[int, int]]:
        """Return (number of blocks, bit set of the places of the instances that hold so many of a prompt's
        first blocks) pairs; the longest prefix is last.
        """
        path, num_matched = self.path(data)
        found = [(run.start + len(run.blocks) // HASH_BYTES, run.holders) for run in path]
        if found and found[-1][0] > num_matched:
            found[-1] = num_matched, found[-1][1]
        return found

    def has_first(self, blocks: bytes) -> bool:
        """Return whether a run begins with the first of some blocks."""
        return blocks[:HASH_BYTES] in self._first[blocks[0]]

    def add(self, run: IndexRun) -> None:
        """Add a run."""
        self._first[run.blocks[0]][run.blocks[:HASH_BYTES]] = run
        self._found = None

    def remove(self, run: IndexRun) -> None:
        """Remove a run that no instance holds any more."""
        del self._first[run.blocks[0]][run.blocks[:HASH_BYTES]]
        self._found = None

    def extend(self, run: IndexRun, blocks: bytes) -> None:
        """Add blocks to the end of a run."""
        run.blocks += blocks
        self._found = None

    def shorten(self, run: IndexRun, num_blocks: int) -> None:
        """Keep only the first blocks of a run."""
        run.blocks = run.blocks[: num_blocks * HASH_BYTES]
        self._found = None

    def split(self, run: IndexRun, num_blocks: int) -> IndexRun | None:
        """Cut the first blocks off a run; return the new run that has them. Return None, and change nothing,
        if the hash of the next block is in use at another place.
        """
        cut = num_blocks * HASH_BYTES
        rest = run.blocks[cut:]
        if self.has_first(rest):
            return None
        head = IndexRun(run.blocks[:cut], run.parent, run.start)
        head.holders, head.uses, head.used_s, head.num_children = run.holders, run.uses, run.used_s, 1
        run.blocks, run.parent, run.start = rest, head, run.start + num_blocks
        self.add(head)
        self.add(run)
        return head

    def check_invariants(self) -> None:
        """Check that runs are where they are looked for. For tests."""
        for run in self:
            assert run.blocks
            assert self._first[run.blocks[0]].get(run.blocks[:HASH_BYTES]) is run
        assert self._found is None or self._found[1] == self._find(self._found[0])

    def _find(self, data: bytes) -> tuple[tuple[IndexRun, ...], int]:
        """Search the path of a prompt anew; see `path`."""
        path: list[IndexRun] = []
        at, first = 0, self._first
        parent: IndexRun | None = None
        while at < len(data):
            run = first[data[at]].get(data[at : at + HASH_BYTES])
            if run is None or run.parent is not parent or run.start * HASH_BYTES != at:
                break
            path.append(run)
            parent = run
            end = at + len(run.blocks)
            if not data.startswith(run.blocks, at):
                return tuple(path), (at + _num_common(data[at:end], run.blocks)) // HASH_BYTES
            at = end
        return tuple(path), at // HASH_BYTES


def _num_common(data: bytes, blocks: bytes) -> int:
    """Return the length in bytes of the blocks that two sequences of chained hashes have in common.

    Their first hashes are equal.
    """
    low, high = 1, min(len(data), len(blocks)) // HASH_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        place = slice((middle - 1) * HASH_BYTES, middle * HASH_BYTES)
        if data[place] == blocks[place]:
            low = middle
        else:
            high = middle - 1
    return low * HASH_BYTES
