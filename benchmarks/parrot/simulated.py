"""One run of a contestant in virtual time, and what is measured there.

The production schedulers, caches and policies run; only the seconds of a step are predicted. A token is four
characters, and an answer is as long as its call says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from benchmarks.baselines import VOCABULARY
from benchmarks.common.fake_engines import FakeLLM
from benchmarks.common.simulated_answers import as_max_tokens
from benchmarks.parrot.clients import CallClient, Client, GraphClient, number_of
from benchmarks.parrot.contestants import Contestant
from benchmarks.parrot.machines import Machine
from benchmarks.parrot.workflows import ENGINE, Arrival
from stretto.apps.plan_cache import PlanCache
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.model.deployment import deploy
from stretto.model.tasks import Done, Piece, Started
from stretto.sched.actions import Action, Admit
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event
from stretto.sched.observer import Observer, StepsDone
from stretto.sim.agent_load import agent_tokens
from stretto.sim.driver import VirtualDriver
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.synthetic_output import filler_output
from stretto.trace.summary import quantile

_BLOCK_TOKENS = 16
_MAX_RUNNING = 256
_BATCH_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Measured:
    """What the workflows of one kind have experienced.

    Attributes:
        latencies_s: seconds from each start to the last result, in order of the starts.
        per_token_s: the same, divided by the tokens of all results.
        decode_s: mean seconds of a token of an answer after the first.
        trips_s: mean seconds of all trips of a workflow to the service and back.
        engine_s: mean seconds that all calls of a workflow together took from the begin of their prefill.
    """

    latencies_s: Sequence[float]
    per_token_s: Sequence[float]
    decode_s: float
    trips_s: float
    engine_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a contestant did with a load.

    Attributes:
        kinds: what was measured, by the kind of workflow.
        prompt_tokens, filled_tokens: tokens of all prompts, and those of them that no cache had.
        kv_peak_tokens: largest number of tokens whose KV running requests held, over all instances together.
    """

    kinds: dict[str, Measured]
    prompt_tokens: int
    filled_tokens: int
    kv_peak_tokens: int

    def as_dict(self, machine: Machine) -> dict[str, Any]:
        """Return the figures that tables show, as plain data."""
        return {
            "kinds": {name: _summary(one) for name, one in self.kinds.items()},
            "prompt_tokens": self.prompt_tokens,
            "filled_tokens": self.filled_tokens,
            "kv_peak_gib": self.kv_peak_tokens * machine.kv_bytes / 2**30,
        }


def simulate(
    contestant: Contestant,
    machine: Machine,
    num_instances: int,
    arrivals: Sequence[Arrival],
    seed: int,
    *,
    kv_tokens: int | None = None,
) -> Outcome:
    """Run all workflows to their end. Raises the error of one that fails.

    Args:
        kv_tokens: number of tokens whose KV an instance can hold; None for as many as fit into the machine.
    """
    kv_tokens = kv_tokens or machine.kv_tokens
    profile = replace(machine.profile, reads_shared_once=contestant.reads_shared_once)
    engine = deploy(
        ENGINE,
        FakeLLM,
        instances=num_instances,
        contract="llm",
        profile=profile,
        kv_tokens=kv_tokens,
        max_running=_MAX_RUNNING,
        max_batch=contestant.budget_tokens,
        placement=contestant.placement,
        policy=contestant.policy,
        keeps_state=True,
        timeout_s=None,
    )
    caches = contestant.caching != "none"
    scheduler = SchedulerConfig(
        kv_tokens // _BLOCK_TOKENS,
        block_tokens=_BLOCK_TOKENS,
        max_running=_MAX_RUNNING,
        max_batch_tokens=_BATCH_TOKENS,
        with_events=caches,
        shares_partial_blocks=False,
    )
    model = SimulatedModel(
        scheduler,
        machine.cost,
        filler_output(as_max_tokens),
        keeps_released=caches,
        caches=caches,
        reads_shared_once=contestant.reads_shared_once,
        tokenize=agent_tokens,
    )
    client: Client
    if contestant.sends_graphs:
        client = GraphClient(arrivals, seed, PlanCache({ENGINE: profile}), contestant.passes)
    else:
        client = CallClient(arrivals, seed, declares_prefixes=contestant.caching == "static")
    watch = _Watch()
    driver = VirtualDriver(
        [engine],
        models={ENGINE: model},
        keeps=False,
        observers=(watch,),
        on_reply=client.on_reply,
        on_settled=client.on_settled,
        vocabulary=VOCABULARY,
    )
    watch.driver = driver
    client.start(driver)
    driver.run()
    kinds = {kind: _measured(kind, arrivals, client, watch) for kind in _kinds(arrivals)}
    prompt_tokens = sum(arrival.workflow.prompt_tokens for arrival in arrivals)
    return Outcome(kinds, prompt_tokens, watch.filled_tokens, watch.kv_peak_tokens)


class _Watch(Observer):
    """Notes the tokens of all requests, their seconds in an engine and the pace of answers, and how much KV
    is held.
    """

    def __init__(self) -> None:
        self.driver: VirtualDriver | None = None
        self.filled_tokens = self.kv_peak_tokens = 0
        self.paces_s: dict[int, list[float]] = {}
        self.engine_s: dict[int, float] = {}
        self._workflows: dict[int, int] = {}
        self._starts_s: dict[int, float] = {}
        self._firsts_s: dict[int, float] = {}

    def on_action(self, action: Action, now_s: float) -> None:
        if isinstance(action, Admit):
            self._workflows[action.task.id] = number_of(action.task.query)

    def on_event(self, event: Event, now_s: float) -> None:
        if not isinstance(event, LLMReport):
            return
        match event.event:
            case Started(task):
                self._starts_s[task] = now_s
            case Piece(task):
                self._firsts_s.setdefault(task, now_s)
            case Done(task, _, usage):
                self.filled_tokens += usage.num_prompt_tokens - usage.num_cached_tokens
                first_s, workflow = self._firsts_s.pop(task, None), self._workflows.pop(task)
                took_s = now_s - self._starts_s.pop(task)
                self.engine_s[workflow] = self.engine_s.get(workflow, 0.0) + took_s
                if first_s is not None and usage.num_output_tokens > 1:
                    pace_s = (now_s - first_s) / (usage.num_output_tokens - 1)
                    self.paces_s.setdefault(workflow, []).append(pace_s)

    def on_steps(self, steps: StepsDone) -> None:
        assert self.driver is not None
        held = 0
        for llm in self.driver.instances.stepped():
            scheduler = llm.scheduler
            held += scheduler.config.num_blocks - scheduler.cache.num_available
        self.kv_peak_tokens = max(self.kv_peak_tokens, held * _BLOCK_TOKENS)


def _kinds(arrivals: Sequence[Arrival]) -> list[str]:
    return list(dict.fromkeys(arrival.workflow.kind for arrival in arrivals))


def _measured(kind: str, arrivals: Sequence[Arrival], client: Client, watch: _Watch) -> Measured:
    numbers = [number for number, arrival in enumerate(arrivals) if arrival.workflow.kind == kind]
    latencies_s = [client.ends_s[number] - arrivals[number].at_s for number in numbers]
    lengths = [arrivals[number].workflow.num_output for number in numbers]
    paces_s = [pace_s for number in numbers for pace_s in watch.paces_s.get(number, ())]
    return Measured(
        latencies_s,
        [latency_s / length for latency_s, length in zip(latencies_s, lengths, strict=True)],
        fmean(paces_s) if paces_s else 0.0,
        fmean(client.trips_s[number] for number in numbers),
        fmean(watch.engine_s[number] for number in numbers),
    )


def _summary(measured: Measured) -> dict[str, Any]:
    return {
        "mean_s": fmean(measured.latencies_s),
        "p90_s": quantile(measured.latencies_s, 0.9),
        "per_token_s": fmean(measured.per_token_s),
        "per_token_p90_s": quantile(measured.per_token_s, 0.9),
        "decode_s": measured.decode_s,
        "trips_s": measured.trips_s,
        "engine_s": measured.engine_s,
        "latencies_s": list(measured.latencies_s),
    }
