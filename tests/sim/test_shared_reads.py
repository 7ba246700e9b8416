"""The shape of a step whose attention reads what decodes share once."""

from __future__ import annotations

from stretto.llm.sequence import TokenSequence
from stretto.llm.step_batch import Slice, StepBatch
from stretto.sim.step_times import LEAST_SHARED_TOKENS, batch_shape, reading_shared_once

BLOCK = 16


def decode(number: int, blocks: list[int]) -> Slice:
    """The first decode of a sequence whose prompt fills all its blocks but the last."""
    tokens = [1] * (BLOCK * (len(blocks) - 1))
    return Slice(TokenSequence(number, tokens, 8, blocks=blocks), len(tokens), 1, True)


def saved(*slices: Slice) -> int:
    batch = StepBatch(slices)
    shape = batch_shape(batch)
    return shape.context_tokens - reading_shared_once(shape, batch, BLOCK).context_tokens


def test_a_prefix_of_three_decodes_is_read_once() -> None:
    shared = list(range(10))
    assert saved(*(decode(number, [*shared, 100 + number]) for number in range(3))) == 2 * 10 * BLOCK


def test_short_prefixes_single_decodes_and_prefills_save_nothing() -> None:
    short = list(range(LEAST_SHARED_TOKENS // BLOCK - 1))
    assert saved(*(decode(number, [*short, 100 + number]) for number in range(3))) == 0
    long = list(range(20))
    assert saved(decode(0, [*long, 100])) == 0
    prompt = Slice(TokenSequence(1, [1] * 400, 8, blocks=[*long, 101]), 300, 20, False)
    assert saved(decode(0, [*long, 100]), prompt) == 0
