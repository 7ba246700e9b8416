"""The pool of a service: its workers, behind the router's state machine in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic

from stretto.costs.learned_work import LearnedWork
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.model.profile import UNKNOWN_LLM
from stretto.operate.watch import Watch
from stretto.router.config import RouterConfig
from stretto.router.door import RouterDoor
from stretto.router.front import Front
from stretto.router.messages import NamedProgram, Sender
from stretto.router.open_requests import queue_engine
from stretto.router.serve import RunningRouter
from stretto.router.worker_changes import WorkerChanges
from stretto.runtime.runtime import Runtime
from stretto.sched.actions import Action, Reply
from stretto.sched.messages import Event, Open
from stretto.sched.observer import Observer
from stretto.sched.orders.tenants_served import NO_WEIGHTS
from stretto.sched.queries.request import StepRequest
from stretto.sched.request_trace import Door
from stretto.service.config import ServiceConfig
from stretto.service.pool.engine import pooled_deployment


class WorkerPool(Observer):
    """The workers of a service, for which all its requests wait. An async context manager: the workers are
    watched inside it. It is an observer of the runtime, which tells it when queries have ended.

    Args:
        config: settings of the router; those of its port are not used.
        service: settings of the service, of which the pool has the weights of tenants.
        say: called with what a user should know of the workers.
        model: name of the model that the engine asks for; None takes the first one that workers list.
        engine: name of the runtime's engine whose requests go to the workers.
        watch: what sees all requests; None for one of its own.

    Attributes:
        engine: name of the engine that the workers are.
        deployment: declaration of that engine.
        watch: what sees all requests.
        learner: declaration of the same engine as the workers' queue prices it, by which what is learned of
            programs is kept.
    """

    def __init__(
        self,
        config: RouterConfig,
        service: ServiceConfig,
        say: Callable[[str], None] = lambda _: None,
        model: str | None = None,
        engine: str = "llm",
        watch: Watch | None = None,
    ) -> None:
        self.watch = Watch() if watch is None else watch
        weights = {tenant.name: tenant.weight for tenant in service.tenant} or NO_WEIGHTS
        self._router = RunningRouter(
            config, say=say, tenant_weights=weights, has_port=False, watch=self.watch
        )
        self.engine = engine
        self._model = model
        self._found = ""  # the model that was found where none is named
        self._runtime: Runtime | None = None
        self._sessions: set[str] = set()  # queries that are sessions
        self._tenants: dict[str, str] = {}  # of queries that are programs by themselves
        self._is_open = False
        profile = config.worker[0].profile if config.worker else UNKNOWN_LLM  # also of those that come later
        self.deployment: Deployment = pooled_deployment(
            engine, model, profile, lambda: self.router_door, self._sender_of
        )
        self.learner = replace(self.deployment, engine=queue_engine(engine, config))

    @property
    def front(self) -> Front:
        """The driver of the router. Raises ConfigError outside of the pool's block."""
        return self.router_door.front

    @property
    def router_door(self) -> RouterDoor:
        """The door of the router. Raises ConfigError outside of the pool's block."""
        if not self._is_open:
            raise ConfigError("the workers are not watched yet")
        return self._router.door

    @property
    def changes(self) -> WorkerChanges:
        """What changes the workers; inside of the pool's block."""
        return self._router.changes

    @property
    def learned(self) -> LearnedWork:
        """What programs have asked of the workers."""
        if self._is_open:
            self._router.front.catch_up()
        return self._router.learned

    def go_on_from(self, learned: LearnedWork) -> None:
        """Order programs by what those of an earlier run have asked for. Call it before the pool's block."""
        self._router.learned = learned

    @property
    def model(self) -> str:
        """Name of the model that the engine stands for; "" if no worker has listed one yet.

        The first one that was listed remains while any worker lists it: the first worker may come back with
        another model, and requests for the engine must not follow it while the others have the model.
        """
        if self._model:
            return self._model
        listed = [name for worker in self.front.router_state.view.workers() for name in worker.models]
        if self._found not in listed:
            self._found = next(iter(listed), "")
        return self._found

    def serve(self, runtime: Runtime) -> None:
        """Take the requests of a runtime, which has the engine and this observer."""
        self._runtime = runtime

    async def __aenter__(self) -> WorkerPool:
        await self._router.__aenter__()
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_open = False
        await self._router.__aexit__()

    def end_all(self) -> None:
        """End all requests that wait or run."""
        self.front.end_all("the service is being ended")

    def on_event(self, event: Event, now_s: float) -> None:
        """Note which queries are sessions."""
        if type(event) is Open:
            self._sessions.add(event.query)

    def on_action(self, action: Action, now_s: float) -> None:
        """Free the room of a query that has ended, where that was a program by itself."""
        if type(action) is Reply:
            self._sessions.discard(action.query)
        if type(action) is not Reply or (tenant := self._tenants.pop(action.query, None)) is None:
            return
        if self._is_open:
            front = self.front
            front.act(front.router_state.end_program(tenant, action.query, monotonic()))

    def _sender_of(self, task: int) -> Sender | None:
        """Return who sends the requests of a task of the engine; None if the task has ended."""
        assert self._runtime is not None, "the runtime is served before it is asked anything"
        step = self._runtime.system.engines.request_of(self.engine, task)
        if step is None:
            return None
        program = _program_of(step)
        if program.name == step.query and not program.is_final:
            self._tenants[step.query] = step.record.tenant
        door: Door = "programs" if step.query in self._sessions else "apps"
        return Sender(step.record.tenant, step, program, door=door)


def _program_of(step: StepRequest) -> NamedProgram:
    """Return the program of a step: what its query names, what one caller waits for in a session, or else the
    query.
    """
    if program := step.record.program:
        return NamedProgram(program, has_returned=step.is_continued or not step.each)
    if job := step.demand.job:
        return NamedProgram(f"{step.query} {job}", has_returned=False)
    return NamedProgram(step.query, is_final=step.is_alone, has_returned=False)
