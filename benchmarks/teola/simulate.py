"""Runs queries in virtual time under a scheme. Only `_driver` uses the simulator directly."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import blake2b

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from benchmarks.common.op_prices import Prices
from benchmarks.common.simulated_answers import output_as_of
from benchmarks.common.virtual_engines import two_letter_words
from benchmarks.teola.costs import (
    PAPER,
    PAPER_EMBEDDING,
    SLOW,
    STEP_TOKENS,
    ModelClass,
    engines,
    models,
    prices,
)
from benchmarks.teola.schemes import Scheme
from benchmarks.teola.workload import QueryArrival, templates
from stretto.apps.plan_cache import PlanCache
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, LLMTask
from stretto.model.values import Prompt
from stretto.runtime.conditions import idle_conditions
from stretto.sched.messages import Event, Submit
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import SimulatedModel
from stretto.sim.synthetic_output import OutputSource, SyntheticOutput
from stretto.trace.summary import summarise

SMALL = "7B"
MAX_RUNNING = 32
_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class DrawnLengths:
    """Lengths of outputs in tokens, drawn uniformly for each prompt; and the share of drafts judged good.

    Answers are as long as the best ones of TruthfulQA (4 to 14 words for 8 of 10), rewritten questions as its
    questions (6 to 17 words).
    """

    answer: tuple[int, int] = (5, 20)
    rewritten: tuple[int, int] = (8, 22)
    num_rewritten: int = 3
    good_drafts: float = 0.5


VERBOSE = DrawnLengths(answer=(24, 64))


class Writer(ScriptedLLM):
    """A scripted LLM with lengths from `lengths`; the output depends on the prompt alone."""

    def __init__(self, lengths: DrawnLengths) -> None:
        super().__init__(lambda task, decode: _write(lengths, task, decode), max_running=1)


def _write(lengths: DrawnLengths, task: LLMTask, decode: Decode) -> str:
    prompt = "".join(segment.text for segment in task.prompt)
    digest = blake2b(prompt.encode(), digest_size=16).hexdigest()
    generator = random.Random(digest)
    words = two_letter_words(digest)
    if task.step == "verdict":
        return "yes" if generator.random() < lengths.good_drafts else "no"
    if decode.items is None:
        count = min(generator.randint(*lengths.answer), decode.max_tokens)
        return " ".join(next(words) for _ in range(count))
    items = []
    for _ in range(min(lengths.num_rewritten, decode.max_items or lengths.num_rewritten)):
        chars = 4 * generator.randint(*lengths.rewritten) - 1
        items.append(" ".join(next(words) for _ in range(chars // 3))[:chars])
    return json.dumps(items)


@dataclass(frozen=True, slots=True)
class Testbed:
    """The simulated engines: two instances of each LLM, one of every other engine (Teola §7.1).

    `speeds` is "measured"; "RTX 3090" for LLMs on that device; or "paper" for embedding and prefill as in the
    paper's examples.
    """

    model: str
    lengths: DrawnLengths = DrawnLengths()
    speeds: str = "measured"
    llm_instances: int = 2
    max_running: int = MAX_RUNNING

    @property
    def llms(self) -> Mapping[str, ModelClass]:
        """The core LLM, and the small one that drafts and judges."""
        slow = {"RTX 3090": SLOW, "paper": PAPER}.get(self.speeds)
        if slow is not None:
            return {"llm": slow, "llm_small": slow}
        return {"llm": models()[self.model], "llm_small": models()[SMALL]}

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """Profiles of the other engines."""
        return {**engines(), "embedding": PAPER_EMBEDDING} if self.speeds == "paper" else engines()

    @property
    def prices(self) -> Mapping[str, Prices]:
        """Prices of the other engines' batches."""
        return prices(self.profiles)

    def engines(self, scheme: Scheme | None = None) -> list[Deployment]:
        """Return the engines that `scheme` runs on; without one, those to compute bounds with."""
        found = [
            deploy(
                name,
                FakeBatch,
                FakeBatchConfig(),
                keeps_state=name == "vectors",
                timeout_s=None,
                profile=profile,
            )
            for name, profile in self.profiles.items()
        ]
        for name, model in self.llms.items():
            found.append(
                deploy(
                    name,
                    Writer,
                    self.lengths,
                    instances=self.llm_instances,
                    contract="llm",
                    max_batch=model.kv_tokens,
                    max_running=self.max_running,
                    keeps_state=True,
                    timeout_s=None,
                    profile=model.profile() if scheme else model.least(),
                )
            )
        if scheme is None:
            return found
        return [one.changed(policy=scheme.policy, fill_timeout_s=scheme.fill_timeout_s) for one in found]


@dataclass(frozen=True, slots=True)
class Ran:
    """Results of a run, by query; and the seconds in which each engine was busy."""

    latencies_s: Mapping[str, float]
    outputs: Mapping[str, Mapping[str, object]]
    busy_s: Mapping[str, float]

    @property
    def every_s(self) -> list[float]:
        """All latencies, in order of arrival."""
        return list(self.latencies_s.values())


def run(testbed: Testbed, scheme: Scheme, asked: Sequence[QueryArrival]) -> Ran:
    """Run all queries to their end.

    Raises:
        StrettoError: a query failed.
    """
    engines = testbed.engines(scheme)
    driver = _driver(engines, testbed, scheme)
    arrived: list[str] = []
    idle = replace(idle_conditions(engines), threads={})
    plan_cache = PlanCache(idle.profiles, idle=idle, num_running=lambda: len(arrived) - len(driver.replies))
    apps = templates()

    def arrive(query: QueryArrival) -> Sequence[Event]:
        egraph = plan_cache.plan(apps[query.app], {}, scheme.passes)
        arrived.append(query.name)
        return (Submit(query.name, egraph, query.inputs, passes=scheme.passes),)

    for query in asked:
        driver.at(query.at_s, partial(arrive, query))
    replies = driver.run()
    latencies_s = {}
    outputs = {}
    for query in asked:
        reply, span = replies[query.name], driver.recorder.queries[query.name]
        if reply.error is not None:
            raise reply.error
        assert reply.outputs is not None
        assert span.end_s is not None
        latencies_s[query.name] = span.end_s - span.start_s
        outputs[query.name] = reply.outputs
    busy_s = {row.engine: row.busy_s for row in summarise(driver.recorder).engines}
    return Ran(latencies_s, outputs, busy_s)


def _driver(engines: list[Deployment], testbed: Testbed, scheme: Scheme) -> VirtualDriver:
    instances = {
        name: SimulatedModel(
            SchedulerConfig(
                num_blocks=model.kv_tokens // _BLOCK_TOKENS,
                block_tokens=_BLOCK_TOKENS,
                max_running=testbed.max_running,
                max_batch_tokens=STEP_TOKENS,
            ),
            model.cost,
            _speaker(testbed.lengths),
            keeps_released=True,
            caches=scheme.caches,
        )
        for name, model in testbed.llms.items()
    }
    costs = {name: price.batch_s for name, price in testbed.prices.items()}
    return VirtualDriver(engines, models=instances, batch_costs=costs)


@cache
def _speaker(lengths: DrawnLengths) -> OutputSource:
    """Outputs of a `Writer`, cached because every scheme asks for the same ones."""
    speak = output_as_of(Writer(lengths))
    known: dict[tuple[str, Prompt], SyntheticOutput] = {}

    def speak_once(task: LLMTask, decode: Decode) -> SyntheticOutput:
        key = task.step, task.prompt
        if key not in known:
            known[key] = speak(task, decode)
        return known[key]

    return speak_once
