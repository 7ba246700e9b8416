"""What the prefix caches of all instances hold of a prompt, in one look-up, for placement policies (the rules
that choose an instance).

An instance that reports its cache by KV events is believed. Requests that run there count too, because their
blocks are reported only when they are computed. Of an instance that reports nothing, the index believes that
it holds the prompts that were sent there, and evicts the least recently used beyond its capacity. Where an
answer shows that fewer tokens were found than expected, all that is as old as the missing prefix is
forgotten, and the capacity is taken to be what is left.

An index has no clock. Times come with the events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from stretto.cluster.held_blocks import HeldBlocks
from stretto.cluster.instances import InstanceView
from stretto.cluster.messages import InstanceId, KVReport
from stretto.cluster.placement import (
    Bound,
    Dispatched,
    Ended,
    Joined,
    Left,
    PlacementEvent,
    PlacementRequest,
    PromptKey,
    Unbound,
)
from stretto.cluster.prefix_hashes import pack
from stretto.cluster.prefix_tree import PrefixTree
from stretto.record import record

WINDOW_S = 3600.0
"""Seconds after which what was not used is forgotten, where instances report nothing."""
RATE_S = 180.0
"""Seconds after which a use of a prefix counts as 1/e of one."""
MAX_BYTES = 256e6
"""Memory of the prefixes of one space (tokenizer and block length), in bytes."""
_MAX_HOLDERS = 16
_GROWTH = 1.02


class Held:
    """How many tokens of one prompt the instances hold.

    Attributes:
        tokens: the number for the instances that hold most, about 16 of them for each space.
    """

    __slots__ = ("_of_others", "tokens")

    def __init__(
        self, tokens: dict[InstanceId, int], of_others: Callable[[InstanceView], int] | None = None
    ) -> None:
        self.tokens = tokens
        self._of_others = of_others

    def of(self, view: InstanceView) -> int:
        """Return how many tokens of the prompt an instance holds."""
        found = self.tokens.get(view.id)
        if found is None:
            return 0 if self._of_others is None else self._of_others(view)
        return found


@record
class _Sent:
    """A request that runs or waits at an instance: the blocks that it was expected to find there, when they
    were last used before, and when it came.
    """

    request: PlacementRequest
    num_held: int
    used_s: float
    at_s: float


class PrefixIndex:
    """An index of the prefixes that all instances hold.

    Args:
        window_s: seconds after which what was not used is forgotten, where instances report nothing.
        max_bytes: memory that the prefixes of one space (tokenizer and block length) may take.
        rate_s: seconds after which a use of a prefix counts as 1/e of one.
    """

    def __init__(
        self, window_s: float = WINDOW_S, max_bytes: float = MAX_BYTES, rate_s: float = RATE_S
    ) -> None:
        self.reported = HeldBlocks()
        self._settings = window_s, max_bytes, rate_s
        self._trees: dict[str, PrefixTree] = {}
        self._spaces: dict[InstanceId, str] = {}
        self._cache_tokens: dict[InstanceId, int] = {}
        self._reporting: set[InstanceId] = set()
        self._sent: dict[InstanceId, dict[int, _Sent]] = {}
        self._num_running: dict[InstanceId, int] = {}
        self._unbound: _Sent | None = None
        self._now_s = 0.0

    def tree(self, space: str) -> PrefixTree | None:
        """Return the tree of the prefixes that were sent to instances of a space; None without one."""
        return self._trees.get(space)

    def space_of(self, instance: InstanceId) -> str | None:
        """Return the name of an instance's space (tokenizer and block length); None if it has not joined."""
        return self._spaces.get(instance)

    def has_reports(self, instance: InstanceId) -> bool:
        """Return whether an instance reports what its cache holds."""
        return instance in self._reporting

    def held(self, request: PlacementRequest) -> Held:
        """Return what instances hold of a request's prompt."""
        tokens: dict[InstanceId, int] = {}
        masks: dict[str, list[tuple[int, int]]] = {}
        is_complete = not self._reporting
        for space, key in request.keys.items():
            if (tree := self._trees.get(space)) is None:
                continue
            size, seen = key.block_tokens, 0
            levels = masks[space] = tree.levels(pack(key.blocks))
            for num_blocks, holders in reversed(levels):
                if new := holders & ~seen:
                    for instance in tree.instances_of(new):
                        tokens[instance] = min(num_blocks * size, request.num_tokens)
                    seen |= new
                    if len(tokens) >= _MAX_HOLDERS:
                        is_complete = False
                        break
            if self._reporting:
                for instance in self.reported.holders(key.blocks, _MAX_HOLDERS):
                    found = self.reported.num_held(instance, key.blocks) * size
                    if self._spaces.get(instance) == space:
                        tokens[instance] = min(max(found, tokens.get(instance, 0)), request.num_tokens)
        for instance, hinted in request.hints.items():
            tokens[instance] = min(max(hinted, tokens.get(instance, 0)), request.num_tokens)
        if is_complete:
            return Held(tokens)
        return Held(tokens, lambda view: self._num_held(request, masks, view))

    def held_by(self, instance: InstanceId, request: PlacementRequest) -> int:
        """Return how many tokens an instance held of a request that runs or waits there, when it came."""
        sent, key = self._sent.get(instance, {}).get(id(request)), self._key(instance, request)
        return 0 if sent is None or key is None else sent.num_held * key.block_tokens

    def observe(self, event: PlacementEvent) -> None:
        """Update the index after an event: an instance joined or left, reported its cache, or a request was
        sent there or has ended.
        """
        match event:
            case Dispatched(instance, request, at_s):
                self._now_s = max(self._now_s, at_s)
                self._send(instance, request)
            case Bound(instance, request):
                self._send(instance, request)
            case Unbound(instance, request):
                self._unbound = self._take(instance, request)
            case Ended(instance, request, held_tokens):
                self._end(instance, request, held_tokens)
            case KVReport(instance=instance, events=events) if instance in self._spaces:
                self.reported.apply(instance, events)
                if instance not in self._reporting:
                    self._reporting.add(instance)
                    self._keep_running(instance)
            case Joined(instance, space, cache_tokens):
                self._join(instance, space, cache_tokens)
            case Left(instance):
                self._leave(instance)

    def forget(self, instance: InstanceId) -> None:
        """Forget what an instance holds, for example because it has restarted."""
        self.reported.forget(instance)
        if (tree := self._tree_of(instance)) is not None:
            tree.clear(instance)

    def check_invariants(self) -> None:
        """Check that the parts of the index agree. For tests."""
        self.reported.check_invariants()
        for tree in self._trees.values():
            tree.check_invariants()
        assert set(self._sent) == set(self._spaces) == set(self._num_running)
        for instance, sent in self._sent.items():
            keys = (self._key(instance, one.request) for one in sent.values())
            assert self._num_running[instance] == sum(len(key.blocks) for key in keys if key is not None)

    def _join(self, instance: InstanceId, space: str, cache_tokens: int | None) -> None:
        self._spaces[instance] = space
        self._sent[instance] = {}
        self._num_running[instance] = 0
        if cache_tokens is not None:
            self._cache_tokens[instance] = cache_tokens
        if space:
            tree = self._trees.get(space)
            if tree is None:
                tree = self._trees[space] = PrefixTree(*self._settings)
            tree.join(instance)

    def _leave(self, instance: InstanceId) -> None:
        if (tree := self._tree_of(instance)) is not None:
            tree.leave(instance)
            if not tree.instances:
                del self._trees[self._spaces[instance]]
        self.reported.forget(instance)
        self._reporting.discard(instance)
        self._cache_tokens.pop(instance, None)
        self._spaces.pop(instance, None)
        self._sent.pop(instance, None)
        self._num_running.pop(instance, None)

    def _send(self, instance: InstanceId, request: PlacementRequest) -> None:
        tree, key = self._tree_of(instance), self._key(instance, request)
        if tree is None or key is None or not key.blocks:
            return
        data, sent = pack(key.blocks), self._sent[instance]
        self._num_running[instance] += len(key.blocks)
        most = self._most_tokens(instance) / key.block_tokens
        if instance in self._reporting:
            self._keep_running(instance)
        elif tree.capacity(instance) > most:
            tree.limit(instance, most)
        before, self._unbound = self._unbound, None
        num_held, used_s = tree.use(instance, data, self._now_s)
        if before is not None and before.request is request:
            num_held, used_s = before.num_held, before.used_s
        sent[id(request)] = _Sent(request, num_held, used_s, self._now_s)

    def _end(self, instance: InstanceId, request: PlacementRequest, held_tokens: int | None) -> None:
        sent = self._take(instance, request)
        tree, key = self._tree_of(instance), self._key(instance, request)
        if sent is None or tree is None or key is None or held_tokens is None or instance in self._reporting:
            return
        oldest_s = min((one.at_s for one in self._sent[instance].values()), default=math.inf)
        is_settled = sent.used_s < min(oldest_s, sent.at_s)
        most = self._most_tokens(instance) / key.block_tokens
        if held_tokens < (sent.num_held - 1) * key.block_tokens and is_settled:
            tree.forget_unused_since(instance, sent.used_s)
            tree.limit(instance, max(tree.num_held(instance), len(key.blocks)))
        elif tree.capacity(instance) < most:
            tree.limit(instance, min(most, tree.capacity(instance) * _GROWTH))

    def _take(self, instance: InstanceId, request: PlacementRequest) -> _Sent | None:
        """Take a request out of those that run or wait at an instance."""
        sent, key = self._sent.get(instance, {}).pop(id(request), None), self._key(instance, request)
        if sent is not None and key is not None:
            self._num_running[instance] -= len(key.blocks)
            if instance in self._reporting:
                self._keep_running(instance)
        return sent

    def _keep_running(self, instance: InstanceId) -> None:
        """Believe of the requests sent to an instance only those that run: its reports tell the rest."""
        if (tree := self._tree_of(instance)) is not None:
            tree.limit(instance, self._num_running[instance])

    def _num_held(
        self, request: PlacementRequest, masks: Mapping[str, list[tuple[int, int]]], view: InstanceView
    ) -> int:
        tree, key = self._trees.get(view.space), request.keys.get(view.space)
        if tree is None or key is None or (place := tree.place(view.id)) is None:
            return 0
        levels = masks.get(view.space, ())
        num_blocks = max((n for n, holders in levels if holders >> place & 1), default=0)
        if view.id in self._reporting:
            num_blocks = max(num_blocks, self.reported.num_held(view.id, key.blocks))
        return min(num_blocks * key.block_tokens, request.num_tokens)

    def _most_tokens(self, instance: InstanceId) -> float:
        return self._cache_tokens.get(instance, math.inf)

    def _tree_of(self, instance: InstanceId) -> PrefixTree | None:
        return self._trees.get(self._spaces.get(instance, ""))

    def _key(self, instance: InstanceId, request: PlacementRequest) -> PromptKey | None:
        return request.keys.get(self._spaces.get(instance, ""))
