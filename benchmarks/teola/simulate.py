"""Runs queries in virtual time under a scheme. `_driver` is the one place that knows the simulator."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b

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
from benchmarks.teola.workload import Asked, templates
from stretto.core import Prompt
from stretto.costs.profile import Profile
from stretto.engine import Engine
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.engines.scripted.fake import FakeBatch, FakeBatchConfig
from stretto.frontend.plan_cache import PlanCache
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import SimulatedModel
from stretto.sim.op_prices import Prices
from stretto.sim.synthetic_output import OutputSource, SyntheticOutput, output_as_of
from stretto.tasks import Decode, LLMTask

SMALL = "7B"
MAX_RUNNING = 32
_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of outputs, drawn evenly for each prompt; and how often a draft is judged to be good.

    Answers are as long as the best ones of TruthfulQA (4 to 14 words for 8 of 10), rewritten questions as its
    questions (6 to 17 words).
    """

    answer: tuple[int, int] = (5, 20)
    rewritten: tuple[int, int] = (8, 22)
    num_rewritten: int = 3
    good_drafts: float = 0.5


VERBOSE = Lengths(answer=(24, 64))


class Writer(ScriptedLLM):
    """Writes as long as `lengths` says; what and how much follows from the prompt alone."""

    def __init__(self, lengths: Lengths) -> None:
        super().__init__(lambda task, decode: _write(lengths, task, decode), max_running=1)


def _write(lengths: Lengths, task: LLMTask, decode: Decode) -> str:
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
    """The engines: two instances of each LLM, one of every other engine (Teola §7.1).

    `speeds`: "measured"; "RTX 3090" for its LLMs; or "paper" for embedding and prefill as in its examples.
    """

    model: str
    lengths: Lengths = Lengths()
    speeds: str = "measured"
    llm_instances: int = 2

    @property
    def llms(self) -> Mapping[str, ModelClass]:
        """The core LLM, and the one that drafts and judges."""
        slow = {"RTX 3090": SLOW, "paper": PAPER}.get(self.speeds)
        if slow is not None:
            return {"llm": slow, "llm_small": slow}
        return {"llm": models()[self.model], "llm_small": models()[SMALL]}

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """Of the other engines."""
        return {**engines(), "embedding": PAPER_EMBEDDING} if self.speeds == "paper" else engines()

    @property
    def prices(self) -> Mapping[str, Prices]:
        """Of their batches."""
        return prices(self.profiles)

    def engines(self, scheme: Scheme | None = None) -> list[Engine]:
        """To run `scheme` on; without one, to compute bounds with."""
        policy = {"policy": scheme.policy, "fill_timeout_s": scheme.fill_timeout_s} if scheme else {}
        found = [
            Engine(
                name,
                FakeBatch,
                FakeBatchConfig(),
                profile=profile,
                keeps_state=name == "vectors",
                timeout_s=None,
                **policy,  # type: ignore[arg-type]
            )
            for name, profile in self.profiles.items()
        ]
        for name, model in self.llms.items():
            found.append(
                Engine(
                    name,
                    Writer,
                    self.lengths,
                    kind="llm",
                    profile=model.profile() if scheme else model.least(),
                    instances=self.llm_instances,
                    max_batch=model.kv_tokens,
                    max_running=MAX_RUNNING,
                    keeps_state=True,
                    timeout_s=None,
                    **policy,  # type: ignore[arg-type]
                )
            )
        return found


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of each query."""

    latencies_s: Mapping[str, float]
    outputs: Mapping[str, Mapping[str, object]]

    @property
    def every_s(self) -> list[float]:
        """Latencies in order of arrival."""
        return list(self.latencies_s.values())


def run(testbed: Testbed, scheme: Scheme, asked: Sequence[Asked]) -> Ran:
    """All queries to their end.

    Raises:
        StrettoError: what ended a query.
    """
    driver = _driver(testbed, scheme)
    plan_cache = PlanCache({engine.name: engine.profile for engine in driver.engines.values()})
    apps = templates()
    plans = {app: plan_cache.plan(apps[app], {}, scheme.passes) for app in {q.app for q in asked}}
    for query in asked:
        driver.submit(query.name, plans[query.app], query.inputs, at_s=query.at_s)
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
    return Ran(latencies_s, outputs)


def _driver(testbed: Testbed, scheme: Scheme) -> VirtualDriver:
    instances = {
        name: SimulatedModel(
            SchedulerConfig(
                num_blocks=model.kv_tokens // _BLOCK_TOKENS,
                block_tokens=_BLOCK_TOKENS,
                max_running=MAX_RUNNING,
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
    return VirtualDriver(testbed.engines(scheme), models=instances, batch_costs=costs)


@cache
def _speaker(lengths: Lengths) -> OutputSource:
    """What a `Writer` writes; remembered, as every scheme asks for the same."""
    speak = output_as_of(Writer(lengths))
    said: dict[tuple[str, Prompt], SyntheticOutput] = {}

    def speak_once(task: LLMTask, decode: Decode) -> SyntheticOutput:
        key = task.step, task.prompt
        if key not in said:
            said[key] = speak(task, decode)
        return said[key]

    return speak_once
