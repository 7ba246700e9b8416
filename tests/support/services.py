"""Services of tests: a runtime with scripted engines behind real HTTP, on an event loop of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from stretto import Runtime
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.model.deployment import Deployment
from stretto.model.tasks import LLMEvent
from stretto.operate.step_requests import StepRequests
from stretto.operate.watch import Watch
from stretto.sched.observer import Observer
from stretto.service.apps.deployed_app import DeployedApp
from stretto.service.config import ServiceConfig
from stretto.service.places import LastInstances
from stretto.service.pool.pool import WorkerPool
from stretto.service.service import Service


@contextmanager
def served(
    deployments: Sequence[Deployment],
    config: ServiceConfig | None = None,
    apps: Mapping[str, DeployedApp] | None = None,
    observers: Sequence[Observer] = (),
    pool: WorkerPool | None = None,
    watch: Watch | None = None,
    state: Path | None = None,
) -> Iterator[tuple[Service, str]]:
    """Run a service until the end of the block; yields it and its URL."""
    places = LastInstances()
    config = config or ServiceConfig(port=0)
    if watch is not None:
        observers = [*observers, StepRequests(watch.observers)]
    weights = {tenant.name: tenant.weight for tenant in config.tenant}
    if pool is not None:
        deployments, observers = [*deployments, pool.deployment], [*observers, pool]
    with Runtime(deployments, observers=[places, *observers], tenant_weights=weights) as runtime:
        if pool is not None:
            runtime.run_on_loop(pool.__aenter__)
        service = Service(runtime, config, apps, places, pool=pool, watch=watch, state=state)
        runtime.run_on_loop(service.__aenter__)
        try:
            yield service, service.url
        finally:
            runtime.run_on_loop(lambda: service.__aexit__(None, None, None))
            if pool is not None:
                runtime.run_on_loop(pool.__aexit__)


class MortalLLM(ScriptedLLM):
    """An LLM whose process is killed in the middle of its first answer; the next process answers.

    Args:
        folder: where it leaves the mark that it has been killed.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(lambda task, _: "it lives", 1)
        self._mark = folder / "was killed"
        self._num_steps = 0

    def step(self) -> list[LLMEvent]:
        self._num_steps += 1
        if self._num_steps > 2 and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step()
