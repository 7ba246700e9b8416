"""Decides, step by step, which tokens of which sequences an LLM instance computes.

A deterministic machine without IO. Its driver calls, again and again:

    batch = scheduler.schedule(now_s)          what to compute; blocks for it are held
    scheduler.complete(batch, sampled)         what came out of it
    scheduler.finish(sequence)                 for those that are over; their blocks stay in the cache

Rules:

- Batching is continuous: a sequence joins and leaves between any two steps.
- Policy `chunked`: every decoding sequence gets its token in every step; the rest of the token budget goes
  to prefills, in chunks, those begun before new ones. So a prefill never delays a decode by more than a
  budget's worth of work. Policy `prefill_first`: whole prompts as long as there are any, then decodes.
- A sequence is admitted when its whole prompt fits next to what the others still need for theirs. One whose
  next block another one is computing right now waits for that, as does one that continues a prefill: then
  it finds the tokens in the cache.
- Where blocks run short all the same, because sequences grow, the last comer of the lowest priority is
  preempted: it gives its blocks up, waits again, and computes them anew or finds them in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stretto.errors import CapacityError, ConfigError
from stretto.llm.admission import WaitingQueue
from stretto.llm.block_hashes import BlockHash
from stretto.llm.blocks import BlockPool
from stretto.llm.prefix_cache import PrefixCache
from stretto.llm.sequence import Sequence, Status
from stretto.llm.step_batch import Slice, StepBatch


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How an instance schedules.

    Attributes:
        num_blocks: of KV, each of `block_tokens` tokens.
        max_running: sequences at once.
        max_batch_tokens: the token budget of a step.
        policy: one of `POLICIES`.
        num_groups: priority groups by cached share of the prompt.
        ageing_s: waiting so long is worth one unit of priority.
        lookahead: waiting sequences considered for a batch.
    """

    num_blocks: int
    block_tokens: int = 32
    max_running: int = 16
    max_batch_tokens: int = 512
    policy: str = "chunked"
    num_groups: int = 10
    ageing_s: float = 5.0
    lookahead: int = 64
    with_events: bool = False


class LocalScheduler:
    """The scheduler of one instance, with its block pool and its prefix cache."""

    def __init__(self, config: SchedulerConfig) -> None:
        """Raises ConfigError for a configuration that cannot work."""
        if config.policy not in POLICIES:
            raise ConfigError(f"unknown policy {config.policy!r}: {' or '.join(POLICIES)}")
        if not 1 <= config.max_running < config.max_batch_tokens:
            raise ConfigError(
                f"max_batch_tokens ({config.max_batch_tokens}) has to exceed max_running "
                f"({config.max_running}), or decodes would leave prefills no room; and that is at least 1"
            )
        for name in ("num_blocks", "block_tokens", "max_running", "num_groups", "lookahead"):
            if type(value := getattr(config, name)) is not int or value < 1:
                raise ConfigError(f"{name} is {value!r}: a number of at least 1")
        if not config.ageing_s > 0:
            raise ConfigError(f"ageing_s is {config.ageing_s!r}: has to be positive")
        self.config = config
        self.pool = BlockPool(config.num_blocks)
        self.cache = PrefixCache(self.pool, config.block_tokens, with_events=config.with_events)
        self.running: list[Sequence] = []
        self.waiting = WaitingQueue(config.ageing_s, config.lookahead)
        self.num_preemptions = 0
        self._policy = POLICIES[config.policy]
        self._num_added = 0
        self._copies: list[tuple[int, int]] = []
        self._shares: dict[int, tuple[int, float]] = {}

    def add(self, sequence: Sequence, now_s: float) -> None:
        """Queue a sequence.

        Raises:
            CapacityError: it would not fit if it were alone.
        """
        num_tokens = len(sequence.tokens) + sequence.max_new_tokens
        num_blocks = self._num_blocks(num_tokens)
        if num_blocks > self.config.num_blocks:
            raise CapacityError(
                f"{num_tokens} tokens need {num_blocks} KV blocks; the engine has {self.config.num_blocks}"
            )
        sequence.arrived_s = now_s
        sequence.order = self._num_added
        self._num_added += 1
        self.waiting.push(sequence)

    def has_work(self) -> bool:
        """Whether anything runs or waits."""
        return bool(self.running or self.waiting)

    def schedule(self, now_s: float, max_repeats: int = 1) -> StepBatch:
        """The next step; empty if there is nothing to compute.

        Args:
            max_repeats: steps to do at once as long as only decodes run and none of them ends.
        """
        self._copies = []
        num_preemptions = self.num_preemptions
        slices = self._policy(self, now_s)
        if self.num_preemptions > num_preemptions:  # perhaps of one that has its slice already
            slices = [piece for piece in slices if piece.sequence.status is Status.RUNNING]
            max_repeats = 1  # the room they left may let others in
        num_repeats = self._grow_for_repeats(slices, max_repeats) if max_repeats > 1 else 1
        return StepBatch(tuple(slices), tuple(self._copies), num_repeats)

    def complete(self, batch: StepBatch, sampled: Mapping[int, list[int]]) -> None:
        """A step has been computed.

        Args:
            sampled: by sequence id, the token of every slice that samples; of a repeated batch up to
                `num_repeats` of them, less if the sequence is over.
        """
        for piece in batch.slices:
            sequence = piece.sequence
            sequence.num_computed = piece.start + piece.num_tokens
            if piece.samples and (tokens := sampled.get(sequence.id)):
                sequence.tokens.extend(tokens)
                sequence.num_computed += len(tokens) - 1
            if sequence.num_computed // self.config.block_tokens > sequence.num_shared_blocks:
                self._share_full_blocks(sequence)

    def finish(self, sequence: Sequence) -> None:
        """A running sequence is over; what it computed stays in the cache, leased if it was a prefill."""
        size = self.config.block_tokens
        num_full = sequence.num_shared_blocks
        rest = sequence.tokens[num_full * size : sequence.num_computed]
        last = sequence.blocks[num_full - 1] if num_full else None
        if rest:
            tail = sequence.blocks[num_full]
            last = self.cache.store(sequence.salt, last, rest, tail, sequence.query)
        if sequence.max_new_tokens == 0 and last is not None:
            self.cache.lease(last, sequence.query)
        self.abort(sequence)

    def abort(self, sequence: Sequence) -> None:
        """A sequence is not wanted any more, wherever it is."""
        if sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        elif sequence.status is Status.RUNNING:
            self.running.remove(sequence)
            self._give_up_blocks(sequence)
        sequence.status = Status.FINISHED
        self._shares.pop(sequence.id, None)

    def decodes(self) -> list[Slice]:
        """A token of every decoding sequence, preempting some if blocks run short."""
        size = self.config.block_tokens
        slices = []
        for sequence in list(self.running):
            position = sequence.num_computed
            num_tokens = len(sequence.tokens)
            if position != num_tokens - 1 or num_tokens == sequence.num_prompt_tokens:
                continue  # not `is_decoding`, in the innermost loop; nor is one that was just preempted
            if position < len(sequence.blocks) * size or self._make_room(sequence, position + 1):
                slices.append(Slice(sequence, position, 1, True))
        return slices

    def prefills(self, now_s: float, budget_tokens: int, *, whole: bool) -> list[Slice]:
        """Chunks of prompts within a budget; with `whole` only whole prompts, the first one in any case."""
        slices: list[Slice] = []
        for sequence in [s for s in self.running if not s.is_decoding]:
            if budget_tokens > 0 and (piece := self._prefill(sequence, budget_tokens, whole, bool(slices))):
                slices.append(piece)
                budget_tokens -= piece.num_tokens
        if budget_tokens <= 0 or not self.waiting or len(self.running) >= self.config.max_running:
            return slices
        in_flight = self._hashes_in_flight()
        for sequence in self.waiting.candidates(now_s, self._cached_share, self.config.num_groups):
            if budget_tokens <= 0 or len(self.running) >= self.config.max_running:
                break
            hit = self.cache.look_up(*self._prompt(sequence))
            hashes = sequence.hashes(self.cache.hasher)
            next_block = hashes[len(hit.blocks) : len(hit.blocks) + 1]
            if not in_flight.isdisjoint(next_block) or self._is_being_prefilled(sequence):
                continue
            if not self._has_room(sequence, hit.blocks):
                break
            self._start(sequence, hit.blocks, hit.num_tokens, hit.tail)
            if piece := self._prefill(sequence, budget_tokens, whole, bool(slices)):
                slices.append(piece)
                budget_tokens -= piece.num_tokens
            in_flight.update(hashes[len(hit.blocks) :])
        return slices

    def _prefill(self, sequence: Sequence, budget_tokens: int, whole: bool, may_wait: bool) -> Slice | None:
        num_missing = sequence.num_missing
        if whole and num_missing > budget_tokens and may_wait:
            return None
        num_tokens = num_missing if whole else min(num_missing, budget_tokens)
        if not self._make_room(sequence, sequence.num_computed + num_tokens):
            return None
        samples = num_tokens == num_missing and sequence.max_new_tokens > 0
        return Slice(sequence, sequence.num_computed, num_tokens, samples)

    def _start(self, sequence: Sequence, blocks: tuple[int, ...], num_tokens: int, tail: int | None) -> None:
        """From the queue to the running ones, with what the cache has."""
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.status = Status.RUNNING
        self._shares.pop(sequence.id, None)
        self.cache.hold(blocks, sequence.query)
        sequence.blocks = list(blocks)
        sequence.num_shared_blocks = len(blocks)
        sequence.num_computed = num_tokens
        if sequence.num_cached is None:
            sequence.num_cached = num_tokens
        if tail is not None:
            self.cache.touch(tail)
            own = self.cache.acquire()
            self._copies.append((tail, own))
            sequence.blocks.append(own)

    def _prompt(self, sequence: Sequence) -> tuple[str, list[int], list[BlockHash], int]:
        """What to look up: all tokens, but one has to be computed if another is to be chosen."""
        limit = len(sequence.tokens) - (1 if sequence.max_new_tokens else 0)
        return sequence.salt, sequence.tokens, sequence.hashes(self.cache.hasher), limit

    def _cached_share(self, sequence: Sequence) -> float:
        """Of the prompt; looked up again when the cache has changed."""
        version, share = self._shares.get(sequence.id, (-1, 0.0))
        if version != self.cache.version:
            share = self.cache.look_up(*self._prompt(sequence)).num_tokens / max(1, len(sequence.tokens))
            self._shares[sequence.id] = (self.cache.version, share)
        return share

    def _hashes_in_flight(self) -> set[BlockHash]:
        """Of the full blocks that running prefills have yet to compute."""
        found: set[BlockHash] = set()
        for sequence in self.running:
            if not sequence.is_decoding:
                found.update(sequence.hashes(self.cache.hasher)[sequence.num_shared_blocks :])
        return found

    def _is_being_prefilled(self, sequence: Sequence) -> bool:
        """Whether a prefill that is nothing but the beginning of this one is on its way: its end, within a
        block, is cached when it is over."""
        return any(
            running.max_new_tokens == 0
            and running.salt == sequence.salt
            and len(running.tokens) <= len(sequence.tokens)
            and running.tokens == sequence.tokens[: len(running.tokens)]
            for running in self.running
        )

    def _has_room(self, sequence: Sequence, cached: tuple[int, ...]) -> bool:
        """Whether its prompt fits, in blocks and in what the strictest class on board puts up with."""
        if not self.running:
            return True
        size = self.config.block_tokens
        limits = [s.capacity_tokens for s in (*self.running, sequence) if s.capacity_tokens is not None]
        if limits:
            on_board = sum(len(s.tokens) + s.num_remaining for s in (*self.running, sequence))
            if on_board > min(limits):
                return False
        outstanding = sum([len(s.tokens) // size + 1 - len(s.blocks) for s in self.running])
        needed = self._num_blocks(len(sequence.tokens) + 1) - len(cached)
        num_available = self.cache.num_available - sum(map(self.cache.is_idle, cached))
        return needed + max(0, outstanding) <= num_available

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give a running sequence blocks for its first `num_tokens`; False if it was itself preempted."""
        while sequence.status is Status.RUNNING:
            num_needed = self._num_blocks(num_tokens) - len(sequence.blocks)
            if num_needed <= self.cache.num_available:
                sequence.blocks.extend(self.cache.acquire() for _ in range(num_needed))
                return True
            self._preempt(max(self.running, key=_rank))
        return False

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        own = sequence.blocks[sequence.num_shared_blocks :]
        self._copies = [(source, target) for source, target in self._copies if target not in own]
        self._give_up_blocks(sequence)
        sequence.num_computed = 0
        sequence.num_preemptions += 1
        sequence.status = Status.WAITING
        self.num_preemptions += 1
        self.waiting.push(sequence)

    def _give_up_blocks(self, sequence: Sequence) -> None:
        self.cache.release(sequence.blocks)
        sequence.blocks = []
        sequence.num_shared_blocks = 0

    def _share_full_blocks(self, sequence: Sequence) -> None:
        size = self.config.block_tokens
        blocks = sequence.blocks
        hashes = sequence.hashes(self.cache.hasher)
        for index in range(sequence.num_shared_blocks, sequence.num_computed // size):
            tokens = sequence.tokens[index * size : (index + 1) * size]
            parent = blocks[index - 1] if index else None
            blocks[index] = self.cache.store(
                sequence.salt, parent, tokens, blocks[index], sequence.query, hashes[index]
            )
        sequence.num_shared_blocks = sequence.num_computed // size

    def _grow_for_repeats(self, slices: list[Slice], max_repeats: int) -> int:
        """How often a batch of decodes can be repeated; the blocks for it are acquired.

        Until the first one ends, or blocks run out, or a block fills up while somebody waits: a change
        of the cache may let them in.
        """
        if not slices or len(slices) < len(self.running):
            return 1
        if not all(s and n == 1 and start >= seq.num_prompt_tokens for seq, start, n, s in slices):
            return 1  # some are no decodes
        batch = [piece.sequence for piece in slices]
        num_repeats = min(max_repeats, *(s.num_remaining for s in batch))
        if self.waiting:
            size = self.config.block_tokens
            num_repeats = min(num_repeats, *(size - s.num_computed % size for s in batch))
        growing: dict[int, list[Sequence]] = {}
        for sequence in batch:
            first = len(sequence.blocks) * self.config.block_tokens - len(sequence.tokens) + 1
            for repeat in range(first, num_repeats, self.config.block_tokens):
                growing.setdefault(repeat, []).append(sequence)
        for repeat in sorted(growing):
            if len(growing[repeat]) > self.pool.num_free:
                return repeat
            for sequence in growing[repeat]:
                sequence.blocks.append(self.cache.acquire())
        return num_repeats

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.config.block_tokens)

    def check_invariants(self) -> None:
        """Raises AssertionError unless blocks, cache and sequences fit together."""
        self.cache.check_invariants()
        assert len(self.running) <= self.config.max_running
        held: dict[int, int] = {}
        for sequence in self.running:
            assert sequence.status is Status.RUNNING
            assert sequence.num_computed <= len(sequence.blocks) * self.config.block_tokens
            assert sequence.num_shared_blocks <= sequence.num_computed // self.config.block_tokens
            for index, block in enumerate(sequence.blocks):
                held[block] = held.get(block, 0) + 1
                is_own = index >= sequence.num_shared_blocks
                assert not is_own or self.pool.num_holders(block) == 1
        for sequence in self.waiting:
            assert sequence.status is Status.WAITING
            assert not sequence.blocks
            assert sequence.num_computed == 0
        num_held = self.pool.num_blocks - self.cache.num_available
        assert num_held == len(held), f"{num_held} blocks are held and {len(held)} are in tables"


def _rank(sequence: Sequence) -> tuple[float, int]:
    """Who keeps its blocks: lowest first."""
    return -sequence.priority, sequence.order


def _chunked(scheduler: LocalScheduler, now_s: float) -> list[Slice]:
    slices = scheduler.decodes()
    budget_tokens = scheduler.config.max_batch_tokens - len(slices)
    return slices + scheduler.prefills(now_s, budget_tokens, whole=False)


def _prefill_first(scheduler: LocalScheduler, now_s: float) -> list[Slice]:
    slices = scheduler.prefills(now_s, scheduler.config.max_batch_tokens, whole=True)
    return slices or scheduler.decodes()


POLICIES: Mapping[str, Callable[[LocalScheduler, float], list[Slice]]] = {
    "chunked": _chunked,
    "prefill_first": _prefill_first,
}
