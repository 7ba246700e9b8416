"""Reads recorded runs of a real engine: the requests of each run, and all its steps with their times.

Source of the format: the logs of SamuLLM's authors (vLLM 0.2, LLaMA-7B), as one table of steps and one file
of requests.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stretto.costs.fit import MeasuredStep
from stretto.costs.shape import StepShape
from stretto.costs.steps_file import checked_step, measured_step, read_rows
from stretto.model.errors import DocumentError

STEPS = "real_run_iters_llama7b_vllm02_2023.csv.gz"
REQUESTS = "real_run_llama7b_vllm02_2023_meta.json.gz"
_COLUMNS = ("log", "num_seqs", "token_num", "padded_token_num", "total_tokens", "max_len", "phase", "t_us")
_MAX_BATCH_TOKENS = 2048  # the engine's limit, unless the log shows more


@dataclass(frozen=True, slots=True)
class RealRun:
    """A recorded run; all its requests were there at its beginning.

    Attributes:
        requests: (prompt tokens, output tokens) of each request, in the recorded order or reversed.
        num_blocks: number of KV blocks of 16 tokens.
        max_batch_tokens: largest number of tokens of a prefill step, padding included.
        steps: steps in the order of time.
        in_order: whether the first steps belong to the first requests.
        swaps: whether preempted sequences were copied to the host, so that no prompt was computed twice.
        default_policy: whether the engine's own scheduler ran, and not one of the authors'.
    """

    name: str
    requests: tuple[tuple[int, int], ...]
    num_blocks: int
    max_batch_tokens: int
    steps: tuple[MeasuredStep, ...]
    in_order: bool
    swaps: bool
    default_policy: bool

    @property
    def seconds(self) -> float:
        """Seconds of all steps."""
        return sum(step.seconds for step in self.steps)


def load_real_runs(folder: Path) -> list[RealRun]:
    """Read all runs of the two files in `folder`.

    Raises:
        DocumentError: a file, column or number is missing or impossible; the message names file, row and
            reason.
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
        yield row["log"], checked_step(path, line, lambda row=row: _step(row))  # type: ignore[misc]


def _step(row: Mapping[str, str]) -> MeasuredStep:
    num_sequences, num_tokens, num_padded, context, longest = (int(row[name]) for name in _COLUMNS[1:6])
    seconds = float(row["t_us"]) / 1e6
    if row["phase"] == "decode":
        return measured_step(
            StepShape(num_decodes=num_sequences, context_tokens=context, max_context_tokens=longest), seconds
        )
    longest = num_padded // max(1, num_sequences)
    shape = StepShape(num_sequences, num_tokens, longest, num_tokens * (longest + 1) // 2)
    return measured_step(shape, seconds)


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
        sum(step.shape.num_prefills for step in steps) <= len(pairs),
        "plan" not in log["log"] and "recomp7" not in log["log"],
    )


def _first_repetition(steps: list[MeasuredStep], prompt_tokens: int) -> list[MeasuredStep]:
    """Keep the steps until all prompts are prefilled once, if many more follow, which are other
    measurements."""
    if sum(step.shape.prefill_tokens for step in steps) < 1.5 * prompt_tokens:
        return steps
    for index, step in enumerate(steps):
        prompt_tokens -= step.shape.prefill_tokens
        if prompt_tokens < 0:
            return steps[:index]
    return steps


def _begins_with(requests: Sequence[tuple[int, int]], steps: Sequence[MeasuredStep]) -> bool:
    """Whether the first prefill steps consist of the first requests."""
    done = 0
    for shape in [step.shape for step in steps if step.shape.num_prefills][:3]:
        prompts = [prompt for prompt, _ in requests[done : done + shape.num_prefills]]
        if abs(sum(prompts) - shape.prefill_tokens) > shape.num_prefills:
            return False
        done += shape.num_prefills
    return True
