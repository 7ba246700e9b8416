"""The description of a simulated LLM instance, and the interface to its simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stretto.cluster.kv_events import KVEvent
from stretto.cluster.prompt_keys import PromptSpace, token_space
from stretto.costs.presets import Preset
from stretto.costs.step import StepCost
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.replica import Replica
from stretto.model.values import Prompt
from stretto.sched.messages import Event
from stretto.sched.observer import StepsDone
from stretto.sim.prompt_hashes import made_up_hashes
from stretto.sim.synthetic_output import OutputSource, prompt_ids


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """The description of an LLM engine whose instances are simulated step by step.

    Attributes:
        scheduler: configuration of each instance's local scheduler.
        cost: predicted seconds of a step.
        output_source: function that gives the made-up output of a task.
        max_jump: largest number of steps computed at once; 1 takes each by itself.
        takes_hints: whether the server knows ranks of requests, and when prefixes are needed again. One that
            does not takes requests in the order in which they come.
        keeps_released: whether the prefixes of a query that has ended stay until their room is needed.
        caches: whether prefixes are found again; if not, every prompt is computed whole.
        reads_shared_once: whether attention reads a prefix that several decodes of a step share once, instead
            of once for each of them.
        tokenize: function from a prompt to its tokens.
        host_token_s: seconds to load the KV of a token from host memory, if the scheduler has blocks there. A
            step waits for what is loaded for it.
        loading_s: predicted seconds until an instance that is started can serve, unless its replica predicts
            them. The instances of the beginning are ready at once.
    """

    scheduler: SchedulerConfig
    cost: StepCost
    output_source: OutputSource
    max_jump: int = 256
    takes_hints: bool = True
    keeps_released: bool = False
    caches: bool = True
    reads_shared_once: bool = False
    tokenize: Callable[[Prompt], list[int]] = prompt_ids
    host_token_s: float = 0.0
    loading_s: float = 0.0

    @property
    def space(self) -> PromptSpace | None:
        """Rule by which the instances cut prompts into the cache blocks that they report: the tokenizer and
        the block length; None if they report none.
        """
        if not (self.scheduler.with_events and self.caches):
            return None
        name = f"{self.tokenize.__module__}.{self.tokenize.__qualname__}"
        size = self.scheduler.block_tokens
        if self.tokenize is prompt_ids:
            return PromptSpace(f"{name}/{size}", size, made_up_hashes(size))
        return token_space(name, size, self.tokenize)


def preset_models(
    preset: Preset,
    model: str,
    scheduler: SchedulerConfig,
    output_source: OutputSource,
    loading_s: float = 0.0,
    **settings: Any,
) -> Callable[[Replica], SimulatedModel]:
    """Return a function from a replica to its simulated model, as the simulator takes it for engines that are
    simulated step by step.

    The seconds of a step and of a start are those that the preset (numbers measured for one kind of machine)
    has for `model` on the replica's number of devices.

    Args:
        loading_s: seconds of a start if the preset has no times of starts.
        settings: further attributes of `SimulatedModel`, by name.

    Raises:
        ConfigError: the preset has no such model. The returned function raises it for a number of devices
            for which the preset knows no cost.
    """
    sizes = preset.model(model)

    def model_of(replica: Replica) -> SimulatedModel:
        cost, start_s = preset.step_cost(sizes, replica.tp), preset.loading_s(sizes, replica.tp)
        start_s = loading_s if start_s is None else start_s
        return SimulatedModel(scheduler, cost, output_source, loading_s=start_s, **settings)

    return model_of


class Surroundings(Protocol):
    """The interface of the simulator to an LLM instance that is simulated step by step: the clock, the faults
    of the run, and the observers.
    """

    @property
    def now_s(self) -> float:
        """Present time, in seconds since the run began."""
        ...

    def at(self, at_s: float, happen: Callable[[], Sequence[Event]], rank: int = 0) -> None:
        """Plan to call `happen` at the time `at_s`. The events that it returns go to the schedulers."""
        ...

    def at_last(self, happen: Callable[[], Sequence[Event]], rank: int = 0) -> None:
        """Plan to call `happen` at the present time, but after all calls that `at` plans for this time."""
        ...

    def slowness(self, engine: str, instance: int, at_s: float) -> float:
        """Return the factor by which faults slow an instance down at time `at_s`; 1 without faults."""
        ...

    def may_be_slow(self, engine: str, instance: int) -> bool:
        """Return whether the run's faults ever slow this instance down."""
        ...

    def break_down(self, engine: str, instance: int) -> None:
        """Make an instance die at the present time, as it does when its engine raises an exception."""
        ...

    def on_steps(self, steps: StepsDone) -> None:
        """Pass completed steps of an LLM instance on to the observers of the run."""
        ...

    def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent]) -> None:
        """Report changes of an instance's prefix cache to observers and schedulers."""
        ...
