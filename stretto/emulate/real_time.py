"""The prediction whether this machine can emulate a fleet in real time."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.costs.shape import StepShape
from stretto.emulate.fleet import PlannedFleet
from stretto.emulate.llm_plan import PlannedLLM
from stretto.errors import ConfigError

STEP_S = 150e-6
"""Processor seconds of a step, besides those of its sequences. Measured on one 2.x GHz server core."""
SEQUENCE_S = 2.5e-6
"""Processor seconds of one sequence in a step."""
STREAMED_S = 28e-6
"""Additional processor seconds of a token that is sent by itself: 20 µs to make it, 8 µs for the socket."""
_TYPICAL_CONTEXT = 512
_MAX_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class PredictedLoad:
    """How busy a fleet at full load keeps the cores of this machine.

    Attributes:
        whole: share of one core if no answer is streamed.
        streamed: share of one core if all answers are.
        num_streams: number of answers that can be streamed at once.
    """

    whole: float
    streamed: float
    num_streams: int


def predict_load(fleet: PlannedFleet) -> PredictedLoad:
    """Return the load of a fleet whose servers all run as many sequences as they can."""
    whole = streamed = 0.0
    num_sequences = 0
    for server in fleet.servers:
        if isinstance(server.service, PlannedLLM):
            config = server.service.simulated.scheduler
            num = max(1, min(config.max_running, config.num_blocks * config.block_tokens // _TYPICAL_CONTEXT))
            shape = StepShape(
                num_decodes=num, context_tokens=num * _TYPICAL_CONTEXT, max_context_tokens=_TYPICAL_CONTEXT
            )
            steps_per_s = fleet.speed / server.service.simulated.cost.step_s(shape)
            whole += (STEP_S + num * SEQUENCE_S) * steps_per_s
            streamed += num * STREAMED_S * steps_per_s
            num_sequences += num
    room = max(0.0, _MAX_SHARE - whole)
    share = min(1.0, room / streamed) if streamed else 1.0
    return PredictedLoad(whole, whole + streamed, int(share * num_sequences))


def check_real_time(fleet: PlannedFleet, num_cores: int) -> PredictedLoad:
    """Return the predicted load of a fleet.

    Args:
        num_cores: cores that it can use: as many as it has processes.

    Raises:
        ConfigError: even without streams the fleet would keep the cores too busy at full load.
    """
    load = predict_load(fleet)
    if load.whole > _MAX_SHARE * num_cores:
        slower = fleet.speed * _MAX_SHARE * num_cores / load.whole
        raise ConfigError(
            f"this machine cannot emulate the fleet in real time: at full load it would need "
            f"{load.whole:.1f} cores and has {num_cores}; use --speed {slower:.2g} or fewer servers"
        )
    return load
