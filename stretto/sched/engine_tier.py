"""The schedulers of all engines, with marks at those that may have work to give to instances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from itertools import count

from stretto.cluster.messages import KVReport
from stretto.cluster.placements.table import placement_of
from stretto.cluster.prompt_keys import SpaceOf
from stretto.costs.learned_work import NOTHING_LEARNED, LearnedWork
from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.model.nearest_name import did_you_mean
from stretto.model.replica import Replica
from stretto.sched.actions import Action
from stretto.sched.engine_events import (
    AddInstance,
    BatchDone,
    BatchFailed,
    Drain,
    EngineEvent,
    InstanceLost,
    InstanceReady,
    InstanceStopped,
    InstanceSuspected,
    LLMReport,
    Suspended,
)
from stretto.sched.engines.batch_scheduler import BatchScheduler
from stretto.sched.llm.scheduler import LLMScheduler
from stretto.sched.orders import check_policy
from stretto.sched.orders.order import prices_s
from stretto.sched.orders.program_account import ProgramAccount
from stretto.sched.orders.tenants_served import NO_WEIGHTS
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import StepRequest
from stretto.sched.queries.results import Report
from stretto.sched.vocabulary import Vocabulary


class EngineTier:
    """The schedulers of all engines, by name. Each event and request is passed on to the scheduler of its
    engine.

    An engine is marked dirty when its scheduler may be able to give work to instances, so that only marked
    ones are asked.

    Attributes:
        dirty: names of the marked engines, in the order of the marks. Who asks a scheduler takes its mark
            away.

    Raises:
        ConfigError: two engines have one name, a policy or a placement is unknown, a weight of a tenant is
            not positive, or something was learned of an engine that is not there.
    """

    def __init__(
        self,
        deployments: Iterable[Deployment],
        vocabulary: Vocabulary,
        space_of: SpaceOf,
        tenant_weights: Mapping[str, float] = NO_WEIGHTS,
        learned: Mapping[str, LearnedWork] = NOTHING_LEARNED,
    ) -> None:
        policies, placements = vocabulary.policies, vocabulary.placements
        self.schedulers: dict[str, BatchScheduler | LLMScheduler] = {}
        self.dirty: dict[str, None] = {}
        ids = count(1)
        for deployment in deployments:
            engine, profile = deployment.engine, deployment.profile
            if engine.name in self.schedulers:
                raise ConfigError(f"two engines are called {engine.name!r}")
            check_policy(engine.policy, policies)
            placement = placement_of(engine.placement, placements)
            known = learned.get(engine.name)
            account = ProgramAccount(*prices_s(engine, profile), tenant_weights, known)
            self.schedulers[engine.name] = (
                LLMScheduler(engine, profile, placement(), ids, policies, space_of, account)
                if engine.is_llm
                else BatchScheduler(engine, profile, ids, policies, account)
            )
        for name in learned:
            if name not in self.schedulers:
                raise ConfigError(f"something was learned of engine {name!r}, which there is not")

    # --- what instances report

    def queries_of(self, event: EngineEvent) -> Iterable[str]:
        """Return the ids of the queries that an instance's message is about.

        If the message names a task, this is the query of that task, otherwise all queries with work on the
        instance.
        """
        if isinstance(event, AddInstance):
            return ()
        scheduler = self.schedulers[event.engine]
        if isinstance(event, LLMReport) and isinstance(scheduler, LLMScheduler):
            return scheduler.queries_of(event.instance, event.event.task)
        return scheduler.queries_in(event.instance)

    def handle(self, event: EngineEvent, now_s: float) -> tuple[list[Report], list[Action]]:
        """Pass an event on to its engine's scheduler; return reports that
        tell queries about their work, and the actions to carry out.
        """
        scheduler = self.schedulers[event.engine]
        if isinstance(event, LLMReport):
            assert isinstance(scheduler, LLMScheduler)
            try:
                return scheduler.report(event.instance, event.event, now_s), []
            finally:
                if scheduler.may_decide:
                    self.dirty[event.engine] = None
        self.dirty[event.engine] = None
        match event:
            case BatchDone():
                assert isinstance(scheduler, BatchScheduler)
                if scheduler.idle.are_several:
                    scheduler.observe(event.instance, event.batch, now_s)
                return scheduler.done(event.instance, event.batch, event.results), []
            case BatchFailed(_, instance, batch, error):
                assert isinstance(scheduler, BatchScheduler)
                return scheduler.failed(instance, batch, error), []
            case AddInstance(_, replica):
                return [], [*scheduler.instances.add(replica, now_s)]
            case Drain(_, instance, how):
                return [], scheduler.drain(instance, how, now_s)
            case InstanceReady(_, instance):
                scheduler.ready(instance, now_s)
            case InstanceSuspected(_, instance, reason, rest_s):
                scheduler.suspected(instance, reason, now_s, rest_s)
            case InstanceLost(_, instance, error):
                return scheduler.lost(instance, error, now_s)
            case InstanceStopped(_, instance):
                return scheduler.stopped(instance, now_s), []
            case Suspended(_, instance, task, token_ids):
                if isinstance(scheduler, LLMScheduler):
                    scheduler.suspended(instance, task, token_ids)
            case KVReport():
                if isinstance(scheduler, LLMScheduler):
                    scheduler.observe(event)
        return [], []

    # --- what queries want

    def add(self, request: StepRequest, now_s: float) -> None:
        """Put a request into the queue of its engine."""
        engine = request.node.engine
        assert engine is not None
        self.dirty[engine] = None
        self.schedulers[engine].add(request, now_s)

    def withdraw(
        self, engine: str, query: str, node: int, now_s: float, items: Set[int] | None = None
    ) -> list[Action]:
        """Drop the work of one node of a query at an engine, or of some of its items
        only, as their results are no longer wanted; return the actions to carry out.
        """
        self.dirty[engine] = None
        return self.schedulers[engine].withdraw(query, node, now_s, items)

    def ask(self, engine: str, query: str, demands: Mapping[int, Demand]) -> None:
        """Tell an engine's scheduler that some nodes of a query are needed more or
        less urgently now, so that it sorts their waiting work anew.

        `demands` says, by node, how urgently its result is needed.
        """
        self.dirty[engine] = None
        self.schedulers[engine].ask(query, demands)

    def end_query(self, engine: str, query: str) -> list[Action]:
        """Drop all work at an engine of a query that has ended; return the actions to carry out."""
        self.dirty[engine] = None
        return self.schedulers[engine].end_query(query)

    def end_program(self, program: str, tenant: str) -> None:
        """Tell the engines that a tenant's program makes no more queries."""
        for name, scheduler in self.schedulers.items():
            scheduler.end_program(program, tenant)
            self.dirty[name] = None

    # --- checks

    def is_idle(self) -> bool:
        """Return whether no engine has work that waits or runs."""
        return all(scheduler.is_idle() for scheduler in self.schedulers.values())

    def check_engines(self, egraph: ExecutionGraph) -> None:
        """Check that there is an engine of the right kind for each step of a compiled graph. Raises
        ConfigError.
        """
        for node in egraph.engine_nodes:
            assert node.engine is not None
            scheduler = self.schedulers.get(node.engine)
            if scheduler is None:
                known = ", ".join(self.schedulers) or "none"
                meant = did_you_mean(node.engine, self.schedulers)
                message = f"there is no engine {node.engine!r}; there are {known}{meant}"
                raise ConfigError(message, step=node.name)
            if scheduler.engine.is_llm != (node.spec.runs_on == "llm"):
                kind = "an LLM" if scheduler.engine.is_llm else "no LLM"
                message = f"engine {node.engine!r} does not run {node.op}: it is {kind}"
                raise ConfigError(message, step=node.name)

    def follows_prefixes(self, engine: str) -> bool:
        """Return whether an engine's placement policy sends prompts where their prefixes are held."""
        scheduler = self.schedulers[engine]
        return isinstance(scheduler, LLMScheduler) and scheduler.follows_prefixes

    def placed_replicas(self) -> list[tuple[str, Replica]]:
        """Return (name, replica) pairs of all instances that hold devices (GPUs, cores) now. A replica is the
        declaration that an instance was started from.
        """
        fleets = (scheduler.instances.fleet for scheduler in self.schedulers.values())
        return [(f"{fleet.engine}/{i}", fleet.replica(i)) for fleet in fleets for i in fleet.live]

    def learned(self) -> dict[str, LearnedWork]:
        """Return what was learned of programs, by engine, in this run and those before."""
        return {name: scheduler.account.learned for name, scheduler in self.schedulers.items()}

    def request_of(self, engine: str, task: int) -> StepRequest | None:
        """Return the request that a running task of an LLM engine belongs to; None if the task has ended."""
        scheduler = self.schedulers[engine]
        return scheduler.request_of(task) if isinstance(scheduler, LLMScheduler) else None

    def check_invariants(self) -> None:
        """Check the state of every engine's scheduler. For tests."""
        for scheduler in self.schedulers.values():
            scheduler.check_invariants()
