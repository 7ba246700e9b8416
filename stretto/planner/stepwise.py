"""The steps of a simulated LLM instance whose requests arrive while it runs, interval by interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stretto.llm.scheduler_config import SchedulerConfig
from stretto.planner.fast_scheduler import FastScheduler
from stretto.planner.step_log import StepLog
from stretto.planner.whole_prefills import steps


class Stepwise(Protocol):
    """A simulated instance that is asked for one interval after the other.

    Attributes:
        num_preemptions: number of preemptions so far.
    """

    num_preemptions: int

    @property
    def log(self) -> StepLog:
        """Log of the steps so far."""
        ...

    @property
    def step(self) -> int:
        """Number of the next decode step."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether some request has not been started, or was preempted."""
        ...

    def add(self, prompts: Sequence[int], outputs: Sequence[int]) -> None:
        """Add requests to the end of the queue: tokens of their prompts and of their answers."""
        ...

    def has_work(self) -> bool:
        """Return whether some request has not ended."""
        ...

    def advance(self, max_steps: int) -> None:
        """Simulate the next step, or up to `max_steps` decode steps between which nothing is decided."""
        ...


def stepwise(config: SchedulerConfig) -> Stepwise:
    """Return an instance without requests.

    Raises:
        ConfigError: the configuration cannot work.
    """
    return WholePrefills(config) if config.policy == "prefill_first" else FastScheduler(config)


class WholePrefills:
    """An instance with policy `prefill_first`.

    Raises:
        ConfigError: the configuration cannot work.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        config.check()
        self.log = log = StepLog()
        self.num_preemptions = 0
        self._prompts: list[int] = []
        self._outputs: list[int] = []
        self._num_waiting = 0
        self._most_steps = [0]
        self._steps = steps(
            self._prompts,
            self._outputs,
            self._most_steps,
            log.lists(),
            *(config.num_blocks, config.block_tokens, config.max_running),
            *(config.max_batch_tokens, config.lookahead),
            pauses=True,
        )

    def add(self, prompts: Sequence[int], outputs: Sequence[int]) -> None:
        """Add requests to the end of the queue. They must have passed `check_requests`."""
        self._prompts += prompts
        self._outputs += outputs
        self._num_waiting += len(prompts)

    @property
    def step(self) -> int:
        """Number of the next decode step."""
        log = self.log
        return log.first[-1] + (log.repeats[-1] if log.num_decodes[-1] else 0) if log.first else 0

    @property
    def is_waiting(self) -> bool:
        """Whether some request has not been started, or was preempted."""
        return self._num_waiting > 0

    def has_work(self) -> bool:
        """Return whether some request has not ended."""
        return len(self.log.ended) < 2 * len(self._prompts)

    def advance(self, max_steps: int) -> None:
        """Simulate the next step, or up to `max_steps` decode steps between which nothing is decided."""
        self._most_steps[0] = max_steps
        self.num_preemptions, self._num_waiting = next(self._steps)
