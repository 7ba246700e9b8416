"""A machine with several equal devices: which of them can serve a model together, and how fast.

A group of `tp` devices is aligned: its first device's number is a multiple of `tp`. So two devices are always
a pair that NVLink connects, where there are such pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from stretto.costs.carried_over import MEASURED, carried_over, gpu_costs, without_nvlink
from stretto.costs.known_costs import llm_device, llm_model
from stretto.costs.known_models import KNOWN_MODELS
from stretto.costs.kv_room import check_fits
from stretto.costs.loading import PCIE_BYTES_S, Source, StartTimes, Storage
from stretto.costs.presets import Preset, load_preset
from stretto.costs.shape import Hardware, LLMModel
from stretto.costs.step import StepCost
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.model.errors import ConfigError
from stretto.model.nearest_name import nearest_name
from stretto.planner.application import model_name

_BLOCK_TOKENS = 16
_MAX_RUNNING = 512
_TP_DEGREES = (1, 2, 4, 8)
_MEMORY_SHARE = 0.9  # of each device, for weights and KV blocks together


USUAL_STORAGE = Storage(disk_bytes_s=3e9, link_bytes_s=PCIE_BYTES_S)
"""Usual speeds, not measured: one NVMe disk, and PCIe 4 with 16 lanes."""


@dataclass(frozen=True, slots=True)
class PlanMachine:
    """A machine that can run several replicas of LLMs at once.

    Attributes:
        gpu: kind of its devices: name of a GPU, peak figures of one that has no name here, path of a file
            with the costs of one, which ends in ".json", or these costs.
        storage: how fast it moves weights.
        memory_bytes: memory of each device; None for that of the GPU.
        has_nvlink: whether devices exchange data as where their costs were measured; else they do over the
            links to the host.
        device: word for one of its devices.
        policy: how servers mix prompts and decodes in steps; whole prompts first, as the vLLM did whose runs
            were measured.
    """

    name: str
    num_devices: int
    gpu: str | Hardware | Preset
    storage: Storage = USUAL_STORAGE
    memory_bytes: float | None = None
    has_nvlink: bool = True
    device: str = "GPU"
    policy: str = "prefill_first"

    def with_chunked_prefill(self) -> PlanMachine:
        """Return the machine with servers that compute prompts beside decodes, as those of today do."""
        return replace(self, policy="chunked")

    @property
    def costs(self) -> Preset:
        """Costs of one device.

        Raises:
            ConfigError: a file of costs cannot be used.
        """
        if isinstance(self.gpu, Preset):
            return self.gpu
        return _costs(self.gpu, self.memory_bytes, None if self.has_nvlink else self.storage.link_bytes_s)


@cache
def _costs(gpu: str | Hardware, memory_bytes: float | None, exchange_bytes_s: float | None) -> Preset:
    if isinstance(gpu, Hardware):
        preset = carried_over(load_preset(MEASURED), gpu)
    elif gpu.endswith(".json"):
        preset = llm_device(gpu)
    else:
        preset = gpu_costs(gpu)
    if memory_bytes is not None:
        assert preset.hardware is not None
        preset = replace(preset, hardware=replace(preset.hardware, memory_bytes=memory_bytes))
    return preset if exchange_bytes_s is None else without_nvlink(preset, exchange_bytes_s)


MACHINES: Mapping[str, PlanMachine] = {
    machine.name: machine
    for machine in (
        PlanMachine("8xA100-80G", 8, "A100-80G"),
        PlanMachine("4xA100-80G", 4, "A100-80G"),
        PlanMachine("4xA6000", 4, "A6000", has_nvlink=False),
        PlanMachine("8xH100", 8, "H100-80G"),
        PlanMachine("1xH200", 1, "H200"),
    )
}


def machine_of(name: str) -> PlanMachine:
    """Return the machine of this name, in any case.

    Raises:
        ConfigError: there is none; the message names those that there are.
    """
    return MACHINES[nearest_name(name, MACHINES, "there is no machine")]


@dataclass(frozen=True, slots=True)
class ReplicaCost:
    """The costs of one replica of a model.

    Attributes:
        scheduler: configuration of its local scheduler; the number of KV blocks is what its devices hold.
        step: predicted seconds of a step.
        start: predicted time from its start until it serves.
        is_estimated: whether the model's own steps or starts were not measured on this device, so that
            numbers of other models or devices are used.
    """

    scheduler: SchedulerConfig
    step: StepCost
    start: StartTimes
    is_estimated: bool

    @property
    def loading_s(self) -> float:
        """Predicted seconds from its start until it serves, if the disk does not hold it up."""
        return self.start.seconds


def planned_model(name: str, machine: PlanMachine) -> LLMModel:
    """Return the sizes of a model: known by name, in any case, with or without its owner, or those of a
    directory with a `config.json`.

    Raises:
        ConfigError: it is not known; the message names the nearest.
    """
    return llm_model(model_name(name), machine.costs)


def scheduler_config(model: LLMModel, num_tokens: int, policy: str = "prefill_first") -> SchedulerConfig:
    """Return how planners take a replica to schedule its steps, if it has KV room for `num_tokens` tokens."""
    return SchedulerConfig(
        num_tokens // _BLOCK_TOKENS,
        _BLOCK_TOKENS,
        _MAX_RUNNING,
        max(2048, model.max_context_tokens),
        policy,
        lookahead=_MAX_RUNNING,
    )


def costs_by_tp(
    model: LLMModel, machine: PlanMachine, max_tokens: int, weights: Source = "cache"
) -> dict[int, ReplicaCost]:
    """Return the costs of one replica of a model, by number of devices that it can run on.

    A number of devices is possible if the weights and one whole sequence fit, and step times are known.

    Args:
        max_tokens: longest sequence, prompt and answer together.
        weights: place of the weights before the first start.

    Raises:
        ConfigError: there is none; the message says what would fit.
    """
    preset = machine.costs
    max_batch_tokens = scheduler_config(model, 0).max_batch_tokens
    found: dict[int, ReplicaCost] = {}
    reasons = [f"{preset.name} has no step costs of models on as many devices"]
    assert preset.hardware is not None
    for tp in _TP_DEGREES:
        if tp > machine.num_devices or not preset.has_steps_on(tp):
            continue
        try:
            num_tokens = check_fits(model, preset.hardware, tp, max_batch_tokens=max_batch_tokens)
            step = preset.step_cost(model, tp)
        except ConfigError as error:
            reasons.append(error.message)
            continue
        if num_tokens < max_tokens + _BLOCK_TOKENS:
            reasons.append(f"on {tp} devices there is KV room for {num_tokens} tokens, not for {max_tokens}")
            continue
        scheduler = scheduler_config(model, num_tokens, machine.policy)
        start = preset.start(model, tp, weights, machine.storage)
        found[tp] = ReplicaCost(scheduler, step, start, not _is_measured(preset, model, tp))
    if not found:
        hint = _hint(preset, machine, model)
        raise ConfigError(f"{machine.name} cannot run {model.name}: {reasons[-1]}{hint}")
    return found


def _is_measured(preset: Preset, model: LLMModel, tp: int) -> bool:
    """Return whether steps and starts of a model were measured on `tp` devices."""
    key = f"{model.name}|tp{tp}"
    are_steps_known = key in preset.numbers or key in preset.regressions
    return are_steps_known and preset.loading is not None and key in preset.loading.measured_s


def _hint(preset: Preset, machine: PlanMachine, model: LLMModel) -> str:
    """Return words that name the largest known model which is smaller, and whose weights would fit."""
    assert preset.hardware is not None
    room = _MEMORY_SHARE * preset.hardware.memory_bytes * machine.num_devices
    models = {**KNOWN_MODELS, **preset.models}.values()
    fitting = [one for one in models if one.weight_bytes < min(room, model.weight_bytes)]
    return f"; {max(fitting, key=lambda one: one.weight_bytes).name} would fit" if fitting else ""
