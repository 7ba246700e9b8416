"""The KV events of workers for the state machine: one subscription for each worker that publishes them.

Events that were missed are asked for again; where that fails, what the worker has reported is forgotten. A
worker whose messages cannot be understood, or fail to be applied, is followed no more, with a warning in the
log; what it has reported is forgotten.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from contextlib import aclosing

from stretto.engines.openai_server.kv_event_stream import KVEventStream
from stretto.model.errors import EngineFailure, StrettoError
from stretto.router.chats import PROBE_CHAT
from stretto.router.front import Front
from stretto.router.messages import WorkerId
from stretto.router.question import ask_worker
from stretto.router.workers import Worker
from stretto.wire import paths
from stretto.wire.models import read_tokens, tokenize_request

_PROBE = "Which voice enters first, and why? 3,14 ½ naïve façade\n\n\tdef f(x): return {'日本語': x[0]} 🎼"
_log = logging.getLogger(__name__)


class KVFeeds:
    """The subscriptions to the KV events of a router's workers, in the running event loop."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._tasks: dict[WorkerId, list[asyncio.Task[None]]] = {}
        self._uncompared: dict[WorkerId, Worker] = {}
        front.on_worker_passed.append(self._passed)
        front.on_worker_gone.append(self.end)

    def begin(self, worker: Worker) -> None:
        """Follow a worker, if its settings say where it publishes its events."""
        if worker.config.kv_events is not None:
            stream = KVEventStream(worker.config.kv_events)
            self._tasks[worker.id] = [asyncio.create_task(self._follow(worker, stream))]
            if self._front.tokens is not None:
                self._uncompared[worker.id] = worker
                if worker.models:
                    self._passed(worker.id)

    def end(self, worker: WorkerId) -> None:
        """Follow a worker that is gone no more."""
        self._uncompared.pop(worker, None)
        for task in self._tasks.pop(worker, ()):
            task.cancel()

    async def close(self) -> None:
        """End all subscriptions."""
        tasks = [task for found in self._tasks.values() for task in found]
        for worker in list(self._tasks):
            self.end(worker)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, worker: Worker, stream: KVEventStream) -> None:
        try:
            async with aclosing(stream.events()) as batches:
                async for events in batches:
                    self._front.router_state.reported(worker.id, events)
        except Exception as error:
            self._front.router_state.forget_reports(worker.id)
            reason, bug = (error.message, None) if isinstance(error, StrettoError) else (repr(error), error)
            _log.warning(
                "KV events of worker %s are followed no more: %s", worker.config.url, reason, exc_info=bug
            )

    def _passed(self, worker: WorkerId) -> None:
        """Compare the tokenizers when a worker first passes a health check: its models are known then."""
        if (found := self._uncompared.pop(worker, None)) is not None:
            self._tasks[worker].append(asyncio.create_task(self._compare(found)))

    async def _compare(self, worker: Worker) -> None:
        """Compare the tokenizer and the chat template with the worker's; only if they agree are texts, and
        chats, looked up there.
        """
        tokens = self._front.tokens
        assert tokens is not None, "compared only where there is a tokenizer"
        model = next(iter(worker.models))
        theirs = await self._tokens_of(worker, tokenize_request(model, _PROBE))
        if theirs != tokens.encode(_PROBE, is_prompt=False):
            _log.warning(
                "worker %s does not agree with the router's tokenizer: only prompts that come as token ids "
                "are looked up in what it reports",
                worker.config.url,
            )
            return
        worker.shares_tokenizer = True
        if (chats := tokens.chats) is None:
            return
        if await self._tokens_of(worker, {"model": model, **PROBE_CHAT}) == chats.probe:
            worker.shares_template = tokens.reads_chats = True
        else:
            _log.warning(
                "worker %s does not agree with the router's chat template: no chats are looked up in what it "
                "reports",
                worker.config.url,
            )

    async def _tokens_of(self, worker: Worker, asked: Mapping[str, object]) -> list[int] | None:
        """Return the token ids that a worker tells of a text or a chat; None if it does not tell."""
        link, timeout_s = self._front.links[worker.id], self._front.config.health_timeout_s
        try:
            status, answer = await ask_worker(link, timeout_s, paths.TOKENIZE, json.dumps(asked).encode())
            return read_tokens(json.loads(answer)) if status == 200 else None
        except (EngineFailure, ValueError, RecursionError):
            return None
