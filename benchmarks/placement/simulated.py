"""Placement policies in the simulator: latencies and hits of a workload on several instances of an LLM.

The production schedulers and policies run; only the seconds of a step are predicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.common.fake_engines import FakeLLM
from benchmarks.placement.machines import Machine, Slower
from stretto.apps.vocabulary import DEFAULT
from stretto.cluster.placement import Placement
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import Deployment
from stretto.model.replica import Engine, Replica
from stretto.sched.actions import Action, Admit
from stretto.sched.observer import Observer
from stretto.sim.agent_load import simulate_agents
from stretto.sim.simulated_model import SimulatedModel
from stretto.trace.agents.load_report import RequestTimes
from stretto.trace.agents.requests import AgentTrace

_BLOCK_TOKENS = 16
_MAX_RUNNING = 128
_TRIED = "tried"


@dataclass(frozen=True, slots=True)
class Instances:
    """The instances of one simulation.

    Attributes:
        machines: kind of each instance.
        slowness: factor by which each instance is slower than its kind; 1 where it is missing. The policy is
            not told.
        step_policy: how an instance forms batches, "chunked" or "prefill_first".
        num_groups: number of priority groups of waiting requests, by cached share.
    """

    machines: Sequence[Machine]
    slowness: Mapping[int, float]
    step_policy: str = "chunked"
    num_groups: int = 10

    def model_of(self, replica: Replica, output: Any) -> SimulatedModel:
        """Return the simulated model of one replica, whose configuration is its number."""
        number = replica.config
        assert isinstance(number, int)
        kind = self.machines[number]
        scheduler = SchedulerConfig(
            kind.kv_tokens // _BLOCK_TOKENS,
            block_tokens=_BLOCK_TOKENS,
            max_running=_MAX_RUNNING,
            max_batch_tokens=512,
            policy=self.step_policy,
            num_groups=self.num_groups,
        )
        cost = Slower(kind.cost, self.slowness[number]) if number in self.slowness else kind.cost
        return SimulatedModel(scheduler, cost, output, keeps_released=True)

    @property
    def deployment(self) -> Deployment:
        """The engine, whose placement policy has a name of its own."""
        replicas = tuple(
            Replica(FakeLLM, number, profile=kind.profile, kv_tokens=kind.kv_tokens)
            for number, kind in enumerate(self.machines)
        )
        engine = Engine(
            "llm",
            contract="llm",
            placement=_TRIED,
            max_running=_MAX_RUNNING,
            keeps_state=True,
            timeout_s=None,
        )
        return Deployment(engine, replicas)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one policy did with one workload. Times are in seconds; those of failed requests are left out.

    Attributes:
        mean_s, p99_s: time from arrival to end.
        first_mean_s, first_p99_s: time from arrival to the first token.
        token_mean_s, token_p99_s: time of each token after the first.
        hit_share: share of all prompt tokens that were found in a cache.
        imbalance: the largest number of requests of an instance over the mean.
        num_failed: number of requests that failed.
    """

    mean_s: float
    p99_s: float
    first_mean_s: float
    first_p99_s: float
    token_mean_s: float
    token_p99_s: float
    hit_share: float
    imbalance: float
    num_failed: int

    def as_dict(self) -> dict[str, float]:
        """Return the outcome as plain data."""
        return asdict(self)


def simulate(trace: AgentTrace, placement: Callable[[], Placement], instances: Instances) -> Outcome:
    """Return what a policy does with a trace."""
    counts = _Counts()
    times = simulate_agents(
        trace,
        instances.deployment,
        lambda output: lambda replica: instances.model_of(replica, output),
        vocabulary=DEFAULT.with_placement(_TRIED, placement),
        observers=(counts,),
    )
    return _outcome(times, counts.of, len(instances.machines))


class _Counts(Observer):
    """Counts the requests of each instance."""

    def __init__(self) -> None:
        self.of: Counter[int] = Counter()

    def on_action(self, action: Action, now_s: float) -> None:
        if isinstance(action, Admit):
            self.of[action.instance] += 1


def _outcome(times: list[RequestTimes], counts: Mapping[int, int], num_instances: int) -> Outcome:
    done = [one for one in times if one.error is None]
    first_s = {one.request: one.end_s if one.first_s is None else one.first_s for one in done}
    per_token = [
        (one.end_s - first_s[one.request]) / (one.num_output - 1) for one in done if one.num_output > 1
    ]
    return Outcome(
        *_mean_and_p99([one.end_s - one.due_s for one in done]),
        *_mean_and_p99([first_s[one.request] - one.due_s for one in done]),
        *_mean_and_p99(per_token),
        hit_share=sum(one.num_cached for one in done) / max(1, sum(one.num_prompt for one in done)),
        imbalance=max(counts.values()) * num_instances / sum(counts.values()),
        num_failed=len(times) - len(done),
    )


def _mean_and_p99(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values) or [0.0]
    return sum(ordered) / len(ordered), ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
