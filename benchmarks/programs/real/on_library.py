"""The same programs on the library's runtime."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.programs.contestants import ProgramContestant
from benchmarks.programs.graphs import MOST_TOKENS, MadeUpSearch, graph_of, search_engines
from benchmarks.programs.real.by_hand import TIMEOUT_S
from benchmarks.programs.real.clock import RealRun
from benchmarks.programs.simulated import JudgedServers
from benchmarks.programs.work import MixedProgram, MixedQuery
from stretto.engines.llms import llm_deployment
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.model.deployment import Deployment
from stretto.model.profile import Profile
from stretto.model.replica import Replica
from stretto.model.tasks import Done, Task
from stretto.runtime.runtime import Runtime
from stretto.sched.actions import Action, Admit
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event, Submit
from stretto.sched.observer import Observer
from stretto.sizing.servers import llm_profile

MOST_QUERIES = 100_000


class PacedSearch(MadeUpSearch):
    """The made-up search, which takes its predicted time."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self._profile = profile

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Answer all tasks after the predicted seconds."""
        time.sleep(self._profile.batch_s(sum(task.num_items or 1 for task in tasks)))
        return super().run(tasks)


def server_engines(
    servers: JudgedServers, urls: Sequence[str], model: str, chosen: ProgramContestant
) -> list[Deployment]:
    """Return the engines of the judge with servers in the place of the simulated LLM.

    Both the library and the program by hand wait long for an answer, and so ask for it whole.

    Args:
        chosen: contestant whose policy and placement the engines have.
    """
    replicas = [
        Replica(
            OpenAIServer,
            OpenAIServerConfig(url, model=model, api="completions", tokenizer="none", timeout_s=TIMEOUT_S),
            runs_in="loop",
            kv_tokens=servers.kv_tokens,
            profile=llm_profile(servers.cost),
        )
        for url in urls
    ]
    llm = llm_deployment(replicas).changed(max_running=servers.sequences, timeout_s=None)
    if chosen.placement is not None:
        llm = llm.changed(placement=chosen.placement)
    return with_policy([*paced_engines(), llm], chosen.policy)


def paced_engines() -> list[Deployment]:
    """Return the engines for search and for ranking, which take their predicted times."""
    return [one.changed(executable=PacedSearch, config=one.profile) for one in search_engines()]


def with_policy(engines: Sequence[Deployment], policy: str | None) -> list[Deployment]:
    """Return engines with a policy, or with the default one, as those of the judge are."""
    found = [one.changed(fill_timeout_s=0.0) for one in engines]
    return found if policy is None else [one.changed(policy=policy) for one in found]


class OnLibrary(Observer):
    """The programs on a runtime. Notes the tokens of each call, and when queries began, in `found`.

    Give it to the runtime as an observer, and the runtime to it.

    Args:
        max_tokens: limit of all answers.
    """

    runtime: Runtime

    def __init__(self, engines: Sequence[Deployment], found: RealRun, max_tokens: int = MOST_TOKENS) -> None:
        self._profiles = tuple((one.name, one.profile) for one in engines)
        self._found = found
        self._max_tokens = max_tokens
        self._current: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._submitted_s: dict[str, float] = {}
        self._tasks: dict[int, tuple[str, str, int]] = {}

    async def ask(self, program: MixedProgram, query: MixedQuery) -> str:
        """Run a query of a program, and return its answer."""
        self._current[program.name] = query.name
        outputs = await self.runtime.run(
            graph_of(query.kind, query.width, self._profiles, self._max_tokens),
            query.inputs(),
            program=program.name,
            tenant=program.tenant,
            objective=program.objective,
        )
        return str(outputs["answer"])

    def on_action(self, action: Action, now_s: float) -> None:
        """Note how long a query has waited for its first call, and which call a task is."""
        if isinstance(action, Admit) and action.task.query in self._names:
            task = action.task
            name = self._names[task.query]
            self._tasks[task.id] = (name, task.step, task.item)
            if (since_s := self._submitted_s.pop(name, None)) is not None:
                self._found.run.waits_s[name] = now_s - since_s

    def on_event(self, event: Event, now_s: float) -> None:
        """Note the names of queries, and the tokens of calls."""
        if isinstance(event, Submit) and event.program in self._current:
            name = self._names[event.query] = self._current[event.program]
            self._submitted_s[name] = now_s
        elif isinstance(event, LLMReport) and isinstance(event.event, Done):
            key = self._tasks.pop(event.event.task, None)
            if key is not None:
                self._found.run.usages[key] = event.event.usage
