"""Recorded runs of a real engine, and their replay by the production scheduler at fitted costs.

A recorded run has its requests and all its steps, with times. The replay knows the requests, the number of
KV blocks and a cost fitted to a few steps of other runs; it has to find the steps, and so the total time,
itself.

Source of the format: the logs of SamuLLM's authors (vLLM 0.2, LLaMA-7B), as one table of steps and one file
of requests.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stretto.costs.fit import MeasuredStep
from stretto.costs.shape import StepShape, shape_of
from stretto.costs.step import StepCost
from stretto.costs.steps_file import checked, measured, read_rows
from stretto.errors import DocumentError
from stretto.llm.local_scheduler import LocalScheduler, SchedulerConfig
from stretto.llm.sequence import Sequence as TokenSequence
from stretto.llm.step_batch import StepBatch

STEPS = "real_run_iters_llama7b_vllm02_2023.csv.gz"
REQUESTS = "real_run_llama7b_vllm02_2023_meta.json.gz"
_COLUMNS = ("log", "num_seqs", "token_num", "padded_token_num", "total_tokens", "max_len", "phase", "t_us")
_BLOCK_TOKENS = 16
_MAX_RUNNING = 256
_MAX_BATCH_TOKENS = 2048  # of the engine, unless the log shows more
_MAX_PADDING = 256  # of the engine: tokens of padding in a prefill step
_MANY_STEPS = 100_000


@dataclass(frozen=True, slots=True)
class RealRun:
    """One run, all of whose requests were there at its beginning.

    Attributes:
        requests: (prompt tokens, output tokens), as recorded or the other way round.
        num_blocks: of KV, each of 16 tokens.
        max_batch_tokens: of a prefill step, padding included.
        steps: in order.
        in_order: whether the first steps are of the first requests.
        default_policy: whether the engine's own scheduler was at work, not one of the authors'.
    """

    name: str
    requests: tuple[tuple[int, int], ...]
    num_blocks: int
    max_batch_tokens: int
    steps: tuple[MeasuredStep, ...]
    in_order: bool
    default_policy: bool

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return sum(step.seconds for step in self.steps)


def load_real_runs(folder: Path) -> list[RealRun]:
    """All runs of the two files in `folder`.

    Raises:
        DocumentError: a file, column or number is missing or impossible; names file, row and reason.
    """
    steps: dict[str, list[MeasuredStep]] = {}
    for log, step in _steps(folder / STEPS):
        steps.setdefault(log, []).append(step)
    path = folder / REQUESTS
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            described = json.load(file)
        return [
            _run(log, described["requests"][log["requests_key"]], steps[log["log"]])
            for log in described["logs"]
        ]
    except (OSError, EOFError, ValueError) as error:
        raise DocumentError(f"{path}: {error}") from error
    except KeyError as error:
        raise DocumentError(f"{path}: {error} is missing") from error


def _steps(path: Path) -> Iterator[tuple[str, MeasuredStep]]:
    for line, row in read_rows(path, _COLUMNS):
        yield row["log"], checked(path, line, lambda row=row: _step(row))  # type: ignore[misc]


def _step(row: Mapping[str, str]) -> MeasuredStep:
    num_sequences, num_tokens, num_padded, context, longest = (int(row[name]) for name in _COLUMNS[1:6])
    seconds = float(row["t_us"]) / 1e6
    if row["phase"] == "decode":
        return measured(
            StepShape(num_decodes=num_sequences, context_tokens=context, max_context_tokens=longest), seconds
        )
    longest = num_padded // max(1, num_sequences)
    return measured(StepShape(num_sequences, num_tokens, longest, num_tokens * (longest + 1) // 2), seconds)


def _run(log: dict[str, str], requests: Sequence[tuple[int, int]], steps: list[MeasuredStep]) -> RealRun:
    pairs = tuple((int(prompt), int(output)) for prompt, output in requests)
    steps = _first_repetition(steps, sum(prompt for prompt, _ in pairs))
    if not _begins_with(pairs, steps) and _begins_with(pairs[::-1], steps):
        pairs = pairs[::-1]
    return RealRun(
        log["log"].removesuffix(".log"),
        pairs,
        int(log["gpu_blocks"]),
        max(_MAX_BATCH_TOKENS, *(s.shape.num_prefills * s.shape.max_prefill_tokens for s in steps)),
        tuple(steps),
        _begins_with(pairs, steps),
        "plan" not in log["log"] and "recomp7" not in log["log"],
    )


def _first_repetition(steps: list[MeasuredStep], prompt_tokens: int) -> list[MeasuredStep]:
    """Up to the prefill that is more than all prompts, if many more follow: other measurements then."""
    if sum(step.shape.prefill_tokens for step in steps) < 1.5 * prompt_tokens:
        return steps
    for index, step in enumerate(steps):
        prompt_tokens -= step.shape.prefill_tokens
        if prompt_tokens < 0:
            return steps[:index]
    return steps


def _begins_with(requests: Sequence[tuple[int, int]], steps: Sequence[MeasuredStep]) -> bool:
    """Whether the first prefill steps are made of the first requests."""
    done = 0
    for shape in [step.shape for step in steps if step.shape.num_prefills][:3]:
        prompts = [prompt for prompt, _ in requests[done : done + shape.num_prefills]]
        if abs(sum(prompts) - shape.prefill_tokens) > shape.num_prefills:
            return False
        done += shape.num_prefills
    return True


@dataclass(frozen=True, slots=True)
class Replay:
    """What the scheduler makes of the requests of a run."""

    seconds: float
    num_prefill_steps: int
    num_decode_steps: int
    prefill_tokens: int
    decode_tokens: int
    num_preemptions: int


def replay(run: RealRun, cost: StepCost, seed: int = 0) -> Replay:
    """The run again, by the local scheduler with policy `prefill_first`, at the speed of `cost`.

    Requests go in as recorded, or in a random order if the recorded one is not the real one. Like the
    engine, a prefill step takes prompts as long as padding them to the longest adds little.
    """
    requests = list(run.requests)
    if not run.in_order:
        random.Random(seed).shuffle(requests)
    budget = run.max_batch_tokens
    config = SchedulerConfig(run.num_blocks, _BLOCK_TOKENS, _MAX_RUNNING, budget, "prefill_first")
    scheduler = LocalScheduler(config)
    num_tokens = 0
    for number, (prompt, output) in enumerate(requests):
        scheduler.add(TokenSequence(number, list(range(num_tokens, num_tokens + prompt)), output), 0.0)
        num_tokens += prompt
    seconds, num_prefills, num_decodes, prefill_tokens, decode_tokens = 0.0, 0, 0, 0, 0
    while scheduler.has_work():
        batch = scheduler.schedule(seconds, _MANY_STEPS)
        for shape in _step_shapes(batch, budget):
            if shape.num_prefills:
                num_prefills += 1
                prefill_tokens += shape.prefill_tokens
                seconds += cost.step_s(shape)
            else:
                num_decodes += batch.num_repeats
                decode_tokens += batch.num_repeats * shape.num_decodes
                seconds += cost.steps_s(shape, batch.num_repeats)
        sampled = {piece.sequence.id: [0] * batch.num_repeats for piece in batch.slices if piece.samples}
        scheduler.complete(batch, sampled)
        for piece in batch.slices:
            if not piece.sequence.num_remaining:
                scheduler.finish(piece.sequence)
    return Replay(
        seconds, num_prefills, num_decodes, prefill_tokens, decode_tokens, scheduler.num_preemptions
    )


def _step_shapes(batch: StepBatch, max_batch_tokens: int) -> Iterator[StepShape]:
    """The steps that an engine which pads prompts makes of a batch."""
    if batch.slices[0].sequence.is_decoding:
        yield shape_of((piece.start, piece.num_tokens, True) for piece in batch.slices)
        return
    group: list[tuple[int, int, bool]] = []
    for piece in batch.slices:
        lengths = [length for _, length, _ in group] + [piece.num_tokens]
        padded = len(lengths) * max(lengths)
        if group and (padded > max_batch_tokens or padded - sum(lengths) > _MAX_PADDING):
            yield shape_of(group)
            group = []
        group.append((piece.start, piece.num_tokens, False))
    yield shape_of(group)
