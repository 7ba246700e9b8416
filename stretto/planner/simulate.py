"""Chooses how the steps of one LLM instance are simulated, if all its requests are there at the beginning."""

from __future__ import annotations

import numpy as np

from stretto.costs.step_arrays import Ints
from stretto.errors import CapacityError, ConfigError
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.planner.compiled import compiled
from stretto.planner.fast_scheduler import FastScheduler
from stretto.planner.idle_blocks import MAX_REQUESTS
from stretto.planner.step_log import StepColumns
from stretto.planner.whole_prefills import simulate


def simulate_steps(config: SchedulerConfig, prompts: Ints, outputs: Ints) -> StepColumns:
    """Simulate until all requests have ended.

    Raises:
        CapacityError: a request would not fit even if it were alone.
        ConfigError: the configuration or a request cannot work, or there are too many requests.
    """
    if config.policy != "prefill_first":
        scheduler = FastScheduler(config)
        scheduler.add(prompts.tolist(), outputs.tolist())
        return scheduler.run().columns()
    config.check()
    check_requests(config, prompts, outputs)
    numbers = (
        config.num_blocks,
        config.block_tokens,
        config.max_running,
        config.max_batch_tokens,
        config.lookahead,
    )
    run = compiled()
    found = run(prompts, outputs, *numbers) if run else simulate(prompts.tolist(), outputs.tolist(), *numbers)
    return StepColumns(*found[:-1])


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
