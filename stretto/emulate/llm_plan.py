"""The check of one emulated LLM server: its model, its devices and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stretto.costs.known_costs import llm_device, llm_model
from stretto.costs.kv_room import check_fits
from stretto.costs.presets import Preset
from stretto.costs.shape import LLMModel
from stretto.emulate.scripted_replies import Script, read_replies
from stretto.emulate.served_model import EmulatedModel
from stretto.emulate.tokens import FOUR_CHARACTERS, Tokens
from stretto.emulate.wanted import WantedServer
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.model.errors import ConfigError
from stretto.model.extras import imports_of
from stretto.model.tasks import Decode, LLMTask
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.synthetic_output import SyntheticOutput

_LEVEL_S = 1e-6
_MAX_JUMP = 256


@dataclass(frozen=True, slots=True)
class PlannedLLM:
    """An emulated LLM server whose model, costs and memory have been checked.

    Attributes:
        tensor_parallel: number of its devices.
        sizes: sizes of the model.
        loading_s: emulated seconds before it answers.
        arrival_s: emulated seconds of a request's way from the port to the instance, besides those that the
            emulated server needs: HTTP, checks of the request, and the way between the server's processes.
    """

    preset: Preset
    tensor_parallel: int
    sizes: LLMModel
    served: EmulatedModel
    simulated: SimulatedModel
    loading_s: float
    arrival_s: float = 0.0


def check_llm(wanted: WantedServer, device: str) -> PlannedLLM:
    """Look up the costs of an emulated server, and check that its model and KV cache fit its devices.

    Raises:
        ConfigError: a name or a number cannot be used.
    """
    if not wanted.model:
        raise ConfigError("an LLM needs a model; it has none")
    preset = llm_device(device)
    sizes = llm_model(wanted.model, preset)
    tensor_parallel, reports_kv = len(wanted.devices), wanted.kv_events is not None
    cost = preset.step_cost(sizes, tensor_parallel)
    assert preset.hardware is not None
    if not 0 < wanted.memory_share <= 1:
        raise ConfigError(f"the share of memory is {wanted.memory_share}; it must be above 0, at most 1")
    num_tokens = check_fits(
        sizes, preset.hardware, tensor_parallel, wanted.memory_share, wanted.max_batch_tokens
    )
    longest = sizes.max_context_tokens if wanted.max_context_tokens is None else wanted.max_context_tokens
    if longest < 2:
        raise ConfigError(f"the longest context is {longest} tokens; it must be at least 2")
    num_blocks = num_tokens // wanted.block_tokens if wanted.block_tokens > 0 else 0
    if longest > num_blocks * wanted.block_tokens:
        raise ConfigError(
            f"the KV cache of {wanted.model} on {tensor_parallel} × {preset.name} holds {num_tokens} "
            f"tokens; a context of {longest} does not fit: shorten it, or give the server more memory"
        )
    scheduler = SchedulerConfig(
        num_blocks,
        wanted.block_tokens,
        max_running=wanted.max_sequences,
        max_batch_tokens=wanted.max_batch_tokens,
        num_groups=1,
        level_s=_LEVEL_S,
        with_events=reports_kv,
        shares_partial_blocks=False,
    )
    scheduler.check()
    loading_s = wanted.loading_s
    if loading_s is None:
        loading_s = preset.loading_s(sizes, tensor_parallel) or 0.0
    return PlannedLLM(
        preset,
        tensor_parallel,
        sizes,
        EmulatedModel(
            wanted.served_name or wanted.model,
            wanted.tokenizer or wanted.model,
            longest,
            wanted.scheduling == "priority",
            FOUR_CHARACTERS if wanted.tokenizer is None else load_tokens(wanted.tokenizer),
            Script() if wanted.replies is None else read_replies(wanted.replies),
        ),
        SimulatedModel(
            scheduler,
            cost,
            _unasked,
            max_jump=wanted.block_tokens if reports_kv else _MAX_JUMP,  # events come at the end of jumps
            keeps_released=True,
            caches=wanted.caches_prefixes,
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
        from stretto.emulate.model_tokens import EmulatedTokens
    return EmulatedTokens(Path(folder))


def _unasked(task: LLMTask, decode: Decode) -> SyntheticOutput:
    raise AssertionError("the answers of an emulated server are written before its requests are queued")
