"""The servers that a fleet is made of: a model on GPUs of one kind, as the simulator takes it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stretto.costs.kv_room import kv_device_bytes
from stretto.costs.loading import PCIE_BYTES_S
from stretto.costs.presets import Preset
from stretto.costs.shape import LLMModel, StepShape
from stretto.costs.step import StepCost
from stretto.engines.scripted.standin import StandIn, StandInConfig
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.profile import Profile
from stretto.model.replica import Replica
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.synthetic_output import OutputSource
from stretto.sizing.traffic import SERVER_BLOCK_TOKENS

ENGINE = "llm"
MAX_RUNNING = 256
MAX_BATCH_TOKENS = 2048
_TYPICAL_CONTEXT = 400
_LEVEL_S = 1e-6
"""Ranks are times of arrival, of which none is overtaken."""


@dataclass(frozen=True)
class Server:
    """One replica of a model on GPUs of one kind.

    Attributes:
        gpu: name of the kind of GPU.
        host_kv_tokens: tokens whose KV is kept in host memory.
        is_measured: whether steps of this model on this GPU were measured; if not, they are estimates.
    """

    gpu: str
    num_gpus: int
    model: LLMModel
    cost: StepCost
    kv_tokens: int
    is_measured: bool
    host_kv_tokens: int = 0

    @property
    def host_token_s(self) -> float:
        """Seconds to load the KV of a token from host memory; 0 if there is none."""
        return kv_device_bytes(self.model, self.num_gpus) / PCIE_BYTES_S if self.host_kv_tokens else 0.0

    @property
    def label(self) -> str:
        """The server in words, such as "H100-80G" or "2xH100-80G"."""
        return self.gpu if self.num_gpus == 1 else f"{self.num_gpus}x{self.gpu}"

    def replica(self) -> Replica:
        """Return the declaration of the server."""
        return Replica(
            StandIn,
            StandInConfig(),
            runs_in="loop",  # as a server does, which may run on several devices
            tp=self.num_gpus,
            profile=replace(llm_profile(self.cost), host_token_s=self.host_token_s),
            kv_tokens=self.kv_tokens,
        )

    def simulated(self, output: OutputSource, block_tokens: int, *, reports_kv: bool) -> SimulatedModel:
        """Return the simulated server, whose KV blocks have so many tokens. It takes requests in order, as
        unmodified servers do.

        Args:
            block_tokens: tokens of a KV block. Servers have blocks of 16 and reuse whole ones alone; of
                longer ones, which are simulated faster, the tokens before a difference are reused too.
            reports_kv: whether it tells what its cache holds, which changes nothing where it is the only one.
        """
        scheduler = SchedulerConfig(
            self.kv_tokens // block_tokens,
            block_tokens=block_tokens,
            max_running=MAX_RUNNING,
            max_batch_tokens=MAX_BATCH_TOKENS,
            num_groups=1,
            level_s=_LEVEL_S,
            with_events=reports_kv,
            host_blocks=self.host_kv_tokens // block_tokens,
            shares_partial_blocks=block_tokens > SERVER_BLOCK_TOKENS,
        )
        return SimulatedModel(
            scheduler,
            self.cost,
            output,
            takes_hints=False,
            keeps_released=True,
            host_token_s=self.host_token_s,
        )


def is_measured(costs: Preset, model: LLMModel, num_gpus: int) -> bool:
    """Return whether the steps of a model were measured on so many GPUs."""
    key = f"{model.name}|tp{num_gpus}"
    return costs.stands_in is None and (key in costs.numbers or key in costs.regressions)


def llm_profile(cost: StepCost) -> Profile:
    """Return the straight lines that come nearest to a step cost, for passes and load balancing."""
    output_s = cost.step_s(_decodes(1))
    token_s = (cost.step_s(_prompt(512)) - cost.step_s(_prompt(128))) / 384
    neighbour_s = max(0.0, cost.step_s(_decodes(2)) - output_s)
    return Profile(
        output_s, token_s, max_efficient_batch=1, per_output_s=output_s, per_neighbour_s=neighbour_s
    )


def _prompt(num_tokens: int) -> StepShape:
    return StepShape(1, num_tokens, num_tokens, num_tokens * (num_tokens + 1) // 2)


def _decodes(number: int) -> StepShape:
    return StepShape(
        num_decodes=number, context_tokens=number * _TYPICAL_CONTEXT, max_context_tokens=_TYPICAL_CONTEXT
    )
