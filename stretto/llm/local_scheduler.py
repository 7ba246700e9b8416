"""The scheduler of one LLM instance: it decides, step by step, which tokens of which sequences to compute.

A deterministic machine without IO. Its driver calls, again and again:

    batch = scheduler.schedule()               what to compute; blocks for it are held
    scheduler.complete(batch, sampled)         the sampled tokens
    scheduler.finish(sequence)                 sequences that are over; their blocks stay in the cache

Rules:

- Batching is continuous: a sequence joins and leaves between any two steps.
- Policy `chunked`: every decoding sequence gets its token in every step; the rest of the token budget goes
  to prefills, in chunks, those begun before new ones. So a prefill never delays a decode by more than a
  budget's worth of work. Policy `prefill_first`: whole prompts as long as there are any, then decodes.
- A sequence is admitted when its whole prompt fits next to what the others still need for theirs. If another
  sequence is computing its next block right now, it waits, as does one that continues a prefill: then
  it finds the tokens in the cache.
- Offline sequences give way to all others. They are admitted after all others, and lose their
  places and blocks to others that wait. In a step with others they read and prefill few tokens only
  (`OfflineLimits`), the eldest first; the rest keep their blocks and pause.
- Where blocks run short all the same, because sequences grow, the one with the largest rank is
  preempted: it gives its blocks up, waits again, and computes them anew or finds them in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stretto.llm.admission import WaitingQueue
from stretto.llm.block_tables import BlockTables
from stretto.llm.cache.block_pool import BlockPool
from stretto.llm.cache.prefix_cache import CacheHit, PrefixCache
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.llm.sequence import Status, TokenSequence
from stretto.llm.step_batch import InFlight, Slice, StepBatch, grow_for_repeats
from stretto.model.errors import CapacityError, ConfigError
from stretto.model.tasks import Reuse
from stretto.model.values import Prompt

__all__ = ["STEP_POLICIES", "LocalScheduler", "SchedulerConfig"]


class LocalScheduler:
    """The scheduler of one LLM instance: it decides in each step which tokens of which sequences to compute.

    It owns the instance's KV blocks and its prefix cache.

    Raises:
        ConfigError: the configuration cannot work.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        """Create the scheduler with an empty cache.

        Raises:
            ConfigError: the configuration cannot work.
        """
        if config.policy not in STEP_POLICIES:
            raise ConfigError(f"unknown policy {config.policy!r}: {' or '.join(STEP_POLICIES)}")
        config.check()
        self.config = config
        self.pool = BlockPool(config.num_blocks)
        self.cache = PrefixCache(self.pool, config.block_tokens, with_events=config.with_events)
        self.host: PrefixCache | None = None
        if config.host_blocks:
            pool = BlockPool(config.host_blocks)
            self.host = PrefixCache(pool, config.block_tokens, with_events=config.with_events, medium="host")
        self.running: list[TokenSequence] = []
        self.waiting = WaitingQueue(config.level_s, config.lookahead)
        self.num_preemptions = 0
        self._policy = STEP_POLICIES[config.policy]
        self._num_added = 0
        self._num_offline = self._num_others = 0  # sequences that wait or run
        self._tables = BlockTables(
            self.pool,
            self.cache,
            config.block_tokens,
            shares_partial=config.shares_partial_blocks,
            host=self.host,
        )
        self._preempted: list[TokenSequence] = []  # in this step
        self._shares: dict[int, tuple[int, float]] = {}

    def add(self, sequence: TokenSequence, now_s: float) -> None:
        """Add a sequence to the waiting queue; it arrives at `now_s`, in seconds.

        Raises:
            CapacityError: the sequence would not fit even if it were alone.
        """
        num_tokens = sequence.num_prompt_tokens + sequence.max_new_tokens
        num_blocks = self._tables.num_blocks(num_tokens)
        if num_blocks > self.config.num_blocks:
            raise CapacityError(
                f"{num_tokens} tokens need {num_blocks} KV blocks; the engine has {self.config.num_blocks}"
            )
        sequence.arrived_s = now_s
        self.cache.now_s = now_s
        sequence.order = self._num_added
        self._num_added += 1
        self._count(sequence, 1)
        self.waiting.push(sequence)

    def reprioritise(self, sequence: TokenSequence, rank: tuple[float, ...]) -> None:
        """Change the priority of a waiting or running sequence; the one with the smallest `rank` goes
        first.
        """
        is_waiting = sequence.status is Status.WAITING
        if is_waiting:
            self.waiting.remove(sequence)
        sequence.rank = rank
        if is_waiting:
            self.waiting.push(sequence)

    def retain(self, reuse: Reuse, tokenize: Callable[[Prompt], list[int]], now_s: float) -> None:
        """Note when a query will need cached prefixes again; it orders evictions only.

        Args:
            tokenize: function from a prompt to its token ids. Those of leading segments begin those of the
                whole prompt.
            now_s: present time, by the clock of `add`.
        """
        prompt, tokens = reuse.prompt, tokenize(reuse.prompt)
        uses = [
            (
                len(tokens) if num >= len(prompt) else len(tokenize(prompt[:num])),
                None if in_s is None else now_s + in_s,
            )
            for num, in_s in reuse.uses
        ]
        self.cache.now_s = now_s
        self.cache.retain(reuse.tenant, tokens, uses, reuse.query)

    def has_work(self) -> bool:
        """Return whether any sequence is running or waiting, so that there is a step to schedule."""
        return bool(self.running or self.waiting)

    def schedule(self, max_repeats: int = 1) -> StepBatch:
        """Return the tokens to compute in the next step, and acquire KV blocks for them.

        The batch is empty if there is nothing to compute.

        Args:
            max_repeats: largest number of steps that the batch may stand for. It stands for more than one
                only while all sequences decode and none of them ends.
        """
        self._preempted = []
        decodes, prefills = self._policy(self)
        slices = decodes + prefills
        num_repeats = 1
        if self._preempted:  # perhaps some that have their slices already; others may take their room
            slices = [piece for piece in slices if piece.sequence not in self._preempted]
        elif max_repeats > 1 and decodes and len(decodes) == len(self.running):
            size, is_awaited = self.config.block_tokens, bool(self.waiting)
            num_repeats = grow_for_repeats(
                self.running, self._tables, size, max_repeats, is_awaited=is_awaited
            )
        return StepBatch(tuple(slices), self._tables.take_copies(), num_repeats, self._tables.take_loaded())

    def complete(self, batch: StepBatch, sampled: Mapping[int, list[int]]) -> None:
        """Record that a step has been computed: append the sampled tokens to their sequences, and add the KV
        blocks that the step has filled to the prefix cache.

        Args:
            sampled: new tokens by sequence id: one for each sequence that got as far as sampling in this step
                (a part of a prompt that is not its last samples nothing). A batch that was run several times
                in a row has up to `num_repeats`, and fewer if the sequence has ended.
        """
        size = self.config.block_tokens
        for sequence, start, num_tokens, samples in batch.slices:
            num_computed = start + num_tokens
            if samples and (tokens := sampled.get(sequence.id)):
                sequence.tokens += tokens
                num_computed += len(tokens) - 1
            sequence.num_computed = num_computed
            if num_computed // size > sequence.num_shared_blocks:
                self._tables.share_full(sequence)

    def shorten(self, batch: StepBatch, num_repeats: int) -> None:
        """Cut a batch of several decode steps to `num_repeats` steps, and free the blocks of the others."""
        self._tables.shrink([piece.sequence for piece in batch.slices], num_repeats - 1)

    def finish(self, sequence: TokenSequence) -> None:
        """End a running sequence. The KV that it computed stays in the prefix cache.

        KV of a prefill without a decode is leased, that is, evicted last, because it was computed for a
        request that is still to come.
        """
        self._tables.keep(sequence)
        self.abort(sequence)

    def abort(self, sequence: TokenSequence) -> None:
        """Stop a waiting or running sequence, for instance one that was cancelled, and free its blocks."""
        if sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        elif sequence.status is Status.RUNNING:
            self.running.remove(sequence)
            self._tables.give_up(sequence)
        if sequence.status is not Status.FINISHED:
            self._count(sequence, -1)
        sequence.status = Status.FINISHED
        self._shares.pop(sequence.id, None)

    def decodes(self) -> list[Slice]:
        """Schedule the next token of every decoding sequence; preempt sequences if there are too few blocks.

        Returns one slice, of one token, for each sequence.
        """
        size = self.config.block_tokens
        slices = []
        for sequence in self._to_decode():
            position = sequence.num_computed
            num_tokens = len(sequence.tokens)
            if position != num_tokens - 1 or num_tokens == sequence.num_prompt_tokens:
                continue  # not `is_decoding`, in the innermost loop; nor is one that was just preempted
            if position < len(sequence.blocks) * size or self._make_room(sequence, position + 1):
                slices.append(Slice(sequence, position, 1, True))
        return slices

    def prefills(self, budget_tokens: int, *, whole: bool) -> list[Slice]:
        """Schedule prefills for one step, within a token budget; start waiting sequences while they fit.

        Prompts may be cut into chunks. With `whole` they are not cut, and the first one is scheduled even if
        it exceeds the budget. Returns one slice (a range of a sequence's tokens) for each prefill.
        """
        slices: list[Slice] = []
        prefilling = self._prefilling()
        if not self._num_offline:
            self._prefill_some(prefilling, slices, budget_tokens, whole=whole)
            return slices
        others = [one for one in prefilling if not one.is_offline]
        offline = [one for one in prefilling if one.is_offline]
        budget_tokens = self._prefill_some(others, slices, budget_tokens, whole=whole)
        if self._num_others and (slices or whole):  # engines may pad prompts to the longest of a step
            return slices
        limits = self.config.offline
        most = limits.prefill_tokens if self._num_others else limits.alone_prefill_tokens
        self._prefill_some(offline, slices, min(budget_tokens, most), whole=whole, is_offline=True)
        return slices

    def _prefill_some(
        self,
        prefilling: list[TokenSequence],
        slices: list[Slice],
        budget_tokens: int,
        *,
        whole: bool,
        is_offline: bool = False,
    ) -> int:
        """Append slices of prefills that have begun, and of waiting sequences, which start while they fit;
        either offline ones or the others. Return what is left of the budget.
        """
        for sequence in prefilling:
            if budget_tokens > 0 and (piece := self._prefill(sequence, budget_tokens, whole, bool(slices))):
                slices.append(piece)
                budget_tokens -= piece.num_tokens
        if budget_tokens <= 0 or not self.waiting or not self._may_start(is_offline):
            return budget_tokens
        if self._preempted:  # there is no room; and who comes back in the same step would be in it twice
            return budget_tokens
        if self._num_offline:  # others may have begun in this step
            prefilling = self._prefilling()
        in_flight = InFlight(self.running, prefilling, self.config.block_tokens)
        for sequence in self.waiting.candidates(self._cached_share, self.config.num_groups):
            if sequence.is_offline is not is_offline:
                if is_offline:  # something else waits for room
                    break
                continue
            if budget_tokens <= 0 or not self._may_start(is_offline):
                break
            hit = self._tables.look_up(sequence)
            if in_flight.has_next(sequence, hit):
                continue
            if not self._find_room(sequence, hit):
                break
            self._start(sequence, hit)
            if piece := self._prefill(sequence, budget_tokens, whole, bool(slices)):
                slices.append(piece)
                budget_tokens -= piece.num_tokens
            in_flight.add(sequence, hit)
        return budget_tokens

    def _may_start(self, is_offline: bool) -> bool:
        """Return whether one more sequence may run, if there are blocks for it."""
        offline = [one for one in self.running if one.is_offline] if self._num_offline else []
        if not is_offline:
            return len(self.running) < self.config.max_running or bool(offline)
        if len(self.running) >= self.config.max_running:
            return False
        return sum(len(one.tokens) for one in offline) < self._offline_context_tokens()

    def _find_room(self, sequence: TokenSequence, hit: CacheHit) -> bool:
        """Return whether a sequence can start now. Offline sequences that run give way to another one."""
        while len(self.running) >= self.config.max_running or not self._has_room(sequence, hit):
            offline = [one for one in self.running if one.is_offline] if self._num_offline else []
            if sequence.is_offline or not offline:
                return False
            self._preempt(max(offline, key=_place))
        return True

    def _to_decode(self) -> list[TokenSequence]:
        """Return the running sequences without the offline ones that pause in this step."""
        if not self._num_offline:
            return list(self.running)
        room_tokens = self._offline_context_tokens()
        chosen = []
        for sequence in self.running:
            if sequence.is_offline:
                if room_tokens <= 0:
                    continue
                room_tokens -= len(sequence.tokens)
            chosen.append(sequence)
        return chosen

    def _offline_context_tokens(self) -> int:
        limits = self.config.offline
        return limits.context_tokens if self._num_others else limits.alone_context_tokens

    def _count(self, sequence: TokenSequence, change: int) -> None:
        if sequence.is_offline:
            self._num_offline += change
        else:
            self._num_others += change

    def _prefilling(self) -> list[TokenSequence]:
        """Return the running sequences that do not decode; `is_decoding` is written out, as in `decodes`."""
        return [
            s
            for s in self.running
            if s.num_computed != len(s.tokens) - 1 or len(s.tokens) == s.num_prompt_tokens
        ]

    def _prefill(
        self, sequence: TokenSequence, budget_tokens: int, whole: bool, may_wait: bool
    ) -> Slice | None:
        num_missing = sequence.num_missing
        if whole and num_missing > budget_tokens and may_wait:
            return None
        num_tokens = num_missing if whole else min(num_missing, budget_tokens)
        if not self._make_room(sequence, sequence.num_computed + num_tokens):
            return None
        samples = num_tokens == num_missing and sequence.max_new_tokens > 0
        return Slice(sequence, sequence.num_computed, num_tokens, samples)

    def _start(self, sequence: TokenSequence, hit: CacheHit) -> None:
        """Move a sequence from the queue to the running ones; `hit` is what the cache has of it."""
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.status = Status.RUNNING
        self._shares.pop(sequence.id, None)
        self._tables.start(sequence, hit)

    def _cached_share(self, sequence: TokenSequence) -> float:
        """Return the cached share of the prompt, looked up again when the cache has changed."""
        version, share = self._shares.get(sequence.id, (-1, 0.0))
        if version != self.cache.version:
            share = self._tables.look_up(sequence).num_tokens / max(1, len(sequence.tokens))
            self._shares[sequence.id] = (self.cache.version, share)
        return share

    def _has_room(self, sequence: TokenSequence, hit: CacheHit) -> bool:
        """Return whether a prompt fits into the free blocks, beside what the running ones still need."""
        if not self.running:
            return True
        size = self.config.block_tokens
        outstanding = sum([len(s.tokens) // size + 1 - len(s.blocks) for s in self.running])
        needed = self._tables.num_blocks(len(sequence.tokens) + 1) - len(hit.blocks)
        num_available = self.cache.num_available - self.cache.num_idle_in(hit)
        return needed + max(0, outstanding) <= num_available

    def _make_room(self, sequence: TokenSequence, num_tokens: int) -> bool:
        """Give a running sequence blocks for its first `num_tokens`; False means it was itself preempted."""
        while sequence.status is Status.RUNNING:
            if self._tables.grow(sequence, num_tokens):
                return True
            self._preempt(max(self.running, key=_place))
        return False

    def _preempt(self, sequence: TokenSequence) -> None:
        self.running.remove(sequence)
        self._tables.give_up(sequence)
        sequence.num_computed = 0
        sequence.num_preemptions += 1
        sequence.status = Status.WAITING
        self.num_preemptions += 1
        self._preempted.append(sequence)
        self.waiting.push(sequence)

    def check_invariants(self) -> None:
        """Check that blocks, cache and sequences fit together. Raises AssertionError if they do not."""
        self._tables.check_invariants(self.running)
        if self.host is not None:
            self.host.check_invariants()
        assert len(self.running) <= self.config.max_running
        assert all(sequence.status is Status.RUNNING for sequence in self.running)
        for sequence in self.waiting:
            assert sequence.status is Status.WAITING
            assert not sequence.blocks
            assert sequence.num_computed == 0


def _place(sequence: TokenSequence) -> tuple[tuple[float, ...], int]:
    return sequence.place


def _chunked(scheduler: LocalScheduler) -> tuple[list[Slice], list[Slice]]:
    decodes = scheduler.decodes()
    if len(decodes) == len(scheduler.running) and not scheduler.waiting:
        return decodes, []
    budget_tokens = scheduler.config.max_batch_tokens - len(decodes)
    return decodes, scheduler.prefills(budget_tokens, whole=False)


def _prefill_first(scheduler: LocalScheduler) -> tuple[list[Slice], list[Slice]]:
    prefills = scheduler.prefills(scheduler.config.max_batch_tokens, whole=True)
    return ([], prefills) if prefills else (scheduler.decodes(), [])


STEP_POLICIES: Mapping[str, Callable[[LocalScheduler], tuple[list[Slice], list[Slice]]]] = {
    "chunked": _chunked,
    "prefill_first": _prefill_first,
}
"""Functions that return the decodes and the prefills of the next step, by the name of the policy."""
