"""Calls and offline calls on simulated A100s, scheduled by the production schedulers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from benchmarks.together.limits import offline_limits
from benchmarks.together.load import Call
from stretto.costs.kv_room import check_fits
from stretto.costs.offline import OfflineLimits
from stretto.costs.presets import load_preset
from stretto.costs.shape import StepShape
from stretto.costs.step import StepCost
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.text import parse_graph
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.model.deployment import deploy
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, Done, LLMTask, Started
from stretto.sched.actions import Action, Admit
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event
from stretto.sched.observer import Observer, StepsDone
from stretto.sim.driver import VirtualDriver
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.synthetic_output import SyntheticOutput, chars, filler

MODEL = "Llama-2-7b-hf"
DEVICE = "A100-80G"
_BLOCK_TOKENS = 16
_MAX_RUNNING = 128
_STEP_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to the calls of one simulation.

    Attributes:
        first_s, took_s: seconds to the first token and to the end of each call that is not offline.
        offline_tokens_s: output tokens of ended offline calls, for each second.
        busy_share: share of the time in which an instance computes.
        texts: answers of the calls that are not offline.
    """

    first_s: tuple[float, ...]
    took_s: tuple[float, ...]
    offline_tokens_s: float
    busy_share: float
    texts: tuple[str, ...]


@cache
def usual_limits() -> OfflineLimits:
    """Return the limits of offline work in a step, by the predicted times of steps."""
    return offline_limits(_cost())


def simulate(
    calls: Sequence[Call],
    offline: Sequence[Call],
    seconds: float,
    *,
    num_instances: int = 1,
    limits: OfflineLimits | None = None,
) -> Outcome:
    """Simulate calls, and offline calls until `seconds` are over.

    Args:
        limits: most offline work of a step; `usual_limits` by default.
    """
    given = {f"call {n}": call for n, call in enumerate(calls)}
    given |= {f"offline {n}": call for n, call in enumerate(offline)}

    def output(task: LLMTask, decode: Decode) -> SyntheticOutput:
        num_tokens = given[task.query].output_tokens
        return SyntheticOutput(chars(task.query, 4 * num_tokens), num_tokens)

    sizes = load_preset(DEVICE).model(MODEL)
    hardware = load_preset(DEVICE).hardware
    assert hardware is not None
    kv_tokens = check_fits(sizes, hardware, 1, max_batch_tokens=_STEP_TOKENS)
    scheduler = SchedulerConfig(
        kv_tokens // _BLOCK_TOKENS,
        block_tokens=_BLOCK_TOKENS,
        max_running=_MAX_RUNNING,
        max_batch_tokens=_STEP_TOKENS,
        num_groups=1,
        shares_partial_blocks=False,
        offline=limits or usual_limits(),
    )
    profile = _profile(_cost())
    llm = deploy(
        "llm",
        FakeLLM,
        FakeLLMConfig(),
        contract="llm",
        instances=num_instances,
        profile=profile,
        kv_tokens=kv_tokens,
        max_running=_MAX_RUNNING,
        timeout_s=None,
    )
    watch = _Watch(seconds)
    model = SimulatedModel(scheduler, _cost(), output)
    driver = VirtualDriver([llm], models={"llm": model}, keeps=False, observers=[watch])
    app = _app(profile)
    for query, call in given.items():
        is_offline = query.startswith("offline")
        driver.submit(
            query,
            app,
            {"x": filler(query, call.prompt_tokens)},
            at_s=call.arrival_s,
            objective="offline" if is_offline else "throughput",
        )
        if is_offline:
            driver.cancel(query, seconds)
    replies = driver.run()
    names = [query for query in given if not query.startswith("offline")]
    return Outcome(
        tuple(watch.first_s[query] - given[query].arrival_s for query in names),
        tuple(watch.end_s[query] - given[query].arrival_s for query in names),
        sum(given[one].output_tokens for one in watch.end_s if one.startswith("offline")) / seconds,
        watch.busy_s / seconds / num_instances,
        tuple(str((replies[query].outputs or {})["y"]) for query in names),
    )


class _Watch(Observer):
    """Notes when calls begin to answer and end, and how long instances compute until `until_s`."""

    def __init__(self, until_s: float) -> None:
        self.first_s: dict[str, float] = {}
        self.end_s: dict[str, float] = {}
        self.busy_s = 0.0
        self._until_s = until_s
        self._query: dict[int, str] = {}

    def on_action(self, action: Action, now_s: float) -> None:
        if isinstance(action, Admit) and action.task.decode is not None:
            self._query[action.task.id] = action.task.query

    def on_event(self, event: Event, now_s: float) -> None:
        if not isinstance(event, LLMReport) or isinstance(event.event, Started):
            return
        query = self._query.get(event.event.task)
        if query is not None:
            self.first_s.setdefault(query, now_s)
            if isinstance(event.event, Done):
                self.end_s[query] = now_s

    def on_steps(self, steps: StepsDone) -> None:
        self.busy_s += max(0.0, min(self._until_s, steps.ends_s[-1]) - steps.start_s)


@cache
def _cost() -> StepCost:
    preset = load_preset(DEVICE)
    return preset.step_cost(preset.model(MODEL))


def _profile(cost: StepCost) -> Profile:
    """Return a rough profile for the scheduler of the engine."""
    prefill_s = cost.step_s(StepShape(1, 1024, 1024, 1024 * 512, 0, 0, 0))
    one_s, ten_s = (cost.step_s(StepShape(0, 0, 0, 0, num, num * 1024, 1024)) for num in (1, 10))
    profile = Profile(per_unit_s=prefill_s / 1024, per_output_s=one_s)
    return replace(profile, per_neighbour_s=(ten_s - one_s) / 9)


def _app(profile: Profile) -> ExecutionGraph:
    text = """
    graph call(%x: text)
      %kv = prefill([%x]) : kv @llm
      %y = decode(%kv) {max_tokens=512} : text @llm
      return %y
    """
    return compile_graph(parse_graph(text), {"llm": profile})
