"""A model without a model: its KV are the prefixes themselves, so that every read can be checked."""

from __future__ import annotations

from zlib import crc32

from stretto.llm.local_scheduler import LocalScheduler
from stretto.llm.sequence import TokenSequence
from stretto.llm.step_batch import StepBatch

VOCABULARY = 4


def next_token(tokens: list[int]) -> int:
    """Return the next token, a function of all tokens before it."""
    return crc32(bytes(tokens)) % VOCABULARY


def completion(prompt: list[int], count: int) -> list[int]:
    """Return the tokens that any right run generates."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class CheckedKV:
    """Blocks that remember which prefix each of their tokens ended."""

    def __init__(self, scheduler: LocalScheduler) -> None:
        self._size = scheduler.config.block_tokens
        self._scheduler = scheduler
        self._held: dict[tuple[int, int], tuple[int, ...]] = {}

    def run(self, batch: StepBatch) -> dict[int, list[int]]:
        """Copy, write, read everything back, choose."""
        read = {
            (target, offset): self._held.get((source, offset), ())
            for source, target in batch.copies
            for offset in range(self._size)
        }
        self._held |= read
        if batch.num_loaded:
            self._load(batch.num_loaded)
        sampled: dict[int, list[int]] = {}
        for repeat in range(batch.num_repeats):
            inputs = {}
            for piece in batch.slices:
                sequence = piece.sequence
                tokens = sequence.tokens + sampled.get(sequence.id, [])
                stop = piece.start + repeat + piece.num_tokens
                assert stop <= len(tokens)
                inputs[sequence.id] = tokens[:stop]
                for position in range(piece.start + repeat, stop):
                    self._held[self._place(sequence, position)] = tuple(tokens[: position + 1])
            for piece in batch.slices:
                tokens = inputs[piece.sequence.id]
                for position in range(len(tokens)):
                    assert self._held[self._place(piece.sequence, position)] == tuple(tokens[: position + 1])
                if piece.samples:
                    sampled.setdefault(piece.sequence.id, []).append(next_token(tokens))
        return sampled

    def _load(self, most: int) -> None:
        """Put into blocks what running sequences count as computed and is not there, of whole blocks."""
        loaded = 0
        for sequence in self._scheduler.running:
            for position in range(sequence.num_shared_blocks * self._size):
                place, prefix = self._place(sequence, position), tuple(sequence.tokens[: position + 1])
                loaded += self._held.get(place) != prefix
                self._held[place] = prefix
        assert loaded <= most

    def _place(self, sequence: TokenSequence, position: int) -> tuple[int, int]:
        return sequence.blocks[position // self._size], position % self._size


def step(scheduler: LocalScheduler, kv: CheckedKV, max_repeats: int = 1) -> list[TokenSequence]:
    """Run one step and check it; return the sequences that ended in it."""
    batch = scheduler.schedule(max_repeats)
    scheduler.check_invariants()
    assert len({piece.sequence.id for piece in batch.slices}) == len(batch.slices)
    budget_tokens = scheduler.config.max_batch_tokens
    assert batch.num_tokens <= budget_tokens or scheduler.config.policy == "prefill_first"
    scheduler.complete(batch, kv.run(batch))
    scheduler.check_invariants()
    ended = []
    for piece in batch.slices:
        sequence = piece.sequence
        is_prefilled = sequence.max_new_tokens == 0 and sequence.num_missing == 0
        if is_prefilled or (sequence.max_new_tokens and sequence.num_remaining == 0):
            scheduler.finish(sequence)
            scheduler.check_invariants()
            ended.append(sequence)
    return ended
