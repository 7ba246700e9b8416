"""The engines of this machine, real and simulated, and the workloads for both."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.common.mini_model import MINI
from benchmarks.common.scripted_apps import configuration, fresh_questions, inputs_of, scripted_engines
from benchmarks.teola.schemes import SCHEMES, Scheme
from benchmarks.teola.workload import templates
from benchmarks.twin.compare import TwinRun
from benchmarks.twin.costs import MachineCosts
from benchmarks.twin.shared_cores import SharedCoresDriver, own_vectors, remembering
from stretto.apps.plan_cache import PlanCache
from stretto.costs.step import StepCost
from stretto.graph.execution_graph import ExecutionGraph
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import Deployment
from stretto.model.tasks import LLMTask, Task
from stretto.model.values import Document
from stretto.sched.actions import Admit, StartBatch
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import SimulatedModel
from stretto.sim.step_times import ProfileCost

ALONE, TOGETHER = "alone", "together"
_PAUSE_S = 1000.0
LLMS = ("llm", "llm_small")


@dataclass(frozen=True, slots=True)
class TwinWorkload:
    """Queries of one app: questions, and times of arrival, or None for one after the other."""

    app: str
    name: str
    questions: tuple[str, ...]
    at_s: tuple[float, ...] | None


class TwinMachine:
    """One instance of each engine, in a process each, and the plans of the apps.

    Args:
        apps: names of the apps that are run.
        schemes: names of schemes, from `SCHEMES`.
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
        from stretto.engines.transformer.engine_config import TransformerConfig

        self.documents = list(documents)
        self.schemes: Mapping[str, Scheme] = {name: SCHEMES[name] for name in schemes}
        self.llm_config = TransformerConfig(MINI)
        self.script = Script(PromptTokenizer(MINI))
        vectors = vectors_engine().changed(executable=own_vectors, config=None)
        self._real = {
            name: [
                engine.changed(runs_in="process")
                for engine in scripted_engines(scheme, self.llm_config, documents, vectors)
            ]
            for name, scheme in self.schemes.items()
        }
        self._simulated = remembering(self.engines)
        self._plan_cache = PlanCache({engine.name: engine.profile for engine in self.engines})
        self._plans: dict[tuple[str, str], ExecutionGraph] = {}
        for name, scheme in self.schemes.items():
            for app in apps:
                self._plans[app, name] = self._plan_cache.plan(
                    templates()[app], configuration(app, answer_tokens), scheme.passes
                )
        self.apps = tuple(apps)

    @property
    def engines(self) -> list[Deployment]:
        """Engines whose costs are measured, of a scheme that caches if there is one."""
        name = next(
            (name for name, scheme in self.schemes.items() if scheme.caches), next(iter(self.schemes))
        )
        return self._real[name]

    def real(self, scheme: str) -> list[Deployment]:
        """The engines, to be run for real."""
        return self._real[scheme]

    def plan(self, app: str, scheme: str) -> ExecutionGraph:
        """Plan of an app's queries under a scheme."""
        return self._plans[app, scheme]

    def inputs(self, app: str, question: str) -> dict[str, object]:
        """Inputs of a query."""
        return inputs_of(app, question, self.documents)

    def rehearse(self, questions: Sequence[str]) -> tuple[dict[str, list[tuple[Task, ...]]], list[LLMTask]]:
        """Simulate a few queries, alone and then at once, with the profiles that come with the engines.

        Returns their batches by engine, and their requests. The questions must not be among those that are
        compared.
        """
        batches: dict[str, list[tuple[Task, ...]]] = {}
        requests: list[LLMTask] = []
        profiles = {engine.name: ProfileCost(engine.profile) for engine in self.engines}
        for name, scheme in self.schemes.items():
            models = {llm: self._model(scheme, profiles[llm]) for llm in LLMS}
            driver = VirtualDriver(self._engines(scheme), expand=self._plan_cache.expand, models=models)
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

    def workloads(
        self, counts: Mapping[str, int], utilisation: float, costs: MachineCosts, seed: int
    ) -> list[TwinWorkload]:
        """Make both workloads of every app.

        The rate of arrivals follows from the simulated work of queries alone, under the scheme with the most
        work.
        """
        workloads = []
        for app, count in counts.items():
            questions = tuple(fresh_questions(self.documents, count, f"{app}/{seed}"))
            workload = TwinWorkload(app, ALONE, questions, None)
            most_s = max(self._most_s(workload, name, costs) for name in self.schemes)
            generator = random.Random(f"{app}/{seed}")
            at_s, arrivals = 0.0, []
            for _ in questions:
                arrivals.append(at_s)
                at_s += generator.expovariate(utilisation * count / most_s)
            workloads += [workload, TwinWorkload(app, TOGETHER, questions, tuple(arrivals))]
        return workloads

    def simulate(self, workload: TwinWorkload, scheme: str, costs: MachineCosts) -> TwinRun:
        """Simulate a workload; returns the seconds and answers of its queries."""
        driver = self._driver(workload, scheme, costs)
        replies = driver.run()
        seconds, answers = [], []
        for number in range(len(workload.questions)):
            query = driver.recorder.queries[f"{number}"]
            reply = replies[f"{number}"]
            if reply.error is not None:
                raise reply.error
            assert query.end_s is not None
            seconds.append(query.end_s - query.start_s)
            assert reply.outputs is not None
            answers.append(reply.outputs["answer"])
        return TwinRun(tuple(seconds), tuple(answers))

    def _most_s(self, workload: TwinWorkload, scheme: str, costs: MachineCosts) -> float:
        """Seconds of work of the busiest engine, or of all engines per core if that is more, over all
        queries."""
        driver = self._driver(workload, scheme, costs)
        driver.run()
        busy_s = dict(driver.steps_s)
        for _, action in driver.actions:
            if isinstance(action, StartBatch):
                seconds = costs.batches[action.engine](action)
                busy_s[action.engine] = busy_s.get(action.engine, 0.0) + seconds
        return max(*busy_s.values(), sum(busy_s.values()) / costs.sharing.cores)

    def _driver(self, workload: TwinWorkload, name: str, costs: MachineCosts) -> SharedCoresDriver:
        scheme = self.schemes[name]
        driver = SharedCoresDriver(
            self._engines(scheme),
            costs.sharing,
            expand=self._plan_cache.expand,
            models={llm: self._model(scheme, costs.steps) for llm in LLMS},
            batch_costs=costs.batches,
        )
        for number, question in enumerate(workload.questions):
            at_s = number * _PAUSE_S if workload.at_s is None else workload.at_s[number]
            plan, inputs = self.plan(workload.app, name), self.inputs(workload.app, question)
            driver.submit(f"{number}", plan, inputs, at_s=at_s)
        return driver

    def _engines(self, scheme: Scheme) -> list[Deployment]:
        """Return the simulated engines of a scheme."""
        return [
            engine.changed(policy=scheme.policy, fill_timeout_s=scheme.fill_timeout_s)
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
            scheduler, cost, self.script.output, caches=scheme.caches, tokenize=self.script.prompt
        )
