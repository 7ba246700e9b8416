"""An LLM server that runs as a process of ours: it is started, waited for, and ended with us."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar

from stretto.cluster.kv_events import KVEvent
from stretto.engines.openai_server.config import OpenAIServerConfig
from stretto.engines.openai_server.server import OpenAIServer
from stretto.engines.server_process.config import ServerProcessConfig
from stretto.engines.server_process.launched import Launched, LaunchedServer
from stretto.model.errors import EngineUnavailable
from stretto.model.tasks import LLMEvent, LLMTask


class ServerProcess:
    """An LLM engine that starts an LLM server (vLLM, SGLang, llama.cpp) as a process and talks to it.

    Args:
        launched: how the process is started, watched and ended; by default it is our child.

    Raises:
        ConfigError: there is no such program.
    """

    RUNS_IN: ClassVar[tuple[str, ...]] = ("loop", "ray")
    LIMITS_OFFLINE: ClassVar[bool] = False

    def __init__(self, config: ServerProcessConfig, launched: Launched | None = None) -> None:
        self._config = config
        self._launched = LaunchedServer(config) if launched is None else launched
        self._starting: asyncio.Task[OpenAIServer] | None = None

    async def start(self) -> None:
        """Start the server, if that was not tried before, and wait until it answers /health.

        Raises:
            EngineUnavailable: the server ended before; the message has the last lines of its log.
            EngineTimeout: the server did not answer in `start_timeout_s`.
        """
        await self._started()

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        """Run one task, as soon as the server is ready, and pass its events to `emit`."""
        await (await self._started()).generate(task, emit, rank)

    def written(self, task: int) -> tuple[int, ...]:
        """Return the ids of the tokens that a running task has generated: here always an empty tuple.

        They are not known, because the server sends text, not token ids. So a task that moves to another
        instance starts over.
        """
        return ()

    async def probe(self) -> None:
        """Check that the server answers. Raises EngineFailure if it does not."""
        await (await self._started()).probe()

    async def watch(self, report: Callable[[Sequence[KVEvent]], None]) -> None:
        """Pass changes of the server's prefix cache to `report`, until its process ends.

        Raises:
            EngineUnavailable: the process has ended by itself.
        """
        reports = asyncio.ensure_future((await self._started()).watch(report))
        try:
            raise await self.ended()
        finally:
            reports.cancel()

    async def ended(self) -> EngineUnavailable:
        """Wait until the server's process ends by itself; return the error with which its tasks fail."""
        await self._started()
        return await self._launched.ended()

    async def aclose(self) -> None:
        """Close the connections to the server, and end the server with all its processes."""
        if self._starting is not None:
            self._starting.cancel()
            (server,) = await asyncio.gather(self._starting, return_exceptions=True)
            if isinstance(server, OpenAIServer):
                await server.aclose()
        await self._launched.aclose()

    async def _started(self) -> OpenAIServer:
        """Wait for the one start, which goes on when a task that waits for it is cancelled."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> OpenAIServer:
        config = self._config
        return OpenAIServer(
            OpenAIServerConfig(
                await self._launched.start(),
                api=config.api,
                tokenizer=config.tokenizer,
                stop=config.stop,
                timeout_s=config.timeout_s,
                max_connections=config.max_connections,
                warms_prefixes=config.warms_prefixes,
                token_s=config.token_s,
            )
        )
