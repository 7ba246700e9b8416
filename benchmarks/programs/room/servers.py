"""The simulated servers: Llama-2-7b on an A100, step by step, with a chosen share of its KV memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.common.fake_engines import FakeLLM
from benchmarks.programs.room.load import Agents, Load, Measured
from benchmarks.programs.room.sessions import Session
from stretto.costs.kv_room import check_fits
from stretto.costs.presets import load_preset
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import Deployment, deploy
from stretto.sim.driver import VirtualDriver
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.synthetic_output import filler_output, lengths_by_query
from stretto.sizing.servers import llm_profile

MODEL = "Llama-2-7b-hf"
DEVICE = "A100-80G"
_BLOCK_TOKENS = 16
_LEVEL_S = 1e-6


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a run.

    Attributes:
        memory: KV memory, in those of the device.
        told: what the schedulers are told of the memory, in its true size; 0 tells nothing.
        holds: whether programs wait while there is no room for them.
        is_unmodified: whether an instance schedules as an unmodified server does: it finds prefixes in whole
            blocks, and serves what waits there in order.
    """

    number: int = 1
    memory: float = 1.0
    told: float = 1.0
    holds: bool = False
    max_running: int = 16
    placement: str = "stretto"
    is_unmodified: bool = False

    def run(self, load: Load, sessions: Sequence[Session], seed: int) -> Measured:
        """Run a load to its end."""
        agents = Agents(load, sessions, seed)
        driver = VirtualDriver(
            [self._deployment()],
            models={"llm": self._model(agents)},
            keeps=False,
            observers=(agents,),
            on_reply=agents.on_reply,
        )
        agents.attach(driver)
        driver.run()
        return agents.measured

    def _deployment(self) -> Deployment:
        preset = load_preset(DEVICE)
        cost = preset.step_cost(preset.model(MODEL), 1)
        told = int(self.told * self._kv_tokens) or None
        return deploy(
            "llm",
            FakeLLM,
            contract="llm",
            instances=self.number,
            max_running=self.max_running,
            placement=self.placement,
            timeout_s=None,
            holds_programs=self.holds,
            max_batch=self._kv_tokens,
            kv_tokens=told,
            profile=llm_profile(cost),
        )

    @property
    def _kv_tokens(self) -> int:
        preset = load_preset(DEVICE)
        assert preset.hardware is not None
        return int(self.memory * check_fits(preset.model(MODEL), preset.hardware, 1))

    def _model(self, agents: Agents) -> SimulatedModel:
        preset = load_preset(DEVICE)
        scheduler = SchedulerConfig(
            self._kv_tokens // _BLOCK_TOKENS,
            block_tokens=_BLOCK_TOKENS,
            max_running=self.max_running,
            max_batch_tokens=512,
        )
        if self.is_unmodified:
            scheduler = replace(scheduler, num_groups=1, level_s=_LEVEL_S, shares_partial_blocks=False)
        return SimulatedModel(
            scheduler,
            preset.step_cost(preset.model(MODEL), 1),
            filler_output(lengths_by_query(agents.lengths)),
            keeps_released=True,
        )
