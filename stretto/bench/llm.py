"""What the in-process LLM engine does with a small model, next to others on the same checkpoint.

8.5 million bfloat16 parameters with random weights; the same random prompts for all, in one run, engines in
turn. Besides throughput: the first token of a prompt that is mostly cached, decode steps of sequences that
share a long prefix, and what a step costs besides the model.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.bench.checkpoint import Shape, build_checkpoint
from stretto.bench.registry import Options
from stretto.bench.report import Goal, Report, Row, spread
from stretto.engines.quiet import no_progress_bars
from stretto.engines.transformer import runner as runner_module
from stretto.engines.transformer.engine import TransformerConfig, TransformerLLM
from stretto.engines.transformer.text_stream import TextStream
from stretto.errors import InternalError
from stretto.llm.output import Output
from stretto.llm.sequence import Sequence as LLMSequence
from stretto.llm.step_batch import Slice, StepBatch
from stretto.tasks import Decode, Done, LLMTask

THROUGHPUT = "tokens/s by concurrency"
FIRST_TOKEN = "time to first token, 512 tokens"
SHARING = "decode step, 32 sequences behind 6,000 common tokens"
LOOP = "a decode step of 16 sequences besides the model"

CONCURRENCY = (1, 4, 16)
PROMPT_TOKENS = 64
NEW_TOKENS = 64
NUM_SHARING, PREFIX_TOKENS, OWN_TOKENS = 32, 6000, 40
THREADS = 2
SHAPE = Shape(context_tokens=8192)

# vLLM's CPU build with a model of this size on two cores, eager and compiled: the best of what was seen.
VLLM_EAGER = {1: 254.0, 4: 856.0, 16: 2055.0}
VLLM_COMPILED = {1: 212.0, 4: 1002.0, 16: 2964.0}

Generate = Callable[[list[list[int]]], int]


@dataclass(slots=True)
class _Contestant:
    """`generate` completes prompts, all at once, and says how many tokens that made."""

    name: str
    generate: Generate
    tokens_per_s: dict[int, list[float]] = field(default_factory=lambda: {c: [] for c in CONCURRENCY})


def run_benchmark(options: Options, vllm: Callable[[Path], Generate] | None = None) -> Report:
    """Everything, in some minutes; under two when `quick`.

    Args:
        vllm: makes a contestant of vLLM's server on a checkpoint, where there is one.
    """
    import torch

    rounds = 3 if options.quick else 10
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = _build(Path(name), options.seed)
            options.say("throughput")
            rows, notes = _throughput(folder, rounds, options, vllm)
            options.say("time to first token")
            rows += _first_token(folder, 3 * rounds, options.seed)
            options.say("shared prefix")
            rows += _sharing(folder, rounds, options.seed)
            options.say("the loop")
            rows += _loop(folder, options.seed)
    finally:
        torch.set_num_threads(threads)
    config = {"rounds": rounds, "prompt_tokens": PROMPT_TOKENS, "new_tokens": NEW_TOKENS, "threads": THREADS}
    return Report("llm", options.seed, config, tuple(rows), _goals(rows), tuple(notes))


def _build(folder: Path, seed: int) -> Path:
    """The checkpoint. Its tokenizer is trained on made-up words, as many as fill the vocabulary."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(4000)]
    text = [" ".join(rng.choices(words, k=200)) for _ in range(100)]
    return build_checkpoint(folder / "model", text, shape=SHAPE, seed=seed)


def _engine(folder: Path, **settings: Any) -> TransformerLLM:
    return TransformerLLM(
        TransformerConfig(
            folder, **{"dtype": "bfloat16", "num_threads": THREADS, "max_running": 32, **settings}
        )
    )


def _prompts(rng: random.Random, count: int, length: int) -> list[list[int]]:
    return [rng.choices(range(300, 2000), k=length) for _ in range(count)]


def _throughput(
    folder: Path, rounds: int, options: Options, vllm: Callable[[Path], Generate] | None
) -> tuple[list[Row], list[str]]:
    llm = _engine(folder)
    contestants = [
        _Contestant("transformers generate", _transformers(folder)),
        _Contestant("stretto", lambda prompts: _complete(llm, prompts)),
    ]
    notes = [
        f"at or past vLLM compiled: {VLLM_COMPILED[1]:.0f} / {VLLM_COMPILED[4]:.0f} / {VLLM_COMPILED[16]:.0f}"
    ]
    if vllm is None:
        notes.append("vLLM is left out: no server of its CPU build was given")
    else:
        contestants.insert(1, _Contestant("vLLM CPU server", vllm(folder)))
    rng = random.Random(options.seed)
    for number in range(rounds + 1):
        options.say(f"throughput, round {number} of {rounds}")
        for concurrency in CONCURRENCY:
            prompts = _prompts(rng, concurrency, PROMPT_TOKENS)
            for one in contestants:
                start = time.perf_counter()
                num_tokens = one.generate(prompts)
                if number:  # the first round warms up
                    one.tokens_per_s[concurrency].append(num_tokens / (time.perf_counter() - start))
    rows = [
        Row(
            THROUGHPUT,
            f"{one.name}, {concurrency} at once",
            spread(one.tokens_per_s[concurrency], "tokens_per_s"),
        )
        for concurrency in CONCURRENCY
        for one in contestants
    ]
    llm.close()
    return rows, notes


def _transformers(folder: Path) -> Generate:
    import torch
    from transformers import AutoModelForCausalLM

    with no_progress_bars():
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)

    def generate(prompts: list[list[int]]) -> int:
        ids = torch.tensor(prompts)
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
        return int(output[:, len(prompts[0]) :].numel())

    return generate


def _complete(llm: TransformerLLM, prompts: list[list[int]], new_tokens: int = NEW_TOKENS) -> int:
    """All prompts through the engine; nothing stays cached."""
    decode = Decode(max_tokens=new_tokens, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        llm.admit_tokens(LLMTask(number, "bench", "", (), decode), prompt, 0.0)
    num_tokens = 0
    while llm.has_work():
        for event in llm.step():
            if isinstance(event, Done):
                num_tokens += event.usage.num_output_tokens
    llm.release("bench")
    if num_tokens != new_tokens * len(prompts):
        raise InternalError(f"{num_tokens} tokens for {len(prompts)} prompts")
    return num_tokens


def _first_token(folder: Path, repetitions: int, seed: int) -> list[Row]:
    llm = _engine(folder)
    rng = random.Random(seed)
    cold, cached = [], []
    for number in range(repetitions + 1):
        (prompt,) = _prompts(rng, 1, 512)
        times = []
        for warm in (False, True):
            if warm:
                llm.admit_tokens(LLMTask(0, "bench", "", (), None), prompt[:448], 0.0)
                while llm.has_work():
                    llm.step()
            start = time.perf_counter()
            _complete(llm, [prompt], new_tokens=1)
            times.append(1000 * (time.perf_counter() - start))
        if number:
            cold.append(times[0])
            cached.append(times[1])
    llm.close()
    return [
        Row(FIRST_TOKEN, "cold", spread(cold, "ms")),
        Row(FIRST_TOKEN, "448 cached", spread(cached, "ms")),
    ]


def _sharing(folder: Path, rounds: int, seed: int) -> list[Row]:
    """The same steps with one copy of the prefix or many, attended to together or not."""
    num_tokens = PREFIX_TOKENS + OWN_TOKENS
    shared = _engine(folder, kv_bytes=2**30, max_running=NUM_SHARING)
    size = shared.scheduler.config.block_tokens
    per_prefix, per_sequence = PREFIX_TOKENS // size, -(-num_tokens // size)
    (prefix,) = _prompts(random.Random(seed), 1, PREFIX_TOKENS)
    shared.admit_tokens(LLMTask(0, "bench", "", (), None), prefix, 0.0)
    while shared.has_work():
        shared.step()
    # The prefill began with an empty pool: its blocks are the first ones, in order.
    first = list(range(per_prefix))
    free = iter(range(per_sequence, shared.runner.num_blocks))
    forked = [first + [next(free) for _ in range(per_sequence - per_prefix)] for _ in range(NUM_SHARING)]
    copied = [list(range(per_sequence))]
    while len(copied) < NUM_SHARING:
        start = len(copied) * per_sequence
        copied.append(list(range(start, start + per_sequence)))
        shared.runner.kv.copy_blocks(tuple(zip(first, copied[-1], strict=False)))
    plain = _engine(folder, kv_bytes=2**30)
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
            llm.runner.run(batch, lambda sequence, generated: None)
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
        sequence = LLMSequence(number, [300 + number] * num_tokens, 1)
        sequence.blocks = table
        slices.append(Slice(sequence, num_tokens - 1, 1, samples=True))
    return StepBatch(tuple(slices))


def _loop(folder: Path, seed: int) -> list[Row]:
    llm = _engine(folder)
    rng = random.Random(seed)
    decode = Decode(max_tokens=400, ignore_eos=True)
    for number, prompt in enumerate(_prompts(rng, 16, PROMPT_TOKENS)):
        llm.admit_tokens(LLMTask(number, "bench", "", (), decode), prompt, 0.0)
    spent: dict[str, list[float]] = {"model": [], "sampling": [], "detokenisation": [], "loop": []}
    clock = _Clock()
    with (
        clock.on(llm.runner, "forward", "model"),
        clock.on(runner_module, "choose", "sampling"),
        clock.on(TextStream, "feed", "detokenisation"),
        clock.on(Output, "feed", "detokenisation"),
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


def _goals(rows: Sequence[Row]) -> tuple[Goal, ...]:
    found = {(row.table, row.name): row.values for row in rows}

    def value(table: str, name: str, column: str) -> float:
        number = found[table, name][column]
        assert isinstance(number, int | float)
        return float(number)

    together, each, copies = (
        value(SHARING, name, "median_ms")
        for name in ("one copy, attended together", "one copy, each attends by itself", "a copy each")
    )
    blocks = [value(SHARING, name, "kv_blocks") for name in ("a copy each", "one copy, attended together")]
    cold, cached = (value(FIRST_TOKEN, name, "median_ms") for name in ("cold", "448 cached"))
    return (
        *(
            Goal(
                f"tokens/s, {concurrency} at once",
                value(THROUGHPUT, f"stretto, {concurrency} at once", "median_tokens_per_s"),
                VLLM_EAGER[concurrency],
                "higher",
            )
            for concurrency in CONCURRENCY
        ),
        Goal("time to first token, 448 of 512 cached over cold", round(cached / cold, 3), 0.333, "lower"),
        Goal("decode step without sharing over with", copies / together, 5, "higher"),
        Goal("decode step, attending one by one over together", each / together, 3, "higher"),
        Goal("sequences in the same KV memory, shared over not", blocks[0] / blocks[1], 10, "higher"),
        Goal(
            "ms per step besides model, sampling, detokenisation",
            value(LOOP, "loop", "median_ms"),
            0.2,
            "lower",
        ),
    )


if __name__ == "__main__":
    from rich.console import Console

    from stretto.bench.report import print_report

    print_report(run_benchmark(Options(quick=True, say=print)), Console())
