"""The LLM engine of a service whose workers are a pool: its requests wait with all others for the workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from stretto.cluster.kv_events import KVEvent
from stretto.engines.openai_server.config import NO_LIMIT, OpenAIServerConfig
from stretto.engines.openai_server.http import Http
from stretto.engines.openai_server.server import OpenAIServer
from stretto.model.deployment import Deployment
from stretto.model.errors import BadServer, EngineBusy, EngineFailure, EngineUnavailable
from stretto.model.profile import Profile
from stretto.model.replica import Engine, Replica
from stretto.model.tasks import Failed, LLMEvent, LLMTask
from stretto.router.door import RouterDoor
from stretto.router.messages import Sender, WorkerId
from stretto.sched.queries.request import StepRequest
from stretto.service.pool.in_process import ANSWERED_BY, SENDER, InProcessClient
from stretto.wire import paths

_MAX_ATTEMPTS = 3
"""Times that a request is sent: the workers are tried in turn each time, first those that have not broken it
off; text that was passed on already is not passed on again."""
_RECOVER_S = 2.0
"""Seconds that a request waits at the engine after a failure: short, as the pool waits for workers itself."""
_MAX_FAILED = 1000
"""Number of requests for which it is remembered which workers have broken them off."""
_OK = 200
_WAIT_S = 3600.0
"""Longest silence of the pool, which has limits of its own for whatever it waits for."""


@dataclass(frozen=True, slots=True)
class PooledConfig:
    """The configuration of an LLM engine at a pool.

    Attributes:
        server: how its requests are written.
        door: returns the door of the pool's router.
        sender_of: returns who sends the requests of a task.
    """

    server: OpenAIServerConfig
    door: Callable[[], RouterDoor] = field(compare=False)
    sender_of: Callable[[int], Sender | None] = field(compare=False)

    @property
    def output_key(self) -> object:
        """Key that is equal for instances with equal answers."""
        return self.server.output_key


class PooledLLM:
    """An LLM engine that asks the workers of a pool (`AsyncLLM`)."""

    LIMITS_OFFLINE: ClassVar[bool] = True  # offline requests wait behind all others, in the pool's queue

    def __init__(self, config: PooledConfig) -> None:
        self._door = config.door
        self._sender_of = config.sender_of
        self._failed_at: dict[StepRequest, frozenset[WorkerId]] = {}
        self._http = Http(config.server, InProcessClient(config.door))
        self._server = OpenAIServer(config.server, self._http)

    async def start(self) -> None:
        """Return at once: the workers run already."""

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        """Run one task, as `OpenAIServer` does, in the name of its tenant and program.

        What has met no worker in the pool for as long as it may wait there fails for good. What a worker
        answers within a stream that refuses whoever asks is worth another attempt while others are left.
        """
        sender = self._sender_of(task.id)
        step = None if sender is None else sender.step
        answered_by: list[tuple[WorkerId, int]] = []
        if sender is not None and step is not None and (failed_at := self._failed_at.pop(step, None)):
            sender = replace(sender, failed_at=failed_at)
        SENDER.set(sender)  # of this asyncio task alone
        ANSWERED_BY.set(answered_by)

        def tell(event: LLMEvent) -> None:
            error = event.error if isinstance(event, Failed) else None
            if error is not None and step is not None and sender is not None and answered_by:
                failed_at = frozenset((*sender.failed_at, *(worker for worker, _ in answered_by)))
                self._failed_at[step] = failed_at
                if len(self._failed_at) > _MAX_FAILED:
                    del self._failed_at[next(iter(self._failed_at))]
                if isinstance(error, BadServer) and answered_by[-1][1] == _OK and self._is_left(failed_at):
                    error = EngineUnavailable(error.message, step=error.step)
                    event = Failed(event.task, error)
            if isinstance(error, EngineBusy) and not error.retry_after_s:
                event = Failed(event.task, EngineFailure(error.message, step=error.step))
            emit(event)

        await self._server.generate(task, tell, rank)

    def _is_left(self, failed_at: Collection[WorkerId]) -> bool:
        """Return whether a worker serves where a request has not failed."""
        workers = self._door().front.router_state.view.workers()
        return any(worker.state == "serving" and worker.id not in failed_at for worker in workers)

    def written(self, task: int) -> tuple[int, ...]:
        """Return an empty tuple: servers send text."""
        return ()

    async def watch(self, report: Callable[[Sequence[KVEvent]], None]) -> None:
        """Report nothing: the router follows its workers."""
        await asyncio.Event().wait()

    async def probe(self) -> None:
        """Check whether a worker serves. Raises EngineFailure if none does."""
        await self._http.fetch(paths.HEALTH, is_retried=False)

    async def aclose(self) -> None:
        """Close nothing: the pool has the connections."""
        await self._server.aclose()


def pooled_deployment(
    name: str,
    model: str | None,
    profile: Profile,
    door: Callable[[], RouterDoor],
    sender_of: Callable[[int], Sender | None],
) -> Deployment:
    """Return an LLM engine at a pool.

    Args:
        model: name of the model at the workers; None takes the first one that they list.
        profile: predicted seconds of a worker.
        door: returns the door of the pool's router.
        sender_of: returns who sends the requests of a task.
    """
    server = OpenAIServerConfig(
        "http://workers",
        model=model,
        api="chat",
        tokenizer="none",
        api_key_env="",
        timeout_s=_WAIT_S,
        max_connections=NO_LIMIT,
        max_retries=0,
        warms_prefixes=False,
    )
    engine = Engine(
        name,
        contract="llm",
        placement="least_loaded",
        max_batch=NO_LIMIT,  # requests wait at the workers, and not before the only instance
        max_running=NO_LIMIT,
        timeout_s=None,
        max_attempts=_MAX_ATTEMPTS,
        recover_s=_RECOVER_S,
        holds_programs=False,
    )
    config = PooledConfig(server, door, sender_of)
    replica = Replica(PooledLLM, config, runs_in="loop", profile=profile)
    return Deployment(engine, (replica,))
