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
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from stretto.cluster.messages import InstanceId
from stretto.cluster.prefix_hashes import HASH_BYTES
from stretto.model.errors import InternalError

_RUN_BYTES = 360
"""Memory of a run and of its place in one instance's order, without its blocks; as measured."""
_EXPIRED_AT_ONCE = 4
_NUM_PARTS = 256
"""Parts of the dict of runs, by the first byte of a hash: a dict that grows is copied, which would take
milliseconds if there was only one."""
_MAX_KNOWN_SETS = 1024
"""Number of sets of instances whose ids are kept, because the same few sets are asked for again and again."""


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


class Cache:
    """The runs of blocks that one instance is believed to hold. Only the tree changes them.

    Attributes:
        instance: id of the instance.
        place: place of the instance in bit sets.
        bit: bit set that has this place alone.
        used: runs that it holds and the times of their last use, the least recently used first.
        num_blocks: number of blocks that it holds.
        capacity: number of blocks that it can hold at most.
        since_s: time of the last use of the first run in `used`; infinity if it holds nothing.
    """

    __slots__ = ("bit", "capacity", "instance", "num_blocks", "place", "since_s", "used")

    def __init__(self, instance: InstanceId, place: int, capacity: float) -> None:
        self.instance = instance
        self.place = place
        self.bit = 1 << place
        self.used: OrderedDict[IndexRun, float] = OrderedDict()
        self.num_blocks = 0
        self.capacity = capacity
        self.since_s = math.inf

    def note_oldest(self) -> None:
        """Update `since_s`, after the first run has changed."""
        self.since_s = next(iter(self.used.values()), math.inf)


class PrefixTree:
    """The beginnings of prompts that instances are believed to hold, in blocks.

    Args:
        window_s: seconds after which what was not used is forgotten.
        max_bytes: memory beyond which the instance that holds most forgets its oldest runs.
        rate_s: seconds after which a use counts as 1/e of one.
    """

    def __init__(
        self, window_s: float = math.inf, max_bytes: float = math.inf, rate_s: float = math.inf
    ) -> None:
        self.window_s = window_s
        self.max_bytes = max_bytes
        self.rate_s = rate_s
        self.num_blocks = 0
        self._first: tuple[dict[bytes, IndexRun], ...] = tuple({} for _ in range(_NUM_PARTS))
        self._caches: dict[InstanceId, Cache] = {}
        self._at_place: list[Cache | None] = []
        self._ids_of: dict[int, tuple[InstanceId, ...]] = {}
        self._found: tuple[bytes, tuple[tuple[IndexRun, ...], int]] | None = None
        self._num_entries = 0
        self._turn = 0

    @property
    def num_runs(self) -> int:
        """Number of runs in the tree."""
        return sum(map(len, self._first))

    @property
    def num_bytes(self) -> int:
        """Estimated memory of the tree, in bytes."""
        return _RUN_BYTES * self._num_entries + HASH_BYTES * self.num_blocks

    @property
    def instances(self) -> tuple[InstanceId, ...]:
        """Ids of the instances that have joined."""
        return tuple(self._caches)

    def join(self, instance: InstanceId, capacity_blocks: float = math.inf) -> Cache:
        """Add an instance that holds nothing yet, and at most `capacity_blocks` blocks later; return its
        cache.
        """
        if instance in self._caches:
            raise InternalError(f"instance {instance} has joined before")
        place = next((n for n, one in enumerate(self._at_place) if one is None), len(self._at_place))
        cache = self._caches[instance] = Cache(instance, place, capacity_blocks)
        self._at_place[place : place + 1] = [cache]
        self._ids_of.clear()
        return cache

    def leave(self, instance: InstanceId) -> None:
        """Forget an instance, in time proportional to what it holds; nothing happens if it is not there."""
        if instance not in self._caches:
            return
        self.clear(instance)
        self._at_place[self._caches.pop(instance).place] = None
        self._ids_of.clear()

    def clear(self, instance: InstanceId) -> None:
        """Forget all that an instance holds."""
        self.evict(instance, self._caches[instance].num_blocks)

    def num_held(self, instance: InstanceId) -> int:
        """Return how many blocks an instance holds in all."""
        return self._caches[instance].num_blocks

    def limit(self, instance: InstanceId, capacity_blocks: float) -> None:
        """Set how many blocks an instance can hold at most, and evict what is more."""
        cache = self._caches[instance]
        cache.capacity = capacity_blocks
        self._evict_excess(cache)

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

    def place(self, instance: InstanceId) -> int | None:
        """Return the place of an instance in bit sets; None if it has not joined."""
        cache = self._caches.get(instance)
        return None if cache is None else cache.place

    def instances_of(self, holders: int) -> tuple[InstanceId, ...]:
        """Return the instances whose places are in a bit set."""
        found = self._ids_of.get(holders)
        if found is None:
            if len(self._ids_of) >= _MAX_KNOWN_SETS:
                self._ids_of.clear()
            found = self._ids_of[holders] = tuple(cache.instance for cache in self._holding(holders))
        return found

    def use(self, instance: InstanceId, data: bytes, now_s: float) -> tuple[int, float]:
        """Note that an instance holds a prompt's blocks from `now_s` on: a request was sent there.

        What it then holds too much, and what has been unused for the window, is forgotten.

        Returns:
            how many of the blocks it held before, and when it last used them; minus infinity if it held none.
        """
        found, num_matched = self.path(data)
        path, cache = list(found), self._caches[instance]
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
            uses = run.uses
            if uses and now_s > run.used_s:
                uses *= math.exp((run.used_s - now_s) / self.rate_s)
            run.uses = 1.0 + uses
            run.used_s = now_s
        if cache.num_blocks > cache.capacity:
            self._evict_excess(cache)
        else:
            cache.note_oldest()
        self._keep_up(cache, now_s)
        return before

    def recent_uses(self, run: IndexRun, now_s: float) -> float:
        """Return the number of requests that used a run lately: one of `rate_s` seconds ago counts as 1/e."""
        if now_s <= run.used_s or not run.uses:
            return run.uses
        return run.uses * math.exp((run.used_s - now_s) / self.rate_s)

    def oldest(self, instance: InstanceId) -> Iterator[tuple[IndexRun, float]]:
        """Yield the runs that an instance holds and the times of their last use there, in the order in which
        they would be evicted.
        """
        yield from self._caches[instance].used.items()

    def evict(self, instance: InstanceId, num_blocks: int) -> None:
        """Forget the least recently used blocks of an instance.

        Fewer than `num_blocks` go where the last run is shared, which is kept whole.
        """
        cache = self._caches[instance]
        while num_blocks > 0 and cache.used:
            run = next(iter(cache.used))
            size = len(run.blocks) // HASH_BYTES
            if size <= num_blocks:
                self._drop(cache, run)
                num_blocks -= size
                continue
            if run.holders == cache.bit and not run.num_children:
                run.blocks = run.blocks[: (size - num_blocks) * HASH_BYTES]
                self._found = None
                self._count(cache, -num_blocks)
            break
        cache.note_oldest()

    def take_back(self, instance: InstanceId, data: bytes, num_kept: int, used_s: float) -> None:
        """Forget the end of a prompt that an instance has not computed after all: the blocks after the first
        `num_kept`.

        What was used there after `used_s` stays, and so does what longer prompts begin with. What was evicted
        to make room does not come back.
        """
        cache, num_blocks = self._caches[instance], len(data) // HASH_BYTES
        for run in reversed(self.path(data)[0]):
            end = run.start + run.num_blocks
            if not num_kept < end <= num_blocks or run.num_children:
                break
            if cache.used.get(run, math.inf) > used_s:
                break
            if run.start >= num_kept:
                self._drop(cache, run)
                continue
            if run.holders == cache.bit:
                run.blocks = run.blocks[: (num_kept - run.start) * HASH_BYTES]
                self._found = None
                self._count(cache, num_kept - end)
            break
        cache.note_oldest()

    def forget_unused_since(self, instance: InstanceId, time_s: float) -> None:
        """Forget what an instance has not used after `time_s`."""
        self._forget_unused(self._caches[instance], time_s, math.inf)

    def expire(self, now_s: float) -> None:
        """Forget all that was not used for `window_s`."""
        for instance in self._caches:
            self.forget_unused_since(instance, now_s - self.window_s)

    def check_invariants(self) -> None:
        """Check that runs, holders and counts agree. For tests."""
        runs = {run for cache in self._caches.values() for run in cache.used}
        assert runs == {run for part in self._first for run in part.values()}
        for run in runs:
            assert run.blocks
            assert self._at(run.blocks).get(run.blocks[:HASH_BYTES]) is run
            assert run.num_children == sum(other.parent is run for other in runs)
            assert run.start == (run.parent.start + run.parent.num_blocks if run.parent else 0)
            assert run.parent is None or run.holders & ~run.parent.holders == 0
            holders = {one.instance for one in self._caches.values() if run in one.used}
            assert holders == set(self.instances_of(run.holders))
        for instance, cache in self._caches.items():
            order = list(cache.used)
            assert cache.instance == instance
            assert self._at_place[cache.place] is cache
            assert cache.num_blocks == sum(run.num_blocks for run in order)
            assert cache.since_s == next(iter(cache.used.values()), math.inf)
            assert all(order.index(run) < order.index(run.parent) for run in order if run.parent)
        assert self._found is None or self._found[1] == self._find(self._found[0])
        assert self.num_blocks == sum(cache.num_blocks for cache in self._caches.values())
        assert self._num_entries == sum(len(cache.used) for cache in self._caches.values())

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

    def _at(self, blocks: bytes) -> dict[bytes, IndexRun]:
        """Return the part of the dict of runs that a run which begins with these blocks belongs to."""
        return self._first[blocks[0]]

    def _holding(self, holders: int) -> list[Cache]:
        found = []
        while holders:
            place = holders.bit_length() - 1
            if (cache := self._at_place[place]) is not None:
                found.append(cache)
            holders ^= 1 << place
        return found

    def _evict_excess(self, cache: Cache) -> None:
        if cache.num_blocks > cache.capacity:
            self.evict(cache.instance, math.ceil(cache.num_blocks - cache.capacity))

    def _forget_unused(self, cache: Cache, time_s: float, limit: float) -> None:
        """Forget what an instance has not used after `time_s`, at most `limit` runs of it."""
        while cache.since_s <= time_s and limit > 0:
            self._drop(cache, next(iter(cache.used)))
            cache.note_oldest()
            limit -= 1

    def _append(self, cache: Cache, path: list[IndexRun], rest: bytes, start: int) -> None:
        """Add the blocks `rest` after the last run of `path`, to this run if only the instance holds it.

        Nothing happens if the hash of the first of them is in use at another place.
        """
        part, first = self._at(rest), rest[:HASH_BYTES]
        if first in part:
            return
        self._found = None
        last = path[-1] if path else None
        if last is not None and not last.num_children and last.holders == cache.bit:
            last.blocks += rest
            self._count(cache, len(rest) // HASH_BYTES)
            return
        run = part[first] = IndexRun(rest, last, start)
        if last is not None:
            last.num_children += 1
        path.append(run)

    def _split(self, run: IndexRun, num_blocks: int) -> IndexRun | None:
        """Cut the first blocks off a run; return the new run that has them. Return None, and change nothing,
        if the hash of the next block is in use at another place.

        For the instances that hold it the new run counts as used just now: it goes after its child.
        """
        cut = num_blocks * HASH_BYTES
        rest = run.blocks[cut:]
        if rest[:HASH_BYTES] in self._at(rest):
            return None
        self._found = None
        head = IndexRun(run.blocks[:cut], run.parent, run.start)
        head.holders, head.uses, head.used_s, head.num_children = run.holders, run.uses, run.used_s, 1
        run.blocks, run.parent, run.start = rest, head, run.start + num_blocks
        self._at(head.blocks)[head.blocks[:HASH_BYTES]] = head
        self._at(rest)[rest[:HASH_BYTES]] = run
        for cache in self._holding(run.holders):
            cache.used[head] = cache.used[run]
            self._num_entries += 1
            for after in _parents(head):
                cache.used.move_to_end(after)
        return head

    def _drop(self, cache: Cache, run: IndexRun) -> None:
        del cache.used[run]
        self._num_entries -= 1
        run.holders &= ~cache.bit
        self._count(cache, -(len(run.blocks) // HASH_BYTES))
        if not run.holders:
            del self._at(run.blocks)[run.blocks[:HASH_BYTES]]
            self._found = None
            if run.parent is not None:
                run.parent.num_children -= 1

    def _count(self, cache: Cache, num_blocks: int) -> None:
        cache.num_blocks += num_blocks
        self.num_blocks += num_blocks

    def _keep_up(self, cache: Cache, now_s: float) -> None:
        """Do a little upkeep: expiry for this instance and one other, and the bound of the memory."""
        expired_s = now_s - self.window_s
        self._turn = (self._turn + 1) % len(self._at_place)
        other = self._at_place[self._turn]
        if cache.since_s <= expired_s:
            self._forget_unused(cache, expired_s, _EXPIRED_AT_ONCE)
        if other is not None and other is not cache and other.since_s <= expired_s:
            self._forget_unused(other, expired_s, _EXPIRED_AT_ONCE)
        while _RUN_BYTES * self._num_entries + HASH_BYTES * self.num_blocks > self.max_bytes:
            largest = max(self._caches.values(), key=lambda one: len(one.used))
            self._drop(largest, next(iter(largest.used)))
            largest.note_oldest()


def _before(cache: Cache, path: Sequence[IndexRun], num_matched: int) -> tuple[int, float]:
    """Return how many blocks of a path an instance holds, and when it last used the last of them."""
    for run in reversed(path):
        if run.holders & cache.bit:
            return min(run.start + len(run.blocks) // HASH_BYTES, num_matched), cache.used[run]
    return 0, -math.inf


def _parents(run: IndexRun) -> Iterator[IndexRun]:
    one: IndexRun | None = run
    while one is not None:
        yield one
        one = one.parent


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
