"""Single steps of the in-process LLM engine: decodes behind a common prefix, and what is not the model."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.llm.model import PROMPT_TOKENS, make_engine, prefill, random_prompts
from benchmarks.report import Row, spread
from stretto.engines.transformer import runner as runner_module
from stretto.engines.transformer.running_task import TextStream
from stretto.llm.output.output import DecodeOutput
from stretto.llm.sequence import TokenSequence
from stretto.llm.step_batch import Slice, StepBatch
from stretto.model.tasks import Decode, LLMTask

SHARING = "decode step, 32 sequences behind 6,000 common tokens"
LOOP = "a decode step of 16 sequences besides the model"

NUM_SHARING, PREFIX_TOKENS, OWN_TOKENS = 32, 6000, 40


def sharing_rows(checkpoint: Path, rounds: int, seed: int) -> list[Row]:
    """The same steps with one copy of the prefix or many, attended to together or not."""
    num_tokens = PREFIX_TOKENS + OWN_TOKENS
    shared = make_engine(checkpoint, kv_bytes=2**30, max_running=NUM_SHARING)
    size = shared.scheduler.config.block_tokens
    per_prefix, per_sequence = PREFIX_TOKENS // size, -(-num_tokens // size)
    (prefix,) = random_prompts(random.Random(seed), 1, PREFIX_TOKENS)
    prefill(shared, prefix)
    # The prefill began with an empty pool: its blocks are the first ones, in order.
    first = list(range(per_prefix))
    free = iter(range(per_sequence, shared.runner.num_blocks))
    forked = [first + [next(free) for _ in range(per_sequence - per_prefix)] for _ in range(NUM_SHARING)]
    copied = [list(range(per_sequence))]
    while len(copied) < NUM_SHARING:
        start = len(copied) * per_sequence
        copied.append(list(range(start, start + per_sequence)))
        shared.runner.kv.copy_blocks(tuple(zip(first, copied[-1], strict=False)))
    plain = make_engine(checkpoint, kv_bytes=2**30)
    plain.runner.kv = shared.runner.kv
    plain.runner._shares_attention = False
    variants = (
        ("one copy, attended together", shared, forked),
        ("one copy, each attends by itself", plain, forked),
        ("a copy each", plain, copied),
    )
    times: dict[str, list[float]] = {name: [] for name, _, _ in variants}
    for number in range(rounds + 1):
        for name, llm, tables in variants:
            batch = _decode_batch(tables, num_tokens)
            start_s = time.perf_counter()
            llm.runner.run(batch, lambda sequence: None)
            if number:
                times[name].append(1000 * (time.perf_counter() - start_s))
    rows = []
    for name, _, tables in variants:
        num_blocks = len({block for table in tables for block in table})
        rows.append(Row(SHARING, name, {**spread(times[name], "ms"), "kv_blocks": num_blocks}))
    shared.close()
    return rows


def _decode_batch(tables: Sequence[list[int]], num_tokens: int) -> StepBatch:
    """A step in which every sequence decodes, its KV in the blocks of its table."""
    slices = []
    for number, table in enumerate(tables):
        sequence = TokenSequence(number, [300 + number] * num_tokens, 1)
        sequence.blocks = table
        slices.append(Slice(sequence, num_tokens - 1, 1, samples=True))
    return StepBatch(tuple(slices))


def loop_rows(checkpoint: Path, seed: int) -> list[Row]:
    """What a decode step of 16 sequences costs: the model, and the loop around it."""
    llm = make_engine(checkpoint)
    rng = random.Random(seed)
    decode = Decode(max_tokens=400, ignore_eos=True)
    for number, prompt in enumerate(random_prompts(rng, 16, PROMPT_TOKENS)):
        llm.admit_tokens(LLMTask(number, "bench", "", (), decode), prompt)
    spent: dict[str, list[float]] = {"model": [], "sampling": [], "detokenisation": [], "loop": []}
    clock = _Clock()
    with (
        clock.on(llm.runner, "forward", "model"),
        clock.on(runner_module, "choose", "sampling"),
        clock.on(TextStream, "feed", "detokenisation"),
        clock.on(DecodeOutput, "feed", "detokenisation"),
    ):
        while llm.has_work():
            is_decode = sum(one.is_decoding for one in llm.scheduler.running) == 16
            clock.spent_s = dict.fromkeys(clock.spent_s, 0.0)
            start = time.perf_counter()
            llm.step()
            step_s = time.perf_counter() - start
            if is_decode:
                for name, seconds in clock.spent_s.items():
                    spent[name].append(1000 * seconds)
                spent["loop"].append(1000 * (step_s - sum(clock.spent_s.values())))
    llm.close()
    return [Row(LOOP, name, spread(times, "ms")) for name, times in spent.items()]


class _Clock:
    """Adds up the time within functions."""

    def __init__(self) -> None:
        self.spent_s: dict[str, float] = {"model": 0.0, "sampling": 0.0, "detokenisation": 0.0}

    @contextmanager
    def on(self, owner: Any, attribute: str, name: str) -> Iterator[None]:
        """Count calls of `owner.attribute` under `name`."""
        timed = getattr(owner, attribute)

        def measure(*args: Any) -> Any:
            start = time.perf_counter()
            result = timed(*args)
            self.spent_s[name] += time.perf_counter() - start
            return result

        setattr(owner, attribute, measure)
        try:
            yield
        finally:
            setattr(owner, attribute, timed)
