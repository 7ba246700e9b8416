"""The description of one emulated LLM server: its model, its devices and its limits, as vLLM names them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from stretto.costs.known_costs import llm_device, llm_model
from stretto.costs.kv_room import check_fits
from stretto.costs.presets import Preset
from stretto.costs.shape import LLMModel
from stretto.emulate.scripted_replies import Script, read_replies
from stretto.emulate.served_model import EmulatedModel
from stretto.emulate.tokens import FOUR_CHARACTERS, Tokens
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.model.errors import ConfigError
from stretto.model.extras import imports_of
from stretto.model.tasks import Decode, LLMTask
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.synthetic_output import SyntheticOutput

_LEVEL_S = 1e-6
_MAX_JUMP = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMPlan:
    """The description of an emulated LLM server. Defaults are vLLM's for an A100.

    Attributes:
        model: name of a model with known costs, or directory with its `config.json`.
        device: kind of device, with known costs.
        served_name: name of the model in requests; None for `model`.
        max_context_tokens: longest prompt and answer together; None for the model's own.
        memory_share: share of the devices' memory that the server takes.
        scheduling: "fcfs", first come first served, or "priority".
        loading_s: seconds before the server answers; None for the predicted ones.
        tokenizer: directory with the model's tokenizer; None for tokens of four characters.
        replies: file of prescribed replies (`scripted_replies.py`); None for made-up texts alone.
    """

    model: str
    device: str
    tensor_parallel: int = 1
    served_name: str | None = None
    max_sequences: int = 256
    max_batch_tokens: int = 2048
    block_tokens: int = 16
    max_context_tokens: int | None = None
    memory_share: float = 0.9
    scheduling: Literal["fcfs", "priority"] = "fcfs"
    caches_prefixes: bool = True
    reports_kv: bool = False
    loading_s: float | None = None
    tokenizer: str | None = None
    replies: Path | None = None


@dataclass(frozen=True, slots=True)
class PlannedLLM:
    """An emulated LLM server whose model, costs and memory have been checked.

    Attributes:
        sizes: sizes of the model.
        loading_s: emulated seconds before it answers.
        arrival_s: emulated seconds of a request's way from the port to the instance, besides those that the
            emulated server needs: HTTP, checks of the request, and the way between the server's processes.
    """

    plan: LLMPlan
    preset: Preset
    sizes: LLMModel
    served: EmulatedModel
    simulated: SimulatedModel
    loading_s: float
    arrival_s: float = 0.0


def check_llm(plan: LLMPlan) -> PlannedLLM:
    """Look up the costs of an emulated server, and check that its model and KV cache fit its devices.

    Raises:
        ConfigError: a name or a number cannot be used.
    """
    preset = llm_device(plan.device)
    sizes = llm_model(plan.model, preset)
    cost = preset.step_cost(sizes, plan.tensor_parallel)
    assert preset.hardware is not None
    if not 0 < plan.memory_share <= 1:
        raise ConfigError(f"the share of memory is {plan.memory_share}; it must be above 0, at most 1")
    num_tokens = check_fits(
        sizes, preset.hardware, plan.tensor_parallel, plan.memory_share, plan.max_batch_tokens
    )
    longest = sizes.max_context_tokens if plan.max_context_tokens is None else plan.max_context_tokens
    if longest < 2:
        raise ConfigError(f"the longest context is {longest} tokens; it must be at least 2")
    num_blocks = num_tokens // plan.block_tokens if plan.block_tokens > 0 else 0
    if longest > num_blocks * plan.block_tokens:
        raise ConfigError(
            f"the KV cache of {plan.model} on {plan.tensor_parallel} × {preset.name} holds {num_tokens} "
            f"tokens; a context of {longest} does not fit: shorten it, or give the server more memory"
        )
    scheduler = SchedulerConfig(
        num_blocks,
        plan.block_tokens,
        max_running=plan.max_sequences,
        max_batch_tokens=plan.max_batch_tokens,
        num_groups=1,
        level_s=_LEVEL_S,
        with_events=plan.reports_kv,
        shares_partial_blocks=False,
    )
    scheduler.check()
    loading_s = plan.loading_s
    if loading_s is None:
        loading_s = preset.loading_s(sizes, plan.tensor_parallel) or 0.0
    return PlannedLLM(
        plan,
        preset,
        sizes,
        EmulatedModel(
            plan.served_name or plan.model,
            plan.tokenizer or plan.model,
            longest,
            plan.scheduling == "priority",
            FOUR_CHARACTERS if plan.tokenizer is None else load_tokens(plan.tokenizer),
            Script() if plan.replies is None else read_replies(plan.replies),
        ),
        SimulatedModel(
            scheduler,
            cost,
            _unasked,
            max_jump=plan.block_tokens if plan.reports_kv else _MAX_JUMP,  # events come at the end of jumps
            keeps_released=True,
            caches=plan.caches_prefixes,
        ),
        loading_s,
    )


@lru_cache(maxsize=8)
def load_tokens(folder: str) -> Tokens:
    """Return the tokenizer in a directory, the same object for all servers of a model.

    Raises:
        ConfigError: it cannot be loaded, or the package tokenizers is missing.
    """
    with imports_of("local", "--tokenizer"):
        from stretto.emulate.model_tokens import ModelTokens
    return ModelTokens(Path(folder))


def _unasked(task: LLMTask, decode: Decode) -> SyntheticOutput:
    raise AssertionError("the answers of an emulated server are written before its requests are queued")
