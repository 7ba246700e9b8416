"""Placement policies in the simulator: latencies and hits of a workload on several instances of an LLM.

The production schedulers and policies run; the seconds of a step are those that Preble's authors measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stretto.agent_traces.load_report import RequestTimes
from stretto.agent_traces.requests import AgentTrace
from stretto.cluster.placement import Placement
from stretto.costs.preble import preble_cost
from stretto.costs.profile import Profile
from stretto.deployment import Deployment, deploy
from stretto.engines.scripted.fake import FakeLLM, FakeLLMConfig
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.messages import Action, Admit
from stretto.observer import Observer
from stretto.sim.agent_load import simulate_agents
from stretto.sim.simulated_model import SimulatedModel
from stretto.vocabulary import DEFAULT

KV_TOKENS = 198_516
_BLOCK_TOKENS = 16
_MAX_RUNNING = 128
_PLANNING = Profile(base_s=0.004, per_unit_s=0.00012, per_output_s=0.025, per_neighbour_s=0.0004)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one policy did with one workload.

    Attributes:
        latency_s: mean and 99th percentile of the seconds from arrival to end.
        first_s: the same to the first token.
        hit_share: share of all prompt tokens that were found in a cache.
        imbalance: the largest number of requests of an instance over the mean.
        num_failed: number of requests that failed; the other figures leave them out.
    """

    latency_s: tuple[float, float]
    first_s: tuple[float, float]
    hit_share: float
    imbalance: float
    num_failed: int


def simulate(
    trace: AgentTrace,
    placement: str | Callable[[], Placement],
    num_instances: int,
    *,
    with_events: bool = False,
    cost: str = "mistral_7b_a6000",
    chunk_tokens: int = 512,
) -> Outcome:
    """Return what a policy does with a trace."""
    name = placement if isinstance(placement, str) else "tried"
    vocabulary = DEFAULT if isinstance(placement, str) else DEFAULT.with_placement(name, placement)
    scheduler = SchedulerConfig(
        KV_TOKENS // _BLOCK_TOKENS,
        block_tokens=_BLOCK_TOKENS,
        max_running=_MAX_RUNNING,
        max_batch_tokens=chunk_tokens,
        with_events=with_events,
    )
    step_cost = preble_cost(cost)
    counts = _Counts()
    times = simulate_agents(
        trace,
        _llm(name, num_instances),
        lambda output: lambda replica: SimulatedModel(scheduler, step_cost, output, keeps_released=True),
        vocabulary=vocabulary,
        observers=(counts,),
    )
    return _outcome(times, counts.of, num_instances)


def _llm(placement: str, num_instances: int) -> Deployment:
    return deploy(
        "llm",
        FakeLLM,
        FakeLLMConfig(),
        instances=num_instances,
        contract="llm",
        placement=placement,
        max_running=_MAX_RUNNING,
        keeps_state=True,
        timeout_s=None,
        profile=_PLANNING,
        kv_tokens=KV_TOKENS,
    )


class _Counts(Observer):
    """Counts the requests of each instance."""

    def __init__(self) -> None:
        self.of: Counter[int] = Counter()

    def on_action(self, action: Action, now_s: float) -> None:
        if isinstance(action, Admit):
            self.of[action.instance] += 1


def _outcome(times: list[RequestTimes], counts: Mapping[int, int], num_instances: int) -> Outcome:
    done = [one for one in times if one.error is None]
    latencies = sorted(one.end_s - one.due_s for one in done)
    firsts = sorted((one.end_s if one.first_s is None else one.first_s) - one.due_s for one in done)
    num_prompt = sum(one.num_prompt for one in done)
    return Outcome(
        _mean_and_p99(latencies),
        _mean_and_p99(firsts),
        sum(one.num_cached for one in done) / max(1, num_prompt),
        max(counts.values()) * num_instances / sum(counts.values()),
        len(times) - len(done),
    )


def _mean_and_p99(values: list[float]) -> tuple[float, float]:
    return sum(values) / len(values), values[min(len(values) - 1, int(0.99 * len(values)))]
