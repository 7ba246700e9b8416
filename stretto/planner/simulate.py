"""Chooses how the steps of one LLM instance are simulated, if no call waits for those of other instances."""

from __future__ import annotations

import sys

import numpy as np

from stretto.costs.step_arrays import Ints
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.model.errors import CapacityError, ConfigError
from stretto.planner.compiled import Simulation, compiled
from stretto.planner.fast_scheduler import numbers_of, simulate
from stretto.planner.fast_state import MAX_REQUESTS
from stretto.planner.step_log import StepColumns

_FEW_CALLS = 2048


def simulate_steps(
    config: SchedulerConfig, prompts: Ints, outputs: Ints, previous: Ints
) -> tuple[StepColumns, Ints]:
    """Simulate until all calls have ended.

    A call is there from the beginning, or from the end of the call `previous` on, if that is not -1. Returns
    the steps, and the call of each request in them.

    Raises:
        CapacityError: a call would not fit even if it were alone.
        ConfigError: the configuration or a call cannot work, or there are too many calls.
    """
    numbers = numbers_of(config)
    check_requests(config, prompts, outputs)
    if (run := _compiled(len(prompts))) is not None:
        *columns, order = run(prompts, outputs, previous, numbers)
    else:
        *columns, order = simulate(prompts.tolist(), outputs.tolist(), previous.tolist(), numbers)
    return StepColumns(*columns), order


def _compiled(num_calls: int) -> Simulation | None:
    """Return the compiled simulation, if there are enough calls that loading it is worth it."""
    return compiled() if num_calls > _FEW_CALLS or "numba" in sys.modules else None


def most_blocks(config: SchedulerConfig, prompts: Ints, outputs: Ints) -> int:
    """Return a number of KV blocks with which nothing waits for blocks: more of them change no step.

    At most `max_running` requests have blocks, and `lookahead` more are considered; each may need a block for
    its next token, and one for its first.
    """
    blocks = np.sort((prompts + outputs) // config.block_tokens)[-config.max_running - config.lookahead :]
    return int(blocks.sum()) + 3 * len(blocks) + 1


def check_requests(config: SchedulerConfig, prompts: Ints, outputs: Ints) -> None:
    """Check that each request can run: it has a prompt and an answer, and fits alone.

    Raises:
        CapacityError: a request would not fit even if it were alone.
        ConfigError: a request has no prompt or no answer, or there are too many.
    """
    if len(prompts) > MAX_REQUESTS:
        raise ConfigError(f"at most {MAX_REQUESTS} requests can be simulated, got {len(prompts)}")
    wrong = np.flatnonzero((prompts < 1) | (outputs < 1))
    if len(wrong):
        prompt, output = prompts[wrong[0]], outputs[wrong[0]]
        raise ConfigError(f"a request needs a prompt and an answer, got {prompt} and {output} tokens")
    most = config.num_blocks * config.block_tokens
    if (longest := int((prompts + outputs).max(initial=0))) > most:
        raise CapacityError(f"{longest} tokens do not fit; the KV blocks hold {most}")
