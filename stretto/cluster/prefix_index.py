"""What the prefix caches of all instances hold of a prompt, in one look-up, for placement policies.

An instance that reports its cache by KV events is believed. Requests that run there count too, because their
blocks are reported only when they are computed. Of an instance that reports nothing, the index believes that
it holds the prompts that were sent there, and evicts the least recently used beyond its capacity. Where an
answer shows that fewer tokens were found than expected, all that is as old as the missing prefix is
forgotten, and the capacity is taken to be what is left.

Reports do not tell which blocks an instance will evict next. So the order of use is followed for all
instances in the same way, and policies that price evictions ask `caches`.

An index has no clock. Times come with the events.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.held_blocks import HeldBlocks, LoadingShares
from stretto.cluster.index_members import HeldTokens, IndexMember, SentRequest
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.messages import InstanceId, KVReport
from stretto.cluster.placement import Bound, Dispatched, Emptied, Ended, Joined, Left, PlacementEvent, Unbound
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.prefix_hashes import HASH_BYTES, pack_hashes
from stretto.cluster.prefix_holders import Cache
from stretto.cluster.prefix_tree import PrefixTree

WINDOW_S = 3600.0
"""Seconds after which what was not used is forgotten, where instances report nothing."""
RATE_S = 180.0
"""Seconds after which a use of a prefix counts as 1/e of one."""
MAX_BYTES = 256e6
"""Memory of the prefixes of one space, in bytes."""
_MAX_HOLDERS = 16
_GROWTH = 1.02


class PrefixIndex:
    """An index of the prefixes that all instances hold.

    Args:
        window_s: seconds after which what was not used is forgotten, where instances report nothing.
        max_bytes: memory that the prefixes of one space may take, and again
            those of its instances that report their caches.
        rate_s: seconds after which a use of a prefix counts as 1/e of one.

    Attributes:
        members: the instances that have joined.
        trees: the prefixes that were sent to instances of each space.
        caches: what each instance that has a space would hold if it evicted what
            was used least recently.
        now_s: time of the last request that was sent.
    """

    def __init__(
        self, window_s: float = WINDOW_S, max_bytes: float = MAX_BYTES, rate_s: float = RATE_S
    ) -> None:
        self.reported = HeldBlocks()
        self._settings = window_s, max_bytes, rate_s
        self.trees: dict[str, PrefixTree] = {}
        self._followed: dict[str, PrefixTree] = {}
        self.caches: dict[InstanceId, Cache] = {}
        self.members: dict[InstanceId, IndexMember] = {}
        self._reporting: set[InstanceId] = set()
        self._unbound: SentRequest | None = None
        self.now_s = 0.0

    def held(self, request: PlacementRequest) -> HeldTokens:
        """Return what instances hold of a request's prompt."""
        tokens: dict[InstanceId, int] = {}
        looked_up: list[tuple[str, PrefixTree, bytes]] = []
        is_complete = not self._reporting
        for space, key in request.keys.items():
            if (tree := self.trees.get(space)) is None:
                continue
            size, seen = key.block_tokens, 0
            data = pack_hashes(key.blocks)
            looked_up.append((space, tree, data))
            path, end = tree.runs.path(data)
            for run in reversed(path):
                if new := run.holders & ~seen:
                    seen |= new
                    num_tokens = end * size
                    if num_tokens > request.num_tokens:
                        num_tokens = request.num_tokens
                    for instance in tree.holders.ids(new):
                        tokens[instance] = num_tokens
                    if len(tokens) >= _MAX_HOLDERS:
                        is_complete = False
                        break
                end = run.start
            if self._reporting:
                for instance in self.reported.holders(key.blocks, _MAX_HOLDERS):
                    if self.members[instance].space == space:
                        found = self._num_reported(instance, key.blocks) * size
                        tokens[instance] = min(max(int(found), tokens.get(instance, 0)), request.num_tokens)
        for instance, hinted in request.hints.items():
            tokens[instance] = min(max(hinted, tokens.get(instance, 0)), request.num_tokens)
        if is_complete:
            return HeldTokens(tokens)
        levels = {space: tree.runs.levels(data) for space, tree, data in looked_up}
        return HeldTokens(tokens, lambda view: self._num_held(request, levels, view))

    def held_by(self, instance: InstanceId, request: PlacementRequest) -> int:
        """Return how many tokens an instance held of a request that runs or waits there, when it came."""
        member = self.members.get(instance)
        sent = None if member is None else member.sent.get(id(request))
        if sent is None:
            return 0
        num_held = sent.num_held
        if instance in self._reporting:
            num_held = max(num_held, int(self._num_reported(instance, sent.key.blocks)))
        return num_held * sent.key.block_tokens

    def observe(self, event: PlacementEvent) -> None:
        """Update the index after an event: an instance joined or left, reported its cache, or a request was
        sent there or has ended.
        """
        if isinstance(event, Dispatched):
            if event.at_s > self.now_s:
                self.now_s = event.at_s
            self._send(event.instance, event.request)
            return
        if isinstance(event, Ended):
            self._end(event)
            return
        match event:
            case Bound(instance, request):
                self._send(instance, request)
            case Unbound(instance, request):
                self._unbound = self._take(instance, request)
            case KVReport(instance=instance, events=events) if member := self.members.get(instance):
                self.reported.apply(instance, events)
                if instance not in self._reporting:
                    self._begin_reports(member)
                elif member.followed is not None and self.reported.is_empty(instance):
                    member.followed.clear(instance)
            case Joined(instance, space, cache_tokens, loading):
                self._join(instance, space, cache_tokens, loading)
            case Emptied(instance):
                self.forget(instance)
            case Left(instance):
                self._leave(instance)

    def forget(self, instance: InstanceId) -> None:
        """Forget what an instance holds, for example because it has restarted. Requests that run there teach
        nothing about its cache when they end.
        """
        self.reported.forget(instance)
        if (member := self.members.get(instance)) is None:
            return
        member.sent.clear()
        member.num_running = 0
        for tree in (member.tree, member.followed):
            if tree is not None:
                tree.clear(instance)

    def check_invariants(self) -> None:
        """Check that the parts of the index agree. For tests."""
        self.reported.check_invariants()
        for tree in (*self.trees.values(), *self._followed.values()):
            tree.check_invariants()
        for member in self.members.values():
            assert member.tree is self.trees.get(member.space)
            assert (member.followed is None) == (member.id not in self._reporting or member.tree is None)
            assert member.num_running == sum(one.num_blocks for one in member.sent.values())

    def _join(
        self, instance: InstanceId, space: str, cache_tokens: int | None, loading: LoadingShares
    ) -> None:
        tree = None
        if space:
            tree = self.trees.get(space)
            if tree is None:
                tree = self.trees[space] = PrefixTree(*self._settings)
            self.caches[instance] = tree.holders.join(instance)
        most = math.inf if cache_tokens is None else cache_tokens
        self.members[instance] = IndexMember(instance, space, tree, most, loading)

    def _leave(self, instance: InstanceId) -> None:
        member = self.members.pop(instance, None)
        if member is not None:
            self.caches.pop(instance, None)
            for trees in (self.trees, self._followed):
                if (tree := trees.get(member.space)) is not None:
                    tree.leave(instance)
                    if not tree.holders:
                        del trees[member.space]
        self.reported.forget(instance)
        self._reporting.discard(instance)

    def _begin_reports(self, member: IndexMember) -> None:
        """Believe the reports of an instance from now on. They do not tell which blocks it will evict next:
        that is followed in a tree of its own.
        """
        self._reporting.add(member.id)
        member.reports = True
        if member.tree is None:
            return
        member.keep_running()
        tree = self._followed.get(member.space)
        if tree is None:
            tree = self._followed[member.space] = PrefixTree(*self._settings)
        member.followed = tree
        self.caches[member.id] = tree.holders.join(member.id)

    def _send(self, instance: InstanceId, request: PlacementRequest) -> None:
        member = self.members.get(instance)
        if member is None or (tree := member.tree) is None:
            return
        key = request.keys.get(member.space)
        if key is None or not (data := pack_hashes(key.blocks)):
            return
        num_blocks = len(data) // HASH_BYTES
        if num_blocks * key.block_tokens > member.cache_tokens:
            return  # it is going to be refused: nothing is evicted for it
        member.num_running += num_blocks
        followed = member.followed
        if self.caches[instance].capacity > (most := member.cache_tokens / key.block_tokens):
            (tree if followed is None else followed).limit(instance, most)
        if followed is not None:
            if most < math.inf:
                followed.use(instance, data, self.now_s)
            member.keep_running()
        before, self._unbound = self._unbound, None
        num_held, used_s = tree.use(instance, data, self.now_s)
        if before is not None and before.request is request:
            num_held, used_s = before.num_held, before.used_s
        member.sent[id(request)] = SentRequest(request, key, num_blocks, num_held, used_s, self.now_s)

    def _end(self, event: Ended) -> None:
        instance, held_tokens = event.instance, event.held_tokens
        sent = self._take(instance, event.request)
        if sent is None or instance in self._reporting:
            return
        member = self.members[instance]
        tree, key = member.tree, sent.key
        assert tree is not None, "requests are noted only where their space has a tree"
        if event.was_refused:
            tree.take_back(instance, pack_hashes(key.blocks), sent.num_held, sent.at_s)
        if event.was_refused or held_tokens is None:
            return
        cache, most = self.caches[instance], member.cache_tokens / key.block_tokens
        if held_tokens < (sent.num_held - 1) * key.block_tokens and member.is_settled(sent):
            tree.forget_unused(cache, sent.used_s)
            tree.limit(instance, max(cache.num_blocks, sent.num_blocks))
        elif cache.capacity < most:
            tree.limit(instance, min(most, cache.capacity * _GROWTH))

    def _take(self, instance: InstanceId, request: PlacementRequest) -> SentRequest | None:
        member = self.members.get(instance)
        return None if member is None else member.take(request)

    def _num_held(
        self, request: PlacementRequest, levels: Mapping[str, list[tuple[int, int]]], view: InstanceView
    ) -> int:
        tree, key = self.trees.get(view.space), request.keys.get(view.space)
        if tree is None or key is None or (place := tree.holders.place(view.id)) is None:
            return 0
        num_blocks: float = max(
            (n for n, holders in levels.get(view.space, ()) if holders >> place & 1), default=0
        )
        if view.id in self._reporting:
            num_blocks = max(num_blocks, self._num_reported(view.id, key.blocks))
        return min(int(num_blocks * key.block_tokens), request.num_tokens)

    def _num_reported(self, instance: InstanceId, blocks: Sequence[BlockHash]) -> float:
        """Return how many leading blocks of a prompt an instance reports, less the time to load them."""
        return self.reported.num_held(instance, blocks, self.members[instance].loading)
