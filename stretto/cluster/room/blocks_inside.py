"""The blocks that the contexts inside an instance take, each counted once.

They are kept as a tree of *runs*, consecutive blocks that the same contexts have. A run is split where
prompts part or end, and joined with the next one where all that have it go on. So a context enters, leaves
and is looked up in O(log n) of its n blocks for each run that it passes.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.room.contexts import Context, RoomRequest, num_common_blocks


class _Run:
    """The blocks of `blocks` from `start` to `end`, which `num_users` contexts have.

    `number` is the exclusive or of the numbers of these: of a single one, its number. `first` is the block by
    which its parent finds it.
    """

    __slots__ = ("blocks", "end", "first", "next", "num_users", "number", "parent", "start")

    def __init__(
        self, blocks: Sequence[BlockHash], start: int, end: int, first: BlockHash, parent: _Run | None
    ) -> None:
        self.blocks = blocks
        self.start = start
        self.end = end
        self.first = first
        self.parent = parent
        self.num_users = self.number = 0
        self.next: dict[BlockHash, _Run] = {}


class BlocksInside:
    """The blocks of the contexts inside one instance.

    Attributes:
        tokens: tokens of all blocks.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._root = _Run((), 0, 0, b"", None)
        self._last: dict[Context, _Run] = {}

    def find(self, blocks: Sequence[BlockHash]) -> tuple[int, int | None]:
        """Return how many of the first blocks of a prompt are inside, and the number of the one context that
        has the last of these; None if there are several, or none.
        """
        run, num = self._find(blocks)
        return num, run.number if num and run.num_users == 1 else None

    def add(self, context: Context) -> None:
        """Count the blocks of a context that enters."""
        blocks, num_blocks = context.blocks, len(context.blocks)
        run, num = self._find(blocks)
        if num < run.end:
            run = _head_of(run, num)
        if num < num_blocks:
            last = run.next[blocks[num]] = _Run(blocks, num, num_blocks, blocks[num], run)
            self.tokens += context.block_tokens * (num_blocks - num)
            run = last
        self._last[context] = run
        passed: _Run | None = run
        while passed is not None:
            passed.num_users += 1
            passed.number ^= context.number
            passed = passed.parent

    def remove(self, context: Context) -> None:
        """Count the blocks of a context no more."""
        self._leave(self._last.pop(context), context.number, context.block_tokens)

    def go_on(self, context: Context, request: RoomRequest) -> None:
        """Make the prompt of a request the last one of a context inside."""
        before, block_tokens = self._last[context], context.block_tokens
        context.goes_on_with(request)
        self.add(context)
        self._leave(before, context.number, block_tokens)

    def check_invariants(self) -> None:
        """Check the runs against the contexts inside. For tests."""
        users: dict[BlockHash, int] = {}
        for context in self._last:
            for block in context.blocks:
                users[block] = users.get(block, 0) + 1
        found, runs = {}, [self._root]
        while runs:
            run = runs.pop()
            found.update(dict.fromkeys(run.blocks[run.start : run.end], run.num_users))
            for first, one in run.next.items():
                assert first == one.first == one.blocks[one.start]
                assert (one.parent, one.start) == (run, run.end)
            runs += run.next.values()
        assert found == users

    def _find(self, blocks: Sequence[BlockHash]) -> tuple[_Run, int]:
        """Return the last run that a prompt begins to pass, and how many of its blocks are inside."""
        run, num, num_blocks = self._root, 0, len(blocks)
        while num == run.end and num < num_blocks:
            found = run.next.get(blocks[num])
            if found is None:
                break
            run, num = found, num_common_blocks(found.blocks, blocks, num + 1, min(found.end, num_blocks))
        return run, num

    def _leave(self, run: _Run, number: int, block_tokens: int) -> None:
        """Count a context no more whose blocks end with a run."""
        while (parent := run.parent) is not None:
            run.num_users -= 1
            run.number ^= number
            if not run.num_users:
                del parent.next[run.first]
                self.tokens -= block_tokens * (run.end - run.start)
            elif len(run.next) == 1:
                _join(run, parent)
            run = parent
        run.num_users -= 1
        run.number ^= number


def _head_of(run: _Run, num: int) -> _Run:
    """Split a run before the block `num` of the prompt; return the new run with the blocks before."""
    assert run.parent is not None
    head = run.parent.next[run.first] = _Run(run.blocks, run.start, num, run.first, run.parent)
    head.num_users, head.number = run.num_users, run.number
    run.start, run.first, run.parent = num, run.blocks[num], head
    head.next[run.first] = run
    return head


def _join(run: _Run, parent: _Run) -> None:
    """Join a run with the only one that follows, if all contexts that have it go on there."""
    (after,) = run.next.values()
    if after.num_users == run.num_users:
        after.start, after.first, after.parent = run.start, run.first, parent
        parent.next[run.first] = after
