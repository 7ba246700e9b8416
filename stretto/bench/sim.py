"""How fast the simulator is: LLM requests per second of one core, with 64 instances at 70 % load.

Instances are Llama-2-7b on an A100-80G by the preset. The load is a share of what 64 instances finish when
they are never idle, which is simulated first. Time is processor time of this process.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice, repeat
from pathlib import Path

from stretto.bench.registry import Options
from stretto.bench.report import Goal, Report, Row, Value, quantile
from stretto.costs.presets import load_preset
from stretto.costs.profile import Profile
from stretto.costs.shape import check_fits
from stretto.engine import Engine
from stretto.engines.fake import FakeLLM, FakeLLMConfig
from stretto.errors import UserError
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.messages import Action, Event, Reply, Submit
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import LLMModel
from stretto.sim.saying import lengths_by_query, says_nothing_in_particular
from stretto.sim.traces import Request, read_azure
from stretto.sim.watching import StepsDone, Watcher
from stretto.sim.workloads import drawn, lognormal_lengths, poisson, request_graph, submits

SPEED = "simulated requests per second of a core"
GOAL_PER_S = 2000.0
MODEL = "Llama-2-7b-hf"
APP_CALLS = ((90, 40), (330, 30), (360, 30), (360, 30))
"""Prompt and output tokens of the calls of advanced RAG: an expansion, three answers from a chunk of 256."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is simulated, of what."""

    instances: int = 64
    load: float = 0.7
    requests: int = 20_000
    saturating: int = 400
    max_running: int = 64
    max_batch_tokens: int = 2048
    block_tokens: int = 32


QUICK = Size(requests=4000, saturating=200)


def run_benchmark(options: Options) -> Report:
    """Two loads: calls of apps, and conversations."""
    return measure(QUICK if options.quick else Size(), options)


def measure(size: Size, options: Options) -> Report:
    """As much as `size` says."""
    chat, source = _chat_lengths(options.data, options.seed)
    rows, goals = [], []
    for name, lengths in (("calls of apps", list(APP_CALLS)), ("conversations", chat)):
        options.say(f"{name}: what one instance finishes at most")
        capacity_per_s = _capacity_per_s(size, lengths, options.seed)
        rate_per_s = size.load * size.instances * capacity_per_s
        options.say(f"{name}: {size.requests} requests, {rate_per_s:.0f} a second")
        values = _run(size, lengths, rate_per_s, options.seed)
        rows.append(Row(SPEED, name, values, "measured"))
        speed = values["requests_per_s_of_core"]
        assert isinstance(speed, float)
        goals.append(Goal(f"{name}: simulated requests per second of a core", speed, GOAL_PER_S, "higher"))
    calls = ", ".join(f"{prompt} + {output}" for prompt, output in APP_CALLS)
    notes = (
        f"conversations: lengths {source}; calls of apps: {calls} tokens",
        f"step costs and KV memory of {MODEL} on an A100-80G, from the preset; every prompt its own",
        "schedulers, block pools and prefix caches are the production ones; nothing is recorded",
    )
    return Report("sim", options.seed, asdict(size), tuple(rows), tuple(goals), notes)


def _chat_lengths(data: Path | None, seed: int) -> tuple[list[tuple[int, int]], str]:
    if data is None:
        return lognormal_lengths(10_000, seed), "drawn like Azure's (2023); its trace with --data"
    path = data / "traces" / "azure_llm_2023_conv.csv"
    if not path.is_file():
        raise UserError(f"--data {data}: there is no {path.relative_to(data)}")
    fitting = [(r.prompt_tokens, r.output_tokens) for r in read_azure(path) if r.prompt_tokens <= 4096]
    return [(prompt, max(1, output)) for prompt, output in fitting], f"of {path.name}, up to 4096 tokens"


class _Counts(Watcher):
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


def _driver(size: Size, instances: int, requests: Sequence[Request], counts: Watcher) -> VirtualDriver:
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
    simulated = LLMModel(
        scheduler, preset.step_cost(model), says_nothing_in_particular(lengths_by_query(lengths))
    )
    engine = Engine(
        "llm",
        FakeLLM,
        FakeLLMConfig(),
        kind="llm",
        instances=instances,
        max_batch=num_tokens,
        max_running=size.max_running,
        keeps_state=True,
        profile=Profile(base_s=0.02, per_unit_s=0.0001, per_output_s=0.02),
    )
    driver = VirtualDriver([engine], models={"llm": simulated}, keeps=False, watchers=(counts,))
    longest = max(request.output_tokens for request in requests)
    driver.submit_all(submits(requests, request_graph(longest), lengths.__setitem__))
    return driver


def _capacity_per_s(size: Size, lengths: Sequence[tuple[int, int]], seed: int) -> float:
    """Requests that an instance finishes in a second when enough of them wait all the time."""
    requests = list(islice(drawn(lengths, repeat(0.0), seed), size.saturating))
    counts = _Counts()
    _driver(size, 1, requests, counts).run()
    return size.saturating / counts.last_s


def _run(size: Size, lengths: Sequence[tuple[int, int]], rate_per_s: float, seed: int) -> dict[str, Value]:
    requests = list(islice(drawn(lengths, poisson(rate_per_s, seed), seed), size.requests))
    counts = _Counts()
    driver = _driver(size, size.instances, requests, counts)
    gc.collect()
    begun_s = time.process_time()
    replies = driver.run()
    cpu_s = time.process_time() - begun_s
    failed = [reply.error for reply in replies.values() if reply.error is not None]
    if failed:
        raise failed[0]
    return {
        "requests_per_s_of_core": size.requests / cpu_s,
        "events_per_s_of_core": driver.num_events / cpu_s,
        "steps_per_s_of_core": counts.num_steps / cpu_s,
        "cpu_s": cpu_s,
        "simulated_s": counts.last_s,
        "arrivals_per_s": rate_per_s,
        "instances": size.instances,
        "busy_share": counts.busy_s / counts.last_s / size.instances,
        "sequences_on_board": counts.sequence_s / counts.busy_s,
        "p50_latency_s": quantile(counts.latencies_s, 0.5),
        "p99_latency_s": quantile(counts.latencies_s, 0.99),
    }
