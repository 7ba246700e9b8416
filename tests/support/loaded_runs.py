"""The ready-made apps under load in virtual time, on engines that share cores or do not.

Passes are weighed when a query arrives, as in a runtime.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from benchmarks.common.op_prices import Prices
from benchmarks.common.simulated_answers import output_as_of
from benchmarks.twin.shared_cores import SharedCoresDriver
from stretto.apps import advanced_rag, naive_rag, search_empowered
from stretto.apps.components.component import Input
from stretto.apps.components.map_reduce import MapReduce
from stretto.apps.components.splitting import Splitting
from stretto.apps.plan_cache import PlanCache
from stretto.apps.template import Template
from stretto.costs.shape import StepShape
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.graph.op_table import OPS
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.profile import Profile
from stretto.model.replica import Engine
from stretto.model.tasks import Decode, LLMTask
from stretto.model.values import Document, Section
from stretto.runtime.conditions import idle_conditions
from stretto.sched.messages import Event, Submit
from stretto.sim.llm_instance import SimulatedModel

CORES = 2
_CHUNK_TOKENS = 256


@dataclass(frozen=True)
class Speeds:
    """Seconds of a step of the LLM and of a token of its prompts, and of a chunk to embed and to rerank."""

    step_s: float
    token_s: float
    embed_s: float
    rerank_s: float


LAPTOP = Speeds(0.004, 0.00013, 0.013, 0.0002)
"""A small model and MiniLM in bfloat16, on one core each."""
SERVERS = Speeds(0.020, 0.00006, 0.001, 0.0017)
"""A model of 7 billion parameters and larger encoders, on one GPU each."""


@dataclass(frozen=True)
class Load:
    """Queries that arrive at random, `gap_s` apart on average; all at once if that is 0."""

    num_queries: int
    gap_s: float = 0.0


@dataclass(frozen=True)
class _Steps:
    """Step costs: a base, and seconds for each token of prompts."""

    base_s: float
    token_s: float

    def step_s(self, shape: StepShape) -> float:
        return self.base_s + self.token_s * shape.prefill_tokens

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        return num_repeats * self.step_s(shape)


def _map_reduce() -> Template:
    splitting = Splitting(files=Input("files", "list[document]"), tokens=_CHUNK_TOKENS)
    summing_up = MapReduce(items=splitting["chunks"], fan_in=4)
    return Template("map_reduce", splitting >> summing_up, {"summary": summing_up["text"]})


APPS: Mapping[str, Template] = {
    "naive": naive_rag(),
    "advanced": advanced_rag(),
    "search": search_empowered(),
    "map_reduce": _map_reduce(),
}


class _Writer(ScriptedLLM):
    def __init__(self, config: object = None) -> None:
        super().__init__(_write, max_running=1)


def _write(task: LLMTask, decode: Decode) -> str:
    generator = random.Random("".join(segment.text for segment in task.prompt))
    if task.step == "verdict":
        return generator.choice(["yes", "no"])
    words = [generator.choice("abcdefgh") * 2 for _ in range(3 * 16)]
    if decode.items is not None:
        return json.dumps([" ".join(words[start : start + 16]) for start in (0, 16, 32)])
    return " ".join(words[: generator.randint(8, 24)])


def engines(speeds: Speeds) -> list[Deployment]:
    """Return one instance of every engine of the apps, on a core each."""
    profiles = {
        "chunking": Profile(0.0002, 0.002, max_efficient_batch=1),
        "embedding": Profile(
            speeds.step_s,
            speeds.embed_s,
            max_efficient_batch=16,
            per_token_s=speeds.embed_s / _CHUNK_TOKENS,
            unit_tokens=_CHUNK_TOKENS,
        ),
        "vectors": Profile(0.0002, 0.00001, max_efficient_batch=256),
        "reranking": Profile(0.0002, speeds.rerank_s, max_efficient_batch=64),
        "web": Profile(0.3, 0.0, max_efficient_batch=8),
    }
    found = [
        deploy(name, FakeBatch, FakeBatchConfig(), keeps_state=name == "vectors", profile=profile)
        for name, profile in profiles.items()
    ]
    llm = Profile(speeds.step_s, speeds.token_s, 1, per_output_s=speeds.step_s)
    return found + [
        deploy(name, _Writer, contract="llm", keeps_state=True, profile=llm) for name in ("llm", "llm_small")
    ]


def mean_s(
    app: str,
    passes: tuple[str, ...],
    load: Load,
    speeds: Speeds,
    *,
    shares_cores: bool,
    seed: int,
    policy: str = Engine("any").policy,
) -> tuple[float, Sequence[object]]:
    """Return the mean simulated seconds of the queries, and their outputs."""
    deployments = [one.changed(policy=policy) for one in engines(speeds)]
    model = SimulatedModel(
        SchedulerConfig(num_blocks=4000, block_tokens=16, max_running=16, max_batch_tokens=512),
        _Steps(speeds.step_s, speeds.token_s),
        _output,
        keeps_released=True,
        caches=True,
    )
    embedding = next(one.profile for one in deployments if one.name == "embedding")
    by_token = replace(embedding, per_unit_s=speeds.embed_s / _CHUNK_TOKENS, per_token_s=0.0, unit_tokens=0.0)
    idle = idle_conditions(deployments, CORES)
    if not shares_cores:
        idle = replace(idle, threads={})
    plan_cache = PlanCache(idle.profiles, idle=idle, num_running=lambda: num_running())
    driver = SharedCoresDriver(
        deployments,
        (lambda is_llm, llms, others: max(1.0, (llms + others) / CORES)) if shares_cores else _alone,
        expand=plan_cache.expand,
        models={"llm": model, "llm_small": model},
        batch_costs={"embedding": Prices({"embed": by_token}, "texts", OPS).batch_s},
    )
    arrived: list[str] = []

    def num_running() -> int:
        return len(arrived) - len(driver.replies)

    generator = random.Random(seed)
    at_s = 0.0
    for number in range(load.num_queries):
        inputs = _inputs(app, generator)

        def arrive(name: str = f"q{number}", inputs: Mapping[str, object] = inputs) -> Sequence[Event]:
            egraph = plan_cache.plan(APPS[app], {}, passes)
            arrived.append(name)
            return (Submit(name, egraph, inputs, passes=passes),)

        driver.at(at_s, arrive)
        at_s += generator.expovariate(1 / load.gap_s) if load.gap_s else 0.0
    replies = driver.run()
    spans = driver.recorder.queries.values()
    for reply in replies.values():
        assert reply.error is None, reply.error
    outputs = [replies[f"q{number}"].outputs for number in range(load.num_queries)]
    return fmean(span.end_s - span.start_s for span in spans if span.end_s is not None), outputs


def _alone(is_llm: bool, num_llms: int, num_others: int) -> float:
    return 1.0


_output = output_as_of(_Writer())


def _inputs(app: str, generator: random.Random) -> dict[str, object]:
    """Return a question of a dozen words, and a document of 4 to 24 chunks."""
    words = ["".join(generator.choices("abcdefgh", k=5)) for _ in range(12)]
    inputs: dict[str, object] = {"question": " ".join(words)}
    if app != "search":
        sections = [
            Section(" ".join("".join(generator.choices("abcdefgh", k=7)) for _ in range(110)))
            for _ in range(generator.randint(4, 24))
        ]
        inputs["files"] = [Document("d.txt", tuple(sections), words[0] * 13)]
    if app == "map_reduce":
        del inputs["question"]
    return inputs
