"""The prediction whether this machine can emulate a fleet in real time."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.costs.shape import StepShape
from stretto.emulate.fleet import PlannedBatches, PlannedFleet, PlannedServer
from stretto.emulate.llm_plan import PlannedLLM
from stretto.model.errors import ConfigError

STEP_S = 150e-6
"""Processor seconds of a step, besides those of its sequences. Measured on one 2.x GHz server core."""
SEQUENCE_S = 2.5e-6
"""Processor seconds of one sequence in a step."""
STREAMED_S = 28e-6
"""Additional processor seconds of a token that is sent by itself: 20 µs to make it, 8 µs for the socket."""
TEXT_S = {"embedding": 350e-6, "reranking": 200e-6}
"""Processor seconds of a text's vector or score, for texts of 120 words."""
_TYPICAL_CONTEXT = 512
_MAX_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class PredictedLoad:
    """The predicted load of this machine's cores by a fleet at full load.

    Attributes:
        whole: share of one core if no answer is streamed.
        streamed: share of one core if all answers are.
        num_streams: number of answers that can be streamed at once.
    """

    whole: float
    streamed: float
    num_streams: int


@dataclass(frozen=True, slots=True)
class _ServerLoad:
    """The predicted load of a core by one server at full load.

    Attributes:
        whole: share of the core if no answer is streamed.
        streams: share of the core that streaming all answers adds.
        num_sequences: number of answers that it can stream at once.
    """

    whole: float
    streams: float = 0.0
    num_sequences: int = 0


def predict_load(fleet: PlannedFleet, num_cores: int = 1) -> PredictedLoad:
    """Return the load of a fleet whose servers all run as much as they can, on `num_cores` cores."""
    loads = [_load_of(server, fleet.speed) for server in fleet.servers]
    whole, streams = sum(load.whole for load in loads), sum(load.streams for load in loads)
    room = max(0.0, _MAX_SHARE * num_cores - whole)
    share = min(1.0, room / streams) if streams else 1.0
    num_streams = int(share * sum(load.num_sequences for load in loads))
    return PredictedLoad(whole, whole + streams, num_streams)


def check_real_time(fleet: PlannedFleet, num_cores: int) -> PredictedLoad:
    """Return the predicted load of a fleet.

    Args:
        num_cores: cores that it can use: as many as it has processes.

    Raises:
        ConfigError: even without streams the LLM servers would keep the cores too busy at full load, or one
            of them would a single core. Embedding and reranking servers are seldom busy for long, and are
            not counted.
    """
    load = predict_load(fleet, num_cores)
    alone = [
        _load_of(server, fleet.speed).whole if isinstance(server.service, PlannedLLM) else 0.0
        for server in fleet.servers
    ]
    largest = max(alone, default=0.0)
    if (share := max(sum(alone) / num_cores, largest)) > _MAX_SHARE:
        slower = fleet.speed * _MAX_SHARE / share
        needs = f"it would need {sum(alone):.1f} cores and has {num_cores}"
        if largest == share:
            needs = f"server {alone.index(largest)} would need {largest:.1f} cores and can use 1"
        raise ConfigError(
            f"this machine cannot emulate the fleet in real time: at full load {needs}; "
            f"use --speed {slower:.2g} or fewer servers"
        )
    return load


def _load_of(server: PlannedServer, speed: float) -> _ServerLoad:
    match server.service:
        case PlannedLLM(simulated=model):
            config = model.scheduler
            num = max(1, min(config.max_running, config.num_blocks * config.block_tokens // _TYPICAL_CONTEXT))
            shape = StepShape(
                num_decodes=num, context_tokens=num * _TYPICAL_CONTEXT, max_context_tokens=_TYPICAL_CONTEXT
            )
            steps_per_s = speed / model.cost.step_s(shape)
            whole = (STEP_S + num * SEQUENCE_S) * steps_per_s
            return _ServerLoad(whole, num * STREAMED_S * steps_per_s, num)
        case PlannedBatches(kind=kind, profile=profile):
            num = profile.max_efficient_batch
            return _ServerLoad(speed * num * TEXT_S[kind] / profile.batch_s(num))
