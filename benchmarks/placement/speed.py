"""What a placement decision costs: hashing a prompt, choosing an instance, and noting the choice."""

from __future__ import annotations

import random
import time
import tracemalloc
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable
from stretto.cluster.kv_events import BlockRemoved, BlockStored
from stretto.cluster.messages import KVReport
from stretto.cluster.placement import Dispatched, Ended, Joined, Placement
from stretto.cluster.placement_request import PlacementRequest, PromptKey
from stretto.cluster.prefix_hashes import PrefixHasher, salted_root
from stretto.cluster.prefix_index import PrefixIndex
from stretto.cluster.prefix_tree import PrefixTree
from stretto.model.profile import Profile

T = TypeVar("T")

BLOCK_TOKENS = 64
_INSTANCES = 4
_IN_FLIGHT = 64
_CACHE_TOKENS = 1_600_000
_GPU = Profile(base_s=0.004, per_unit_s=0.00012, per_output_s=0.025, per_neighbour_s=0.0004)
_HASHER = PrefixHasher(BLOCK_TOKENS)
_ROOT = salted_root("bench")
_OUTPUT = 43


def buffers(num_tools: int, num_tokens: int, seed: int, own_share: float = 0.15) -> Iterator[bytes]:
    """Yield prompts of so many tokens for ever, as buffers of 32-bit ids (a text of four times as many bytes
    looks the same): the text of one of many tools, by Zipf's law, and an end of their own.
    """
    draw = random.Random(seed)
    own = int(own_share * num_tokens)
    tools = [draw.randbytes(4 * (num_tokens - own)) for _ in range(num_tools)]
    weights = [1 / rank for rank in range(1, num_tools + 1)]
    while True:
        for tool in draw.choices(tools, weights, k=256):
            yield tool + draw.randbytes(4 * own)


class Deciding:
    """A policy that places a stream of requests, with some in flight."""

    def __init__(self, policy: Placement) -> None:
        self.policy = policy
        self._table = InstanceTable(policy.load, with_full=policy.binds != "late")
        self._flying: deque[tuple[int, PlacementRequest]] = deque()
        self._now_s = 0.0
        for instance in range(_INSTANCES):
            policy.observe(Joined(instance, "bytes", _CACHE_TOKENS))
            self._table.join(InstanceView(instance, _GPU, _CACHE_TOKENS, num_slots=256, space="bytes"))

    def decide(self, data: bytes) -> None:
        """Hash a prompt, choose its instance and note this, and the end of the oldest request."""
        self._now_s += 0.02
        hashes = _HASHER.hash_buffer(data, _ROOT)
        num_tokens = len(data) // 4
        keys = {"bytes": PromptKey(hashes, BLOCK_TOKENS)}
        request = PlacementRequest(num_tokens=num_tokens, expected_output=_OUTPUT, keys=keys)
        choice = self.policy.choose(request, self._table, self._now_s)
        assert choice is not None
        self.policy.observe(Dispatched(choice.instance, request, self._now_s))
        self._flying.append((choice.instance, request))
        self._change(choice.instance, 1, request)
        if len(self._flying) > _IN_FLIGHT:
            instance, ended = self._flying.popleft()
            self.policy.observe(Ended(instance, ended))
            self._change(instance, -1, ended)

    def _change(self, instance: int, sign: int, request: PlacementRequest) -> None:
        view = self._table.get(instance)
        assert view is not None
        view.num_running += sign
        view.num_decoding += sign
        view.running_tokens += sign * request.all_tokens
        self._table.changed(instance)


def plain_work() -> int:
    """Do a fixed piece of plain Python work, beside which decisions of different machines can be compared."""
    counts: dict[tuple[int, int], int] = {}
    for number in range(200):
        key = number % 7, number % 11
        counts[key] = counts.get(key, 0) + len(str(number))
    return sum(sorted(counts.values()))


def pieces_per_s(num: int, runs: int) -> list[float]:
    """Return the pieces of `plain_work` per second of CPU in several runs."""
    return [num / _cpu_s(lambda _: plain_work(), range(num)) for _ in range(runs)]


def decisions_per_s(deciding: Deciding, stream: Iterator[bytes], num: int, runs: int) -> list[float]:
    """Return the decisions per second of CPU in several runs of `num` decisions."""
    found = []
    for _ in range(runs):
        prompts = [next(stream) for _ in range(num)]
        found.append(num / _cpu_s(deciding.decide, prompts))
    return found


def decision_times_us(deciding: Deciding, stream: Iterator[bytes], num: int) -> list[float]:
    """Return the CPU microseconds of each of `num` decisions."""
    times = []
    for _ in range(num):
        prompt = next(stream)
        begun = time.thread_time_ns()
        deciding.decide(prompt)
        times.append((time.thread_time_ns() - begun) / 1000)
    return times


def bytes_per_token(num_requests: int, num_tokens: int, num_tools: int, seed: int) -> float:
    """Return the memory of the tree for each token that instances hold, as Python's allocator counts it."""
    stream = buffers(num_tools, num_tokens, seed)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tree = PrefixTree()
        for instance in range(_INSTANCES):
            tree.holders.join(instance)
        for number in range(num_requests):
            hashes = _HASHER.hash_buffer(next(stream), _ROOT).data
            tree.use(number % _INSTANCES, hashes, float(number))
        tools = 4 * (num_tokens - int(0.15 * num_tokens)) * num_tools
        used = tracemalloc.get_traced_memory()[0] - before - tools
    finally:
        tracemalloc.stop()
    return used / (tree.num_blocks * BLOCK_TOKENS)


def event_blocks_per_s(num: int, runs: int, seed: int) -> list[float]:
    """Return the blocks of KV events, half of them stored and half removed, that an index takes per second of
    CPU.
    """
    draw = random.Random(seed)
    found = []
    for _ in range(runs):
        index = PrefixIndex()
        index.observe(Joined(0, "ids"))
        hashes = [draw.randbytes(16) for _ in range(num // 2)]
        reports = []
        for start in range(0, len(hashes), 32):
            part = hashes[start : start + 32]
            reports.append(KVReport("llm", 0, [BlockStored(one, b"", ()) for one in part]))
            reports.append(KVReport("llm", 0, [BlockRemoved(one) for one in part]))
        found.append(num / _cpu_s(index.observe, reports))
    return found


def hashes_per_s(num_tokens: int, num: int, runs: int) -> list[float]:
    """Return the prompts, given as ids in a buffer, that are hashed per second of CPU."""
    ids = array("I", range(num_tokens))
    return [num / _cpu_s(lambda one: _HASHER.hash_ids(one, _ROOT), [ids] * num) for _ in range(runs)]


def _cpu_s(do: Callable[[T], object], items: Sequence[T]) -> float:
    begun_s = time.process_time()
    for item in items:
        do(item)
    return time.process_time() - begun_s
