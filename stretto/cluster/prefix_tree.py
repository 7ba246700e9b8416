"""A tree of the prompt beginnings that instances are believed to hold, because requests were sent there.

A node is a run: consecutive blocks that the same instances hold. A run is split where prompts part, or where
an instance holds only a part of it. The tree has no pointers to children: block hashes are chained, so that a
dict from the first block of each run finds the next run of a prompt.

What an instance holds is evicted as its engine would do it, the least recently used blocks first, and from
the end of a prefix: whenever a run is used, its parents are used after it, so that the oldest run of an
instance has no children there.

    prompt      [ a b c d | e f g ]             data of the prompt: 8 bytes a block
    runs        first[a] -> run(a b c d)        holders {0, 1}
                first[e] -> run(e f g h)        holders {0}; instance 0 holds 7 blocks of the prompt

Two different beginnings may have the same hash. Then the tree does not know the later one of them.

Source: Preble §4.2 (global prefix trees). Differs: hashes of blocks instead of tokens, a dict instead of
pointers, and the number of requests of a node decays instead of ending with a window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stretto.cluster.messages import InstanceId
from stretto.cluster.prefix_hashes import HASH_BYTES
from stretto.cluster.prefix_holders import Cache, Holders
from stretto.cluster.prefix_runs import IndexRun, RunTable

_RUN_BYTES = 360
"""Memory of a run and of its place in one instance's order, without its blocks; as measured."""
_EXPIRED_AT_ONCE = 4


class PrefixTree:
    """The beginnings of prompts that instances are believed to hold, in blocks.

    Args:
        window_s: seconds after which what was not used is forgotten.
        max_bytes: memory beyond which the instance that holds most forgets its oldest runs.
        rate_s: seconds after which a use counts as 1/e of one.

    Attributes:
        runs: the runs of the tree, which find what is held of a prompt.
        holders: the instances and their caches.
    """

    def __init__(
        self, window_s: float = math.inf, max_bytes: float = math.inf, rate_s: float = math.inf
    ) -> None:
        self.window_s = window_s
        self.max_bytes = max_bytes
        self.rate_s = rate_s
        self.num_blocks = 0
        self.runs = RunTable()
        self.holders = Holders()
        self._num_entries = 0
        self._turn = 0

    @property
    def num_bytes(self) -> int:
        """Estimated memory of the tree, in bytes."""
        return _RUN_BYTES * self._num_entries + HASH_BYTES * self.num_blocks

    def leave(self, instance: InstanceId) -> None:
        """Forget an instance, in time proportional to what it holds; nothing happens if it is not there."""
        if instance in self.holders:
            self.clear(instance)
            self.holders.leave(instance)

    def clear(self, instance: InstanceId) -> None:
        """Forget all that an instance holds."""
        self.evict(instance, self.holders[instance].num_blocks)

    def limit(self, instance: InstanceId, capacity_blocks: float) -> None:
        """Set how many blocks an instance can hold at most, and evict what is more."""
        cache = self.holders[instance]
        cache.capacity = capacity_blocks
        self.evict(instance, math.ceil(max(0.0, cache.num_blocks - capacity_blocks)))

    def use(self, instance: InstanceId, data: bytes, now_s: float) -> tuple[int, float]:
        """Note that an instance holds a prompt's blocks from `now_s` on: a request was sent there.

        What it then holds too much, and what has been unused for the window, is forgotten.

        Returns:
            how many of the blocks it held before, and when it last used them; minus infinity if it held none.
        """
        found, num_matched = self.runs.path(data)
        path, cache = list(found), self.holders[instance]
        bit, used = cache.bit, cache.used
        before = _before(cache, found, num_matched)
        if path and num_matched < path[-1].start + len(path[-1].blocks) // HASH_BYTES:
            is_whole = num_matched * HASH_BYTES == len(data) and path[-1].holders & bit
            if not is_whole:
                cut = path.pop()
                head = self._split(cut, num_matched - cut.start)
                num_matched = cut.start if head is None else num_matched
                path += [] if head is None else [head]
        if num_matched * HASH_BYTES < len(data):
            self._append(cache, path, data[num_matched * HASH_BYTES :], num_matched)
        for run in reversed(path):
            if run.holders & bit:
                used.move_to_end(run)
            else:
                run.holders |= bit
                num_blocks = len(run.blocks) // HASH_BYTES
                self._num_entries += 1
                self.num_blocks += num_blocks
                cache.num_blocks += num_blocks
            used[run] = now_s
            if run.uses:
                run.uses = 1.0 + run.recent_uses(now_s, self.rate_s)
            else:
                run.uses = 1.0  # one object for most runs
            run.used_s = now_s
        if cache.num_blocks > cache.capacity:
            self.evict(instance, math.ceil(cache.num_blocks - cache.capacity))
        else:
            cache.note_oldest()
        self._keep_up(cache, now_s)
        return before

    def evict(self, instance: InstanceId, num_blocks: int) -> None:
        """Forget the least recently used blocks of an instance.

        Fewer than `num_blocks` go where the last run is shared, which is kept whole.
        """
        cache = self.holders[instance]
        while num_blocks > 0 and cache.used:
            run = next(iter(cache.used))
            size = len(run.blocks) // HASH_BYTES
            if size <= num_blocks:
                self._drop(cache, run)
                num_blocks -= size
                continue
            if run.holders == cache.bit and not run.num_children:
                self.runs.shorten(run, size - num_blocks)
                self._count(cache, -num_blocks)
            break
        cache.note_oldest()

    def take_back(self, instance: InstanceId, data: bytes, num_kept: int, used_s: float) -> None:
        """Forget the end of a prompt that an instance has not computed after all: the blocks after the first
        `num_kept`.

        What was used there after `used_s` stays, and so does what longer prompts begin with. What was evicted
        to make room does not come back.
        """
        cache, num_blocks = self.holders[instance], len(data) // HASH_BYTES
        for run in reversed(self.runs.path(data)[0]):
            end = run.start + run.num_blocks
            if not num_kept < end <= num_blocks or run.num_children:
                break
            if cache.used.get(run, math.inf) > used_s:
                break
            if run.start >= num_kept:
                self._drop(cache, run)
                continue
            if run.holders == cache.bit:
                self.runs.shorten(run, num_kept - run.start)
                self._count(cache, num_kept - end)
            break
        cache.note_oldest()

    def forget_unused(self, cache: Cache, time_s: float, limit: float = math.inf) -> None:
        """Forget what an instance has not used after `time_s`, at most `limit` runs of it."""
        while cache.since_s <= time_s and limit > 0:
            self._drop(cache, next(iter(cache.used)))
            cache.note_oldest()
            limit -= 1

    def check_invariants(self) -> None:
        """Check that runs, holders and counts agree. For tests."""
        self.runs.check_invariants()
        self.holders.check_invariants()
        runs = {run for cache in self.holders for run in cache.used}
        assert runs == set(self.runs)
        for run in runs:
            assert run.num_children == sum(other.parent is run for other in runs)
            assert run.start == (run.parent.start + run.parent.num_blocks if run.parent else 0)
            assert run.parent is None or run.holders & ~run.parent.holders == 0
            holders = {one.instance for one in self.holders if run in one.used}
            assert holders == set(self.holders.ids(run.holders))
        for cache in self.holders:
            order = list(cache.used)
            assert cache.num_blocks == sum(run.num_blocks for run in order)
            assert cache.since_s == next(iter(cache.used.values()), math.inf)
            assert all(order.index(run) < order.index(run.parent) for run in order if run.parent)
        assert self.num_blocks == sum(cache.num_blocks for cache in self.holders)
        assert self._num_entries == sum(len(cache.used) for cache in self.holders)

    def _append(self, cache: Cache, path: list[IndexRun], rest: bytes, start: int) -> None:
        """Add the blocks `rest` after the last run of `path`, to this run if only the instance holds it.

        Nothing happens if the hash of the first of them is in use at another place.
        """
        if self.runs.has_first(rest):
            return
        last = path[-1] if path else None
        if last is not None and not last.num_children and last.holders == cache.bit:
            self.runs.extend(last, rest)
            self._count(cache, len(rest) // HASH_BYTES)
            return
        run = IndexRun(rest, last, start)
        self.runs.add(run)
        if last is not None:
            last.num_children += 1
        path.append(run)

    def _split(self, run: IndexRun, num_blocks: int) -> IndexRun | None:
        """Cut the first blocks off a run; return the new run that has them. Return None, and change nothing,
        if the hash of the next block is in use at another place.

        For the instances that hold it the new run counts as used just now: it goes after its child.
        """
        head = self.runs.split(run, num_blocks)
        if head is None:
            return None
        for cache in self.holders.caches(run.holders):
            cache.used[head] = cache.used[run]
            self._num_entries += 1
            for after in head.parents():
                cache.used.move_to_end(after)
        return head

    def _drop(self, cache: Cache, run: IndexRun) -> None:
        del cache.used[run]
        self._num_entries -= 1
        run.holders &= ~cache.bit
        self._count(cache, -(len(run.blocks) // HASH_BYTES))
        if not run.holders:
            self.runs.remove(run)
            if run.parent is not None:
                run.parent.num_children -= 1

    def _count(self, cache: Cache, num_blocks: int) -> None:
        cache.num_blocks += num_blocks
        self.num_blocks += num_blocks

    def _keep_up(self, cache: Cache, now_s: float) -> None:
        """Do a little upkeep: expiry for this instance and one other, and the bound of the memory."""
        expired_s = now_s - self.window_s
        self._turn += 1
        other = self.holders.at_turn(self._turn)
        if cache.since_s <= expired_s:
            self.forget_unused(cache, expired_s, _EXPIRED_AT_ONCE)
        if other is not None and other is not cache and other.since_s <= expired_s:
            self.forget_unused(other, expired_s, _EXPIRED_AT_ONCE)
        while _RUN_BYTES * self._num_entries + HASH_BYTES * self.num_blocks > self.max_bytes:
            largest = max(self.holders, key=lambda one: len(one.used))
            self._drop(largest, next(iter(largest.used)))
            largest.note_oldest()


def _before(cache: Cache, path: Sequence[IndexRun], num_matched: int) -> tuple[int, float]:
    """Return how many blocks of a path an instance holds, and when it last used the last of them."""
    for run in reversed(path):
        if run.holders & cache.bit:
            return min(run.start + len(run.blocks) // HASH_BYTES, num_matched), cache.used[run]
    return 0, -math.inf
