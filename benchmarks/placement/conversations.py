"""Conversations as the replay of hits places them: each prompt is the one before, its answer and a message.

Lengths are those of Azure's conversations, roughly: messages of 80 tokens in the median, first ones of 400,
answers of 211. One of four system prompts of 512 tokens stands before all. The next message comes when the
answer has been written and read. All draws follow from the seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from benchmarks.placement.hit_replay import Keyed

_BLOCK_TOKENS = 64
_SYSTEM_TOKENS, _NUM_SYSTEMS = 512, 4
_FIRST_TOKENS, _MESSAGE_TOKENS, _ANSWER_TOKENS = 400, 80, 211
_MEAN_TURNS, _MOST_TURNS = 6.0, 41
_MOST_TOKENS, _MOST_ANSWER = 16_000, 1000
_TOKEN_S, _THINK_S = 0.025, 20.0
_SKIPPED = 0.15
"""Share of the requests that are left out at first, until as many conversations run as later."""


def conversations(seed: int, num: int, rate_per_s: float) -> list[Keyed]:
    """Return `num` requests of conversations, in the order of their arrivals."""
    dice = random.Random(seed)
    made: list[Keyed] = []
    begin_s, number = 0.0, 0
    while len(made) < num * 1.6:
        begin_s += dice.expovariate(rate_per_s / _MEAN_TURNS)
        number += 1
        made += _conversation(dice, number, begin_s)
    made.sort(key=lambda one: one.arrival_s)
    first = int(len(made) * _SKIPPED)
    taken = made[first : first + num]
    zero_s = taken[0].arrival_s
    return [
        Keyed(one.arrival_s - zero_s, one.num_tokens, one.output_tokens, one.blocks, one.block_tokens)
        for one in taken
    ]


def _conversation(dice: random.Random, number: int, at_s: float) -> Iterator[Keyed]:
    num_turns = 1 + int(math.log(max(1e-9, dice.random())) / math.log(1 - 1 / _MEAN_TURNS))
    system, total = dice.randrange(_NUM_SYSTEMS), _SYSTEM_TOKENS
    for turn in range(min(num_turns, _MOST_TURNS)):
        total += _length(dice, *((_FIRST_TOKENS, 1.0) if turn == 0 else (_MESSAGE_TOKENS, 1.0)), least=8)
        answer = min(_MOST_ANSWER, _length(dice, _ANSWER_TOKENS, 0.8, least=4))
        shared = _SYSTEM_TOKENS // _BLOCK_TOKENS
        blocks = [
            _block(-1 - system if place < shared else number, place)
            for place in range(total // _BLOCK_TOKENS)
        ]
        yield Keyed(at_s, total, answer, blocks, _BLOCK_TOKENS)
        total += answer
        at_s += answer * _TOKEN_S + dice.expovariate(1 / _THINK_S)
        if total > _MOST_TOKENS:
            return


def _block(owner: int, place: int) -> bytes:
    return owner.to_bytes(4, "little", signed=True) + place.to_bytes(4, "little")


def _length(dice: random.Random, median: int, spread: float, *, least: int) -> int:
    return max(least, int(dice.lognormvariate(math.log(median), spread)))
