"""Overload: beyond saturation, queries that would miss their deadline are refused; the rest keep theirs.

The production schedulers and the admission rule run on the simulator's clock.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto import Input, Template
from stretto.apps.components.llm_call import LLMCall
from stretto.apps.plan_cache import PlanCache
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import DeadlineTooClose
from stretto.model.profile import Profile
from stretto.sched.actions import Reply
from stretto.sched.messages import Event, Submit
from stretto.service.apps.admission import Admission, Estimate
from stretto.sim.driver import VirtualDriver

DEADLINE_S = 4.0
NUM_QUERIES = 120
SLOTS = 8


def app() -> Template:
    question = Input("question", "text")
    draft = LLMCall(name="draft", prompt="Answer: {question}", question=question, max_tokens=16)
    better = LLMCall(
        name="better",
        prompt="Improve for {question}: {draft}",
        question=question,
        draft=draft["text"],
        max_tokens=16,
    )
    return Template("refined", draft >> better, {"answer": better["text"]})


def engine() -> Deployment:
    profile = Profile(0.05, 0.0, per_output_s=0.05)
    return deploy("llm", FakeLLM, FakeLLMConfig(SLOTS), contract="llm", max_running=SLOTS, profile=profile)


@dataclass
class Run:
    """A simulated run: arrivals at a rate, and what came of them."""

    rate: float
    seed: int
    is_admitting: bool
    deadline_s: float = DEADLINE_S
    num_queries: int = NUM_QUERIES
    num_kept: int = 0
    num_missed: int = 0
    refused: list[DeadlineTooClose] = field(default_factory=list)
    end_s: float = 0.0
    last_s: float = 0.0

    def __post_init__(self) -> None:
        self._egraph = PlanCache({"llm": engine().profile}).plan(app(), {}, ())
        self._admission = Admission([engine()])
        self._started: dict[str, tuple[float, Estimate]] = {}
        self._driver = VirtualDriver([engine()], keeps=False, on_reply=self._on_reply)

    @property
    def goodput(self) -> float:
        """Queries a second that ended by their deadline."""
        return self.num_kept / self.end_s

    def run(self) -> Run:
        source = random.Random(self.seed)
        at_s = 0.0
        for number in range(self.num_queries):
            at_s += source.expovariate(self.rate)
            self._driver.at(at_s, lambda name=f"q{number}": self._arrive(name))  # type: ignore[misc]
        self._driver.run()
        self.end_s = at_s
        assert self.num_kept + self.num_missed + len(self.refused) == self.num_queries
        return self

    def _arrive(self, name: str) -> Sequence[Event]:
        now_s, system = self._driver.now_s, self._driver.system
        estimate = self._admission.estimate("refined", self._egraph.nodes, system.open_nodes(), now_s)
        if self.is_admitting:
            try:
                self._admission.check(estimate, self.deadline_s, system.open_nodes(), now_s)
            except DeadlineTooClose as error:
                self.refused.append(error)
                return ()
        self._started[name] = now_s, estimate
        return (Submit(name, self._egraph, {"question": f"Question {name}?"}, now_s + self.deadline_s),)

    def _on_reply(self, reply: Reply) -> None:
        now_s = self.last_s = self._driver.now_s
        began_s, estimate = self._started[reply.query]
        is_whole = reply.error is None
        self.num_kept += is_whole
        self.num_missed += not is_whole
        self._admission.note_end(estimate, now_s - began_s, now_s, is_whole=is_whole)


def capacity() -> float:
    """Queries a second of the engine, when there is always work."""
    burst = Run(rate=1e6, seed=0, is_admitting=False, deadline_s=1e6, num_queries=100).run()
    return 100 / burst.last_s


def test_goodput_beyond_saturation_is_no_less_than_at_it() -> None:
    full = capacity()
    seeds = range(2)
    at_full = [Run(full, seed, True).run() for seed in seeds]
    beyond = [Run(1.5 * full, seed, True).run() for seed in seeds]
    far_beyond = [Run(3 * full, seed, True).run() for seed in seeds]
    for over, share in ((beyond, 0.05), (far_beyond, 0.1)):
        assert min(run.goodput for run in over) >= max(run.goodput for run in at_full)
        num_let_in = sum(run.num_kept + run.num_missed for run in over)
        assert sum(run.num_missed for run in over) <= share * num_let_in
        assert all(error.needs_s > DEADLINE_S for run in over for error in run.refused)
    without = Run(3 * full, 0, False).run()
    assert without.goodput < 0.8 * far_beyond[0].goodput


def test_at_half_load_nearly_all_are_let_in() -> None:
    run = Run(0.5 * capacity(), 0, True).run()
    assert run.num_missed == 0
    assert len(run.refused) <= 0.05 * NUM_QUERIES
