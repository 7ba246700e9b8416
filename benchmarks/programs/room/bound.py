"""What any rule could serve with one server: `python -m benchmarks.programs.room.bound --data DIR`.

A fluid bound: sizes, answers and times of tools are known, memory is always full to the last token, nothing
is computed twice that need not be, and sessions of all sizes are served as often as they come. With a mean of
`b` answers in a batch, `x` tokens a second take `x / b` steps and the prefills of `x / output` prompts, which
take one second together. Running contexts take `b` times the mean context of a generated token, and those of
which tools run take their tokens for so long, unless they are dropped and computed anew. The most tokens a
second are those of the largest batch for which all of that fits. A step takes more time with more contexts,
but less for each of them, so that a batch whose size varies does no better than its mean.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.programs.room.servers import DEVICE, MODEL
from benchmarks.programs.room.sessions import BLOCK_TOKENS, Session, recorded_sessions, thinking
from stretto.costs.kv_room import check_fits
from stretto.costs.presets import load_preset
from stretto.costs.shape import StepShape

_SLOTS = 16
_DROP_AFTER_S = 1.5
_STEPS = 200
_LAST_S = 2.0
"""Longest time of a tool. For so long a session that has ended unsaid looks like one whose tool runs."""


@dataclass(frozen=True, slots=True)
class MeanCall:
    """Means of the calls of sessions, each as often as it comes.

    Attributes:
        fresh: tokens of a prompt that no earlier prompt of its session has.
        context: tokens that a generated token attends to.
        think_s: seconds of the tools before a call, and `kept` those times the tokens that are kept for it.
        ended: tokens of a session that has ended, for each call.
    """

    prompt: float
    output: float
    fresh: float
    context: float
    think_s: float
    kept: float
    ended: float


def mean_call(sessions: Sequence[Session], drop_after_s: float) -> MeanCall:
    """Return the means of all calls. Where a tool takes more than `drop_after_s`, the context is dropped, and
    computed anew.
    """
    rows = [row for one in sessions for row in _calls(one, drop_after_s)]
    prompt, output, fresh, read, think_s, kept, ended = (
        sum(column) / len(rows) for column in zip(*rows, strict=True)
    )
    return MeanCall(prompt, output, fresh, read / output, think_s, kept, ended)


def _calls(session: Session, drop_after_s: float) -> Iterator[tuple[float, ...]]:
    before: list[int] = []
    for number, turn in enumerate(session.turns):
        blocks = [block for first, num in turn.runs for block in range(first, first + num)]
        differ = (place for place, (a, b) in enumerate(zip(before, blocks, strict=False)) if a != b)
        common = next(differ, min(len(before), len(blocks)))
        think_s = thinking(turn.think_s) if number else 0.0
        is_kept = think_s <= drop_after_s
        tokens, output = BLOCK_TOKENS * len(blocks), turn.num_output
        fresh = tokens - BLOCK_TOKENS * common * is_kept
        kept = think_s * BLOCK_TOKENS * len(before) * is_kept
        ended = float(tokens) if number == len(session.turns) - 1 else 0.0
        yield float(tokens), float(output), float(fresh), output * (tokens + output / 2), think_s, kept, ended
        before = blocks


def most_tokens_per_s(
    call: MeanCall, kv_tokens: float, num_sessions: int, *, says_ends: bool = True
) -> float:
    """Return the most tokens a second that sessions like these can have with so much memory."""
    cost = load_preset(DEVICE).step_cost(load_preset(DEVICE).model(MODEL), 1)
    best = 0.0
    for batch in (_SLOTS * step / _STEPS for step in range(_STEPS // _SLOTS, _STEPS)):
        step_s, prefill_s = (
            _between(batch, lambda num, fresh=fresh: cost.step_s(_shape(call, num, fresh)))  # type: ignore[misc]
            for fresh in (0, round(call.fresh))
        )
        tokens_per_s = 1.0 / (step_s / batch + (prefill_s - step_s) / call.output)
        calls_per_s = tokens_per_s / call.output
        slots = batch + calls_per_s * prefill_s  # a prompt has its place for the step that computes it
        kept = call.kept + (0.0 if says_ends else _LAST_S * call.ended)
        memory = batch * call.context + calls_per_s * (prefill_s * call.prompt + kept)
        if slots <= _SLOTS and memory <= kv_tokens and slots + calls_per_s * call.think_s <= num_sessions:
            best = max(best, tokens_per_s)
    return best


def _shape(call: MeanCall, num: int, fresh: int) -> StepShape:
    """Return a step of so many answers, and of the prefill of a prompt's fresh tokens, if there are any."""
    context = round(call.context)
    pairs = round(fresh * (call.prompt - fresh) + fresh * (fresh + 1) / 2)
    return StepShape(int(fresh > 0), fresh, fresh, pairs, num, num * context, context)


def _between(number: float, value_of: Callable[[int], float]) -> float:
    low = math.floor(number)
    return value_of(low) + (number - low) * (value_of(low + 1) - value_of(low))


def main() -> None:
    """Print the bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with sessions.jsonl.gz")
    sessions = recorded_sessions(parser.parse_args().data)
    preset = load_preset(DEVICE)
    assert preset.hardware is not None
    kv_tokens = check_fits(preset.model(MODEL), preset.hardware, 1)
    for name, chosen in (("tuning", sessions[0::2]), ("reporting", sessions[1::2])):
        kept, dropped = mean_call(chosen, math.inf), mean_call(chosen, _DROP_AFTER_S)
        for number in (24, 32, 48):
            endless = most_tokens_per_s(kept, 8 * kv_tokens, number)
            shares = {
                "all of the memory": most_tokens_per_s(kept, kv_tokens, number),
                "nine tenths": most_tokens_per_s(kept, 0.9 * kv_tokens, number),
                "all, ends unsaid": most_tokens_per_s(kept, kv_tokens, number, says_ends=False),
                f"all, dropped for {_DROP_AFTER_S} s": most_tokens_per_s(dropped, kv_tokens, number),
            }
            values = ", ".join(f"{what} {most / endless:.2f}" for what, most in shares.items())
            print(f"{name}, {number} sessions: {endless:.0f} tokens/s with 8 x the memory; of it {values}")


if __name__ == "__main__":
    main()
