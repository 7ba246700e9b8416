"""The part of `stretto replay` for traces of agents: their replay on simulated GPU servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from stretto.cli.load_table import print_load_report
from stretto.cli.names import DEVICE, MODEL
from stretto.cluster.placements.table import check_placement
from stretto.costs.kv_room import check_fits
from stretto.costs.presets import Preset, load_preset
from stretto.engines.scripted.standin import StandIn, StandInConfig
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import ConfigError
from stretto.model.profile import Profile
from stretto.model.replica import Replica
from stretto.sched.orders import check_policy
from stretto.sim.agent_load import simulate_agents
from stretto.sim.simulated_model import SimulatedModel, preset_models
from stretto.sim.synthetic_output import OutputSource
from stretto.trace.agents.formats import agent_format, read_agent_trace
from stretto.trace.agents.load_report import summarise_load
from stretto.trace.lines import TraceError

_ENGINE = "llm"
_BLOCK_TOKENS = 16
_MAX_RUNNING = 256
_MAX_BATCH_TOKENS = 2048
_PLANNING = Profile(base_s=0.02, per_unit_s=0.0001, per_output_s=0.02)


def is_agent_trace(file: Path) -> bool:
    """Return whether a file is a trace of agents."""
    try:
        return agent_format(file) is not None
    except TraceError:
        return False


def replay_agents(
    file: Path,
    instances: Mapping[str, int],
    policy: str | None,
    model: str | None,
    device: str | None,
    placement: str | None = None,
    *,
    as_json: bool,
) -> None:
    """Replay a trace of agents on simulated instances of an LLM, and print what was measured.

    Raises:
        ConfigError: an engine, a policy, a placement, a model or a device is unknown.
        TraceError: the trace does not fit its format.
    """
    if unknown := [name for name in instances if name != _ENGINE]:
        raise ConfigError(f"there is no engine {unknown[0]!r} in a trace of agents; there is {_ENGINE}")
    if policy is not None:
        check_policy(policy)
    if placement is not None:
        check_placement(placement)
    preset = load_preset(device or DEVICE)
    sizes = preset.model(model or MODEL)
    if preset.hardware is None:
        raise ConfigError(f"preset {preset.name} has no step costs")
    kv_tokens = check_fits(sizes, preset.hardware, 1)
    llm = _llm(instances.get(_ENGINE, 1), policy, placement, kv_tokens)
    model_of = _models(preset, sizes.name, kv_tokens)
    trace = read_agent_trace(file)
    report = summarise_load(trace, simulate_agents(trace, llm, model_of))
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print_load_report(report)


def _llm(instances: int, policy: str | None, placement: str | None, kv_tokens: int) -> Deployment:
    chosen = {"policy": policy, "placement": placement}
    settings = {name: value for name, value in chosen.items() if value is not None}
    return deploy(
        _ENGINE,
        StandIn,
        StandInConfig(),
        instances=instances,
        contract="llm",
        max_running=_MAX_RUNNING,
        keeps_state=True,
        timeout_s=None,
        profile=_PLANNING,
        kv_tokens=kv_tokens,
        **settings,
    )


def _models(
    preset: Preset, model: str, kv_tokens: int
) -> Callable[[OutputSource], Callable[[Replica], SimulatedModel]]:
    scheduler = SchedulerConfig(
        kv_tokens // _BLOCK_TOKENS,
        block_tokens=_BLOCK_TOKENS,
        max_running=_MAX_RUNNING,
        max_batch_tokens=_MAX_BATCH_TOKENS,
        with_events=True,
    )
    return lambda output: preset_models(preset, model, scheduler, output, keeps_released=True)
