"""Health checks of the workers: each asks a worker and tells the state machine, which times the next.

A worker passes if it answers `/health` with a status below 500, for some servers lack that path, and if its
models are known: it is asked for them unless its settings name them. A worker that serves keeps its models
while its list cannot be read, unless it refuses the router's own key. One that does not serve is also asked
for the size of its KV memory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from time import monotonic

from stretto.engines.openai_server.metrics import CacheConfig, read_cache_config
from stretto.model.errors import BadReply, ConfigError, EngineFailure
from stretto.router import believable
from stretto.router.front import Front
from stretto.router.messages import WorkerId
from stretto.router.question import ask_worker
from stretto.router.worker_config import WorkerConfig
from stretto.router.worker_link import WorkerLink
from stretto.router.workers import KEY_HINT, NO_KEY_HINT
from stretto.wire import paths
from stretto.wire.models import read_models


class HealthChecks:
    """The health checks of all workers, in the running event loop."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._timers: dict[WorkerId, asyncio.TimerHandle] = {}
        self._running: dict[WorkerId, asyncio.Task[None]] = {}
        front.check = self.schedule
        front.on_worker_gone.append(self.forget)

    def add(self, config: WorkerConfig) -> WorkerId:
        """Add a worker, and check it until it passes and from then on; return its number.

        Raises:
            ConfigError: there is a worker with this address.
        """
        worker = self._enter(config)
        self.schedule(worker, monotonic())
        return worker

    async def add_and_wait(self, config: WorkerConfig) -> None:
        """Add a worker as `add` does, and wait for the outcome of its first check.

        Raises:
            ConfigError: there is a worker with this address, or what answers there does not speak HTTP.
        """
        worker = self._enter(config)
        try:
            await self._check(worker, self._front.links[worker])
        except BadReply as error:
            raise ConfigError(f"worker {config.url}: {error.message}") from error

    def schedule(self, worker: WorkerId, at_s: float) -> None:
        """Check a worker at a time; one that is being checked now is scheduled again by its check."""
        if worker in self._running:
            return
        if (timer := self._timers.pop(worker, None)) is not None:
            timer.cancel()
        delay_s = max(0.0, at_s - monotonic())
        self._timers[worker] = asyncio.get_running_loop().call_later(delay_s, self._begin, worker)

    def forget(self, worker: WorkerId) -> None:
        """End the checks of a worker that is gone."""
        if (timer := self._timers.pop(worker, None)) is not None:
            timer.cancel()
        if (task := self._running.pop(worker, None)) is not None:
            task.cancel()

    async def close(self) -> None:
        """End all checks."""
        tasks = list(self._running.values())
        for worker in (*self._timers, *self._running):
            self.forget(worker)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _enter(self, config: WorkerConfig) -> WorkerId:
        worker = self._front.router_state.membership.add(config).id
        settings, certificates = self._front.config, self._front.watch.certificates
        self._front.links[worker] = WorkerLink(
            config, settings.connect_timeout_s, certificates, settings.worker_tls
        )
        return worker

    def _begin(self, worker: WorkerId) -> None:
        del self._timers[worker]
        self._running[worker] = asyncio.create_task(self._check_again(worker))

    async def _check_again(self, worker: WorkerId) -> None:
        try:
            await self._check(worker, self._front.links[worker])
        except BadReply as error:
            self._fail(worker, error.message)

    async def _check(self, worker: WorkerId, link: WorkerLink) -> None:
        """Check a worker once, and tell the state machine. Raises BadReply if it does not speak HTTP."""
        try:
            status, _ = await self._ask(link, paths.HEALTH)
            if status >= 500:
                self._fail(worker, f"its health check has status {status}")
                return
            models, problem = await self._models(worker, link)
            if problem:
                self._fail(worker, problem)
                return
            kv_tokens = await self._kv_tokens(worker, link)
        except BadReply:
            raise
        except EngineFailure as failure:
            is_gone = isinstance(failure.__cause__, ConnectionRefusedError)
            self._fail(worker, failure.message, is_gone=is_gone)
            return
        self._running.pop(worker, None)
        self._front.act(
            self._front.router_state.membership.check_passed(worker, models, kv_tokens, monotonic())
        )
        for tell in self._front.on_worker_passed:
            tell(worker)

    def _fail(self, worker: WorkerId, reason: str, *, is_gone: bool = False) -> None:
        self._running.pop(worker, None)
        self._front.act(
            self._front.router_state.membership.check_failed(worker, reason, monotonic(), is_gone=is_gone)
        )

    async def _models(self, worker: WorkerId, link: WorkerLink) -> tuple[Mapping[str, object], str]:
        """Return the worker's models by name, and "", or no models and why they are not known."""
        found = self._front.router_state.view.worker(worker)
        if found is None:
            return {}, "it is gone"
        known = {name: {"id": name, "object": "model"} for name in found.config.models}
        if known and not link.url.is_guess:
            return known, ""
        status, body = await self._ask(link, paths.MODELS)
        if status == 404 and link.url.is_guess:
            guessed, link.url = link.url, link.url.without_version()
            status, body = await self._ask(link, paths.MODELS)
            if status == 404:
                link.url = guessed
        if known:
            return known, ""
        has_key = found.config.has_key
        models, problem = await self._front.readers.run_if_large(
            len(body), partial(_listed, status, body, has_key)
        )
        is_refused = has_key and status in (401, 403)
        keeps = problem and found.state == "serving" and not is_refused
        return (found.models, "") if keeps else (models, problem)

    async def _kv_tokens(self, worker: WorkerId, link: WorkerLink) -> int | None:
        """Return how many tokens fit into the worker's KV memory; None if it has never told.

        A suspect worker may be a new process with another size, so that it is asked again.
        """
        found = self._front.router_state.view.worker(worker)
        if found is None or found.state not in ("starting", "suspect"):
            return None if found is None else found.kv_tokens
        status, body = await self._ask(link, paths.METRICS)
        if status != 200:
            return found.kv_tokens
        try:
            cache = await self._front.readers.run_if_large(len(body), partial(_cache_config, body))
        except BadReply:
            return found.kv_tokens
        return believable.kv_tokens((cache.num_blocks or 0) * cache.block_tokens) or found.kv_tokens

    async def _ask(self, link: WorkerLink, path: str) -> tuple[int, bytes]:
        return await ask_worker(link, self._front.config.health_timeout_s, path)


def _cache_config(body: bytes) -> CacheConfig:
    return read_cache_config(body.decode(errors="replace"))


def _listed(status: int, body: bytes, has_key: bool) -> tuple[Mapping[str, object], str]:
    """Return the models in an answer to the question for them, and "", or none and what is wrong with it."""
    if status != 200:
        hint_key = f"; it refuses the router's key: {KEY_HINT}" if has_key else f"; {NO_KEY_HINT}"
        hint = {
            401: hint_key,
            403: hint_key,
            404: "; if it lists none, give their names as models",
        }
        return {}, f"its list of models has status {status}{hint.get(status, '')}"
    try:
        listed = json.loads(body)
        cards = read_models(listed)
    except (BadReply, ValueError, RecursionError):
        return {}, "its list of models cannot be read"
    models = dict(zip((card.id for card in cards), listed["data"], strict=True))
    return models, "" if models else "it lists no models"
