"""Costs of a model on a core of this machine: its steps and its start, measured in processes of their own."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from stretto.costs.fit import MeasuredStep, fit_step_cost
from stretto.costs.shape import Hardware, LLMModel
from stretto.costs.step_features import StepFeatures
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.model.replica import Replica
from stretto.model.tasks import Decode, LLMTask
from stretto.model.values import Segment
from stretto.planner.machine import scheduler_config

if TYPE_CHECKING:
    from stretto.engines.transformer.engine_config import TransformerConfig
    from stretto.planner.measure_steps import MeasuredLLM

WIDTHS = (48, 16, 4, 1)
"""Sequences at once. The most come first, so that KV blocks of the others are scattered, as in long runs."""
_NUM_TASKS = 2 * max(WIDTHS)
_PROMPT_WORDS = (8, 320)
_ANSWER_TOKENS = (16, 240)
_TOKENS_PER_WORD = 3  # at most, about
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MAIN_MEMORY_BYTES_S = 2e10
_CACHE_BYTES_S = 1e11
_FLOPS = 5e10
_STEPS_OF_KIND = 200
_FILL_OPERATIONS = 2.5e11
"""Operations for the usual prompts of the most sequences, about: larger models get shorter prompts."""
_STEP_OPERATIONS = 1e11
"""Operations of the largest step, about, that the longest prompt does not need."""
_LONGEST = 8
"""Length of the longest prompt over that of the longest usual one. It is there for attention in a prefill."""
_KV_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class CoreModel:
    """A model that can run on a core.

    Attributes:
        path: checkpoint, a folder or a GGUF file.
        sizes: sizes of the model, in the precision in which it runs.
        replica: replica of the model with default settings.
    """

    path: Path
    sizes: LLMModel
    replica: Replica

    def config(self, scheduler: SchedulerConfig) -> TransformerConfig:
        """Return the configuration of its engine that schedules steps so."""
        return replace(
            cast("TransformerConfig", self.replica.config),
            max_running=scheduler.max_running,
            max_batch_tokens=scheduler.max_batch_tokens,
            block_tokens=scheduler.block_tokens,
            policy=scheduler.policy,
            kv_bytes=scheduler.num_blocks * scheduler.block_tokens * self.sizes.kv_bytes_per_token,
        )


@dataclass(frozen=True, slots=True)
class CoreCost:
    """The measured costs of one model on a core.

    Attributes:
        model: sizes of the model, in the precision in which it runs.
        numbers: numbers of its step times, fitted on `core_hardware`.
        start_s: seconds from the start of a process until the model is loaded.
    """

    model: LLMModel
    numbers: Mapping[str, float]
    start_s: float

    def as_json(self) -> dict[str, Any]:
        """Return all of it as a value of JSON."""
        return asdict(self)


def core_cost_of(found: Mapping[str, Any]) -> CoreCost:
    """Return the costs that a value of JSON describes. Raises what a wrong value makes Python raise."""
    numbers = {str(name): float(value) for name, value in found["numbers"].items()}
    return CoreCost(LLMModel(**found["model"]), numbers, float(found["start_s"]))


def core_hardware(memory_bytes: float) -> Hardware:
    """Return a core as hardware. Its peak figures are typical; they only set the units of fitted numbers."""
    return Hardware("a core", memory_bytes, _MAIN_MEMORY_BYTES_S, _CACHE_BYTES_S, _FLOPS)


def measure_on_cores(model: CoreModel, cores: Sequence[int], max_s: float) -> CoreCost:
    """Measure a model on all these cores at the same time, because in a run all are busy.

    Args:
        max_s: seconds for steps, as `StepLoad` has them; starts are not in it.

    Raises:
        EngineFailure: a process died.
        ConfigError: the model cannot be used.
    """
    from stretto.planner.measure_steps import StepLoad, measure_apart

    sizes = model.sizes
    load = StepLoad(_tasks(random.Random(0), sizes), WIDTHS, max_s, keeps_prompts=True)
    scheduler = scheduler_config(sizes, _KV_BYTES // sizes.kv_bytes_per_token)
    longest = _TOKENS_PER_WORD * _prompt_words(sizes)[1]
    step_tokens = max(longest, scheduler.max_running + 1, int(_STEP_OPERATIONS / (2 * sizes.token_params)))
    config = model.config(replace(scheduler, max_batch_tokens=min(scheduler.max_batch_tokens, step_tokens)))

    def measured(core: int) -> MeasuredLLM:
        return measure_apart(config, load, devices=(f"cpu:{core}",), threads=1)

    with ThreadPoolExecutor(len(cores)) as pool:
        found = list(pool.map(measured, cores))
    steps = [step for one in found for step in one.steps]
    start_s = sum(one.start_s for one in found) / len(found)
    return CoreCost(sizes, _numbers(sizes, steps), start_s)


def _numbers(model: LLMModel, steps: Sequence[MeasuredStep]) -> dict[str, float]:
    """Fit the numbers of step times, so that totals are right too: the fit of each step hardly sees rare slow
    ones.
    """
    chosen = _balanced(steps)
    cost = fit_step_cost(StepFeatures(model, core_hardware(1.0)), chosen)
    scale = sum(step.seconds for step in chosen) / sum(cost.step_s(step.shape) for step in chosen)
    return {name: scale * number for name, number in cost.numbers.items()}


def _balanced(steps: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    """Return as many steps with few sequences as with many, of which there are less, and prefills."""
    kinds: dict[int, list[MeasuredStep]] = {}
    for step in steps:
        kind = 0 if step.shape.num_prefills else step.shape.num_decodes.bit_length()
        kinds.setdefault(kind, []).append(step)
    return [step for same in kinds.values() for step in same[:: -(-len(same) // _STEPS_OF_KIND)]]


def _prompt_words(model: LLMModel) -> tuple[int, int]:
    """Return the words of the longest usual prompt, and of the longest of all: what the context has room for,
    and a core can compute in a few seconds.
    """
    fit = max(1, min(_PROMPT_WORDS[1], model.max_context_tokens // (2 * _TOKENS_PER_WORD)))
    usual = min(fit, max(_PROMPT_WORDS[0], int(_FILL_OPERATIONS / (2 * model.token_params * max(WIDTHS)))))
    return usual, min(fit, _LONGEST * usual)


def _tasks(numbers: random.Random, model: LLMModel) -> list[LLMTask]:
    """Return tasks whose texts have nothing in common, of several lengths. The first one warms up, and the
    second one is the longest.
    """
    usual, longest = _prompt_words(model)
    shortest = min(_PROMPT_WORDS[0], usual)
    most = max(1, min(_ANSWER_TOKENS[1], model.max_context_tokens // 2))
    tasks = []
    for at in range(_NUM_TASKS):
        num_words = longest if at == 1 else round(shortest * (usual / shortest) ** numbers.random())
        words = ("".join(numbers.choices(_LETTERS, k=numbers.randint(3, 6))) for _ in range(num_words))
        decode = Decode(max_tokens=numbers.randint(min(_ANSWER_TOKENS[0], most), most), ignore_eos=True)
        tasks.append(LLMTask(at, f"query {at}", "", (Segment(" ".join(words)),), decode))
    return tasks
