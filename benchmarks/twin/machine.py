"""The engines of this machine, in reality and in simulation, and the loads that both are put under."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.common.scripted_apps import configuration, fresh_questions, inputs_of, scripted_engines
from benchmarks.teola.schemes import SCHEMES, Scheme
from benchmarks.teola.workload import templates
from benchmarks.twin.compare import Run
from benchmarks.twin.costs import MachineCosts
from stretto.core import Document
from stretto.costs.step import StepCost
from stretto.engine import Engine
from stretto.frontend.plan_cache import PlanCache
from stretto.graph.compile import ExecutionGraph
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.messages import Admit, StartBatch
from stretto.models import MINI
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import SimulatedModel
from stretto.sim.shared_cores import SharedCoresDriver, own_vectors, remembering
from stretto.sim.step_times import ProfileCost
from stretto.tasks import LLMTask, Task

ALONE, TOGETHER = "alone", "together"
_PAUSE_S = 1000.0
LLMS = ("llm", "llm_small")


@dataclass(frozen=True, slots=True)
class TwinWorkload:
    """Queries of one app: questions, and when each comes; None for one after the other."""

    app: str
    name: str
    questions: tuple[str, ...]
    at_s: tuple[float, ...] | None


class Machine:
    """One instance of each engine, each in a process, and the plans of the apps on them.

    Args:
        apps: those that are asked.
        schemes: names in `SCHEMES`.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        apps: Sequence[str],
        schemes: Sequence[str],
        answer_tokens: int,
    ) -> None:
        from benchmarks.common.scripted_transformer import Script
        from stretto.engines.catalogue import vectors_engine
        from stretto.engines.prompt_tokens import PromptTokenizer
        from stretto.engines.transformer.engine import TransformerConfig

        self.documents = list(documents)
        self.schemes: Mapping[str, Scheme] = {name: SCHEMES[name] for name in schemes}
        self.llm_config = TransformerConfig(MINI)
        self.script = Script(PromptTokenizer(MINI))
        vectors = replace(vectors_engine(), executable=own_vectors, config=None)
        self._real = {
            name: [
                replace(engine, runs_in="process")
                for engine in scripted_engines(scheme, self.llm_config, documents, vectors)
            ]
            for name, scheme in self.schemes.items()
        }
        self._simulated = remembering(self.engines)
        self._planner = PlanCache({engine.name: engine.profile for engine in self.engines})
        self._plans: dict[tuple[str, str], ExecutionGraph] = {}
        for name, scheme in self.schemes.items():
            for app in apps:
                self._plans[app, name] = self._planner.plan(
                    templates()[app], configuration(app, answer_tokens), scheme.passes
                )
        self.apps = tuple(apps)

    @property
    def engines(self) -> list[Engine]:
        """Those that costs are measured of: of a scheme that caches, if there is one."""
        name = next(
            (name for name, scheme in self.schemes.items() if scheme.caches), next(iter(self.schemes))
        )
        return self._real[name]

    def real(self, scheme: str) -> list[Engine]:
        """The engines, to be run for real."""
        return self._real[scheme]

    def plan(self, app: str, scheme: str) -> ExecutionGraph:
        """Of an app's queries."""
        return self._plans[app, scheme]

    def inputs(self, app: str, question: str) -> dict[str, object]:
        """What a query brings."""
        return inputs_of(app, question, self.documents)

    def rehearse(self, questions: Sequence[str]) -> tuple[dict[str, list[tuple[Task, ...]]], list[LLMTask]]:
        """Batches by engine, and requests, of a few queries that come alone and then at once, in virtual time
        with the profiles that come with the engines. No question may be one of those that are compared."""
        batches: dict[str, list[tuple[Task, ...]]] = {}
        requests: list[LLMTask] = []
        profiles = {engine.name: ProfileCost(engine.profile) for engine in self.engines}
        for name, scheme in self.schemes.items():
            models = {llm: self._model(scheme, profiles[llm]) for llm in LLMS}
            driver = VirtualDriver(self._engines(scheme), expand=self._planner.expand, models=models)
            for place, app in enumerate(self.apps):
                for number, question in enumerate(questions):
                    at_s = _PAUSE_S * (place if number == 0 else len(self.apps))
                    inputs = self.inputs(app, question)
                    driver.submit(f"{name}/{app}/{number}", self.plan(app, name), inputs, at_s=at_s)
            driver.run()
            for _, action in driver.actions:
                if isinstance(action, StartBatch):
                    batches.setdefault(action.engine, []).append(action.tasks)
                elif isinstance(action, Admit):
                    requests.append(replace(action.task, id=len(requests)))
        return batches, requests

    def loads(
        self, counts: Mapping[str, int], utilisation: float, costs: MachineCosts, seed: int
    ) -> list[TwinWorkload]:
        """Both of every app, of so many queries. How fast they come follows from the simulated work of those
        that are alone, under the scheme that has the most."""
        loads = []
        for app, count in counts.items():
            questions = tuple(fresh_questions(self.documents, count, f"{app}/{seed}"))
            load = TwinWorkload(app, ALONE, questions, None)
            most_s = max(self._most_s(load, name, costs) for name in self.schemes)
            generator = random.Random(f"{app}/{seed}")
            at_s, arrivals = 0.0, []
            for _ in questions:
                arrivals.append(at_s)
                at_s += generator.expovariate(utilisation * count / most_s)
            loads += [load, TwinWorkload(app, TOGETHER, questions, tuple(arrivals))]
        return loads

    def simulate(self, load: TwinWorkload, scheme: str, costs: MachineCosts) -> Run:
        """Seconds of each query, and what it answers."""
        driver = self._driver(load, scheme, costs)
        replies = driver.run()
        seconds, answers = [], []
        for number in range(len(load.questions)):
            query = driver.recorder.queries[f"{number}"]
            reply = replies[f"{number}"]
            if reply.error is not None:
                raise reply.error
            assert query.end_s is not None
            seconds.append(query.end_s - query.start_s)
            assert reply.outputs is not None
            answers.append(reply.outputs["answer"])
        return Run(tuple(seconds), tuple(answers))

    def _most_s(self, load: TwinWorkload, scheme: str, costs: MachineCosts) -> float:
        """Seconds that the busiest engine is at work, or all of them by core, over all queries."""
        driver = self._driver(load, scheme, costs)
        driver.run()
        busy_s = dict(driver.steps_s)
        for _, action in driver.actions:
            if isinstance(action, StartBatch):
                seconds = costs.batches[action.engine](action)
                busy_s[action.engine] = busy_s.get(action.engine, 0.0) + seconds
        return max(*busy_s.values(), sum(busy_s.values()) / costs.sharing.cores)

    def _driver(self, load: TwinWorkload, name: str, costs: MachineCosts) -> SharedCoresDriver:
        scheme = self.schemes[name]
        driver = SharedCoresDriver(
            self._engines(scheme),
            costs.sharing,
            expand=self._planner.expand,
            models={llm: self._model(scheme, costs.steps) for llm in LLMS},
            batch_costs=costs.batches,
        )
        for number, question in enumerate(load.questions):
            at_s = number * _PAUSE_S if load.at_s is None else load.at_s[number]
            plan, inputs = self.plan(load.app, name), self.inputs(load.app, question)
            driver.submit(f"{number}", plan, inputs, at_s=at_s)
        return driver

    def _engines(self, scheme: Scheme) -> list[Engine]:
        """For simulation."""
        return [
            replace(engine, policy=scheme.policy, fill_timeout_s=scheme.fill_timeout_s)
            for engine in self._simulated
        ]

    def _model(self, scheme: Scheme, cost: StepCost) -> SimulatedModel:
        config = self.llm_config
        scheduler = SchedulerConfig(
            1 << 14,
            block_tokens=config.block_tokens,
            max_running=config.max_running,
            max_batch_tokens=config.max_batch_tokens,
        )
        return SimulatedModel(
            scheduler, cost, self.script.said, caches=scheme.caches, tokenize=self.script.prompt
        )
