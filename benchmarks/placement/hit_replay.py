"""The hits of a placement policy: requests are placed one after the other on instances with exact LRU caches.

An instance prefills one request at a time and decodes any number beside it, at constant speeds, so that a
policy sees loads and waits. There are no other latencies, no limits of memory but that of the caches, and no
queue before the instances: each request goes at once where the policy binds it. A prompt is in an instance's
cache from when it is sent there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable
from stretto.cluster.kv_events import BlockRemoved, BlockStored, KVEvent
from stretto.cluster.messages import InstanceId, KVReport
from stretto.cluster.placement import Dispatched, Ended, Joined, Placement
from stretto.cluster.placement_request import PlacementRequest, PromptKey
from stretto.model.profile import Profile

_SPACE = "replay"
_NO_LIMIT = 2**40
_MAX_RUNNING = 2**20


@dataclass(frozen=True, slots=True)
class Keyed:
    """A request as the replay places it.

    Attributes:
        blocks: hashes of the blocks of its prompt, as `PromptKey` has them; the last may be shorter.
    """

    arrival_s: float
    num_tokens: int
    output_tokens: int
    blocks: Sequence[BlockHash]
    block_tokens: int


@dataclass(frozen=True, slots=True)
class Hits:
    """What a policy made of a sequence of requests.

    Attributes:
        hit_share: share of all prompt tokens that were in the cache of the instance that got them.
        requests_imbalance: the largest number of requests of an instance over the mean.
        work_imbalance: the largest busy time of an instance over the mean: the seconds of its prefills, and
            its share of the decode steps.
        busy_share: mean share of the time for which an instance has a prefill to do.
        first_s: seconds until the first token, of each request.
    """

    hit_share: float
    requests_imbalance: float
    work_imbalance: float
    busy_share: float
    first_s: Sequence[float] = ()


class LRUCache:
    """The blocks of one prefix cache, of which the least recently used are evicted.

    Of one prompt, the last block is evicted first.

    Args:
        capacity_tokens: number of tokens that it holds at most; None for no limit.
    """

    def __init__(self, capacity_tokens: int | None, block_tokens: int) -> None:
        self._capacity = None if capacity_tokens is None else capacity_tokens // block_tokens
        self._block_tokens = block_tokens
        self._used: OrderedDict[BlockHash, None] = OrderedDict()

    def use(self, request: Keyed) -> tuple[int, list[KVEvent]]:
        """Bring a prompt into the cache; return how many of its tokens were there, and what has changed."""
        used, events = self._used, list[KVEvent]()
        num_held = next((n for n, one in enumerate(request.blocks) if one not in used), len(request.blocks))
        events += [BlockStored(one, b"", ()) for one in request.blocks[num_held:] if one not in used]
        for block in reversed(request.blocks):
            used[block] = None
            used.move_to_end(block)
        while self._capacity is not None and len(used) > self._capacity:
            events.append(BlockRemoved(used.popitem(last=False)[0]))
        return min(num_held * self._block_tokens, request.num_tokens), events


def pooled_share(requests: Sequence[Keyed], capacity_tokens: int | None) -> float:
    """Return the share of all prompt tokens that one cache for all requests has."""
    cache = LRUCache(capacity_tokens, requests[0].block_tokens)
    return sum(cache.use(one)[0] for one in requests) / sum(one.num_tokens for one in requests)


def replay_hits(
    requests: Sequence[Keyed],
    policy: Placement,
    profile: Profile,
    num_instances: int,
    capacity_tokens: int | None,
    *,
    has_events: bool = False,
) -> Hits:
    """Return the hits and the balance of a policy, for requests in the order of their arrivals.

    Args:
        capacity_tokens: size of each instance's cache; None for no limit.
        has_events: whether instances report what their caches hold. The answers tell it in any case.
    """
    fleet = _Fleet(policy, profile, num_instances, capacity_tokens, requests[0].block_tokens, has_events)
    for request in requests:
        fleet.place(request)
    work_s, num = fleet.work_s, fleet.num_requests
    return Hits(
        fleet.hit_tokens / sum(one.num_tokens for one in requests),
        max(num) * num_instances / sum(num),
        max(work_s) * num_instances / sum(work_s),
        sum(fleet.prefill_s) / num_instances / requests[-1].arrival_s,
        fleet.first_s,
    )


class _Fleet:
    """The instances of a replay."""

    def __init__(
        self,
        policy: Placement,
        profile: Profile,
        num_instances: int,
        capacity_tokens: int | None,
        block_tokens: int,
        has_events: bool,
    ) -> None:
        self.hit_tokens = 0
        self.num_requests = [0] * num_instances
        self.work_s = [0.0] * num_instances
        self.prefill_s = [0.0] * num_instances
        self.first_s: list[float] = []
        self._policy = policy
        self._profile = profile
        self._has_events = has_events
        self._caches = [LRUCache(capacity_tokens, block_tokens) for _ in range(num_instances)]
        self._free_s = [0.0] * num_instances
        self._table = InstanceTable(policy.load, with_full=policy.binds != "late")
        self._ends: list[tuple[float, int, _Running]] = []
        self._counter = count()
        self._num_done = 0
        self._done_tokens = 0
        for instance in range(num_instances):
            policy.observe(Joined(instance, _SPACE, capacity_tokens))
            view = InstanceView(instance, profile, _NO_LIMIT, _MAX_RUNNING, _SPACE)
            self._table.join(view)

    def place(self, request: Keyed) -> None:
        """Place the next request; what has ended before it comes is noted first."""
        now_s = request.arrival_s
        while self._ends and self._ends[0][0] <= now_s:
            self._end(*heappop(self._ends))
        typical = round(self._done_tokens / self._num_done) if self._num_done else request.output_tokens
        placed = PlacementRequest(
            request.num_tokens, typical, {_SPACE: PromptKey(request.blocks, request.block_tokens)}
        )
        choice = self._policy.choose(placed, self._table, now_s)
        assert choice is not None, "every instance has room"
        instance = choice.instance
        self._policy.observe(Dispatched(instance, placed, now_s))
        held_tokens, events = self._caches[instance].use(request)
        self._report(instance, events)
        self._start(instance, request, placed, held_tokens)

    def _report(self, instance: InstanceId, events: list[KVEvent]) -> None:
        if self._has_events and events:
            self._policy.observe(KVReport("llm", instance, events))

    def _start(
        self, instance: InstanceId, request: Keyed, placed: PlacementRequest, held_tokens: int
    ) -> None:
        prefill_s = self._profile.batch_s(request.num_tokens - held_tokens)
        view = self._view(instance)
        begun_s = max(request.arrival_s, self._free_s[instance])
        self._free_s[instance] = begun_s + prefill_s
        self.first_s.append(begun_s + prefill_s - request.arrival_s)
        decode_s = self._profile.decode_s(view.num_running + 1) * request.output_tokens
        running = _Running(instance, placed, held_tokens, request.output_tokens, prefill_s, decode_s)
        heappush(self._ends, (begun_s + prefill_s, next(self._counter), running))
        if view.num_running == view.num_decoding:
            view.prefill_from_s = begun_s
        view.num_running += 1
        view.running_tokens += placed.all_tokens
        view.prefill_s += prefill_s
        view.expected_output = placed.expected_output
        self._table.changed(instance)
        self.hit_tokens += held_tokens
        self.num_requests[instance] += 1
        self.prefill_s[instance] += prefill_s
        self.work_s[instance] += prefill_s + decode_s / (view.num_running + 1)

    def _end(self, at_s: float, _: int, running: _Running) -> None:
        """Note the end of a request's prefill, or of the request."""
        view = self._view(running.instance)
        if not running.is_decoding:
            running.is_decoding = True
            view.num_decoding += 1
            view.prefill_from_s = at_s
            view.prefill_s = max(0.0, view.prefill_s - running.prefill_s)
            heappush(self._ends, (at_s + running.decode_s, next(self._counter), running))
        else:
            view.num_running -= 1
            view.num_decoding -= 1
            view.running_tokens -= running.placed.all_tokens
            self._num_done += 1
            self._done_tokens += running.output_tokens
            self._policy.observe(Ended(running.instance, running.placed, running.held_tokens))
        self._table.changed(running.instance)

    def _view(self, instance: InstanceId) -> InstanceView:
        view = self._table.get(instance)
        assert view is not None, "no instance leaves"
        return view


@dataclass(slots=True)
class _Running:
    """A request that an instance prefills or decodes."""

    instance: InstanceId
    placed: PlacementRequest
    held_tokens: int
    output_tokens: int
    prefill_s: float
    decode_s: float
    is_decoding: bool = False
