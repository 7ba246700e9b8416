"""Speed of the simulator: LLM requests per second of one core, with 64 instances at 70 % load or in a burst.

Instances are Llama-2-7b on an A100-80G, with costs of the preset. The load is a share of the requests per
second that 64 instances finish when they are never idle, which is simulated first. Time is CPU time of this
process.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, repeat

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value, spread
from benchmarks.sim.published_workloads import (
    ARRIVALS,
    PublishedRequest,
    PublishedWorkload,
    submits,
    workload,
)
from stretto.costs.kv_room import check_fits
from stretto.costs.presets import load_preset
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import deploy
from stretto.model.profile import Profile
from stretto.sched.actions import Action, Reply
from stretto.sched.messages import Event, Submit
from stretto.sched.observer import Observer, StepsDone
from stretto.sim.agent_load import request_graph
from stretto.sim.driver import VirtualDriver
from stretto.sim.simulated_model import preset_models
from stretto.sim.synthetic_output import filler_output, lengths_by_query
from stretto.trace.summary import quantile

SPEED = "simulated requests per second of a core"
BURST = "CPU for each simulated request when all come at once"
GOAL_RATIO = 1.15
GOAL_PER_S = 3000.0
GOAL_LONG_PER_S = 1500.0
MODEL = "Llama-2-7b-hf"
APP_CALLS = "calls of apps"
_CALLS = PublishedWorkload(
    tuple(PublishedRequest(0.0, *tokens) for tokens in ((90, 40), (330, 30), (360, 30), (360, 30))),
    "of advanced RAG: 90 + 40 tokens for an expansion, 330 + 30 and 360 + 30 for answers from chunks",
)
_MAX_TOKENS = 8192
_LONG_TOKENS = 120_000
_OTHER_WORKLOADS = (
    (APP_CALLS, "poisson", _MAX_TOKENS),
    ("like-conversations", "poisson", _MAX_TOKENS),
    ("about-documents", "bursts", _MAX_TOKENS),
)
_WORKLOADS = (
    (APP_CALLS, "poisson", _MAX_TOKENS),
    ("azure-conversations", "poisson", _MAX_TOKENS),
    ("azure-code", "bursts", _MAX_TOKENS),
    ("about-documents", "bursts", _MAX_TOKENS),
    ("mooncake", "poisson", _MAX_TOKENS),
    ("arxiv", "poisson", _MAX_TOKENS),
    ("mooncake", "poisson", _LONG_TOKENS),
)


@dataclass(frozen=True, slots=True)
class SimSize:
    """Sizes of the simulation."""

    instances: int = 64
    load: float = 0.7
    requests: int = 20_000
    saturating: int = 400
    max_running: int = 64
    max_batch_tokens: int = 2048
    block_tokens: int = 32
    burst: tuple[int, int] = (4000, 12_000)
    turns: int = 5


QUICK = SimSize(requests=4000, saturating=200, burst=(1000, 3000), turns=3)


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: the speed of each workload, which has a goal, and bursts."""
    return measure(QUICK if options.quick else SimSize(), options)


def measure(size: SimSize, options: BenchmarkOptions) -> Report:
    """Simulate workloads as large as `size` says."""
    rows, goals = [], []
    for base, arrivals, max_tokens in _OTHER_WORKLOADS if options.data is None else _WORKLOADS:
        found = _CALLS if base == APP_CALLS else workload(base, options.data, options.seed, max_tokens)
        is_long = max_tokens == _LONG_TOKENS
        name = f"{base}, long" if is_long else base
        options.say(f"{name}: capacity of one instance")
        capacity_per_s = _capacity_per_s(size, found, options.seed)
        rate_per_s = size.load * size.instances * capacity_per_s
        options.say(f"{name}: {rate_per_s:.0f} requests a second")
        values = _run(size, found, ARRIVALS[arrivals](rate_per_s, options.seed), options.seed)
        values |= {"arrivals_per_s": rate_per_s, "arrivals": arrivals}
        rows.append(Row(SPEED, name, values, "measured", f"lengths {found.source}"))
        speed = values["requests_per_s_of_core"]
        assert isinstance(speed, float)
        goal_per_s = GOAL_LONG_PER_S if is_long else GOAL_PER_S
        goals.append(Goal(f"{name}: simulated requests per second of a core", speed, goal_per_s, "higher"))
    few, many = size.burst
    bursts = _bursts(size, options)
    rows += [
        Row(BURST, f"{num} requests", {**spread(us, "us"), "requests": num}) for num, us in bursts.items()
    ]
    ratio = statistics.median(bursts[many]) / statistics.median(bursts[few])
    goals.append(Goal(f"CPU for each request, burst of {many} over {few}", ratio, GOAL_RATIO, "lower"))
    notes = (
        f"requests of up to {_MAX_TOKENS} tokens, {_LONG_TOKENS} where long; "
        "a workload has `requests` of them, or all of its trace",
        f"step costs and KV memory of {MODEL} on an A100-80G, from the preset",
        "schedulers, block pools and prefix caches are the production ones; nothing is recorded",
    )
    return Report("sim", options.seed, asdict(size), tuple(rows), tuple(goals), notes)


class _Counts(Observer):
    """What happened, in numbers."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.busy_s = 0.0
        self.sequence_s = 0.0
        self.last_s = 0.0
        self.latencies_s: list[float] = []
        self._arrived_s: dict[str, float] = {}

    def on_event(self, event: Event, now_s: float) -> None:
        if isinstance(event, Submit):
            self._arrived_s[event.query] = now_s

    def on_action(self, action: Action, now_s: float) -> None:
        if isinstance(action, Reply):
            self.last_s = now_s
            self.latencies_s.append(now_s - self._arrived_s.pop(action.query))

    def on_steps(self, steps: StepsDone) -> None:
        taken_s = steps.ends_s[-1] - steps.start_s
        self.num_steps += len(steps.ends_s)
        self.busy_s += taken_s
        self.sequence_s += taken_s * steps.num_sequences


def _driver(
    size: SimSize, instances: int, requests: Sequence[PublishedRequest], counts: Observer
) -> VirtualDriver:
    preset = load_preset("A100-80G")
    model = preset.model(MODEL)
    assert preset.hardware is not None
    num_tokens = check_fits(model, preset.hardware, 1)
    lengths: dict[str, int] = {}
    scheduler = SchedulerConfig(
        num_tokens // size.block_tokens,
        block_tokens=size.block_tokens,
        max_running=size.max_running,
        max_batch_tokens=size.max_batch_tokens,
    )
    simulated = preset_models(preset, MODEL, scheduler, filler_output(lengths_by_query(lengths)))
    llm = deploy(
        "llm",
        FakeLLM,
        FakeLLMConfig(),
        instances=instances,
        contract="llm",
        max_batch=num_tokens,
        max_running=size.max_running,
        keeps_state=True,
        profile=Profile(base_s=0.02, per_unit_s=0.0001, per_output_s=0.02),
    )
    driver = VirtualDriver([llm], models={"llm": simulated}, keeps=False, observers=(counts,))
    longest = max(request.output_tokens for request in requests)
    _submit_next(driver, submits(requests, request_graph(longest), lengths.__setitem__))
    return driver


def _submit_next(driver: VirtualDriver, arrivals: Iterator[tuple[float, Submit]]) -> None:
    """Plan the next arrival, and with it the one after that: only a few of many are ever planned at once."""
    if (arrival := next(arrivals, None)) is None:
        return
    at_s, submit = arrival

    def arrive() -> Sequence[Event]:
        _submit_next(driver, arrivals)
        return (submit,)

    driver.at(max(at_s, driver.now_s), arrive)


def _capacity_per_s(size: SimSize, found: PublishedWorkload, seed: int) -> float:
    """Requests per second that one instance finishes when enough of them wait all the time."""
    requests = list(islice(found.arriving(repeat(0.0), seed), size.saturating))
    counts = _Counts()
    _driver(size, 1, requests, counts).run()
    return len(requests) / counts.last_s


def _bursts(size: SimSize, options: BenchmarkOptions) -> dict[int, list[float]]:
    """Microseconds of CPU for each request of bursts of both sizes, which take turns."""
    found: dict[int, list[float]] = {num: [] for num in size.burst}
    for turn in range(size.turns):
        options.say(f"bursts, turn {turn + 1} of {size.turns}")
        for num, us in found.items():
            requests = list(islice(_CALLS.arriving(repeat(0.0), options.seed), num))
            us.append(_run_all(_driver(size, size.instances, requests, _Counts())) / num * 1e6)
    return found


def _run_all(driver: VirtualDriver) -> float:
    """Simulate to the end; CPU seconds that it took."""
    gc.collect()
    begun_s = time.process_time()
    replies = driver.run()
    cpu_s = time.process_time() - begun_s
    failed = [reply.error for reply in replies.values() if reply.error is not None]
    if failed:
        raise failed[0]
    return cpu_s


def _run(size: SimSize, found: PublishedWorkload, arrivals_s: Iterator[float], seed: int) -> dict[str, Value]:
    requests = list(islice(found.arriving(arrivals_s, seed), size.requests))
    counts = _Counts()
    driver = _driver(size, size.instances, requests, counts)
    cpu_s = _run_all(driver)
    return {
        "requests_per_s_of_core": len(requests) / cpu_s,
        "events_per_s_of_core": driver.num_events / cpu_s,
        "steps_per_s_of_core": counts.num_steps / cpu_s,
        "cpu_s": cpu_s,
        "simulated_s": counts.last_s,
        "requests": len(requests),
        "instances": size.instances,
        "busy_share": counts.busy_s / counts.last_s / size.instances,
        "sequences_on_board": counts.sequence_s / counts.busy_s,
        "p50_latency_s": quantile(counts.latencies_s, 0.5),
        "p99_latency_s": quantile(counts.latencies_s, 0.99),
    }
