"""An LLM server as a process of ours: started, waited for, spoken to, and ended with us."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import ClassVar

import httpx

from stretto.cluster.devices import cores_of, environment_of
from stretto.cluster.kv_events import KVEvent
from stretto.cluster.messages import InstanceLoad
from stretto.engines.openai_server.config import OpenAIServerConfig
from stretto.engines.openai_server.server import OpenAIServer
from stretto.engines.server_process.config import ServerProcessConfig
from stretto.engines.server_process.kept import KeptProcess, take_port
from stretto.engines.server_process.programs import HOST, command_line
from stretto.errors import EngineTimeout, EngineUnavailable
from stretto.tasks import LLMEvent, LLMTask

_LOOK_S = 0.1
_HEALTH_TIMEOUT_S = 5.0


class ServerProcess:
    """An `AsyncLLM`. Once its process answers /health it is the adapter for OpenAI-compatible servers."""

    RUNS_IN: ClassVar[tuple[str, ...]] = ("loop", "ray")

    def __init__(self, config: ServerProcessConfig) -> None:
        """Start nothing yet. Raises ConfigError if there is no such program."""
        command_line(config, config.port or 0)
        self._config = config
        self._process: KeptProcess | None = None
        self._starting: asyncio.Task[OpenAIServer] | None = None

    async def start(self) -> None:
        """Start the process and wait until it answers /health. A start is tried once.

        Raises:
            EngineUnavailable: it ended before; the message has the last lines of its log.
            EngineTimeout: it did not answer in `start_timeout_s`.
        """
        await self._started()

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        """Run one task, once the process is up."""
        await (await self._started()).generate(task, emit, rank)

    async def probe(self) -> None:
        """Ask whether the server answers. Raises EngineFailure if it does not."""
        await (await self._started()).probe()

    async def watch(self, report: Callable[[Sequence[KVEvent] | InstanceLoad], None]) -> None:
        """Report what the server reports, until the process ends by itself. Raises EngineUnavailable then."""
        reports = asyncio.ensure_future((await self._started()).watch(report))
        try:
            raise await self.ended()
        finally:
            reports.cancel()

    async def load(self) -> InstanceLoad:
        """Return how busy the server is. Raises EngineFailure if it does not tell."""
        return await (await self._started()).load()

    async def ended(self) -> EngineUnavailable:
        """Wait until the process ends by itself; return what that means for what runs there."""
        await self._started()
        assert self._process is not None
        while (code := self._process.poll()) is None:
            await asyncio.sleep(_LOOK_S)
        return self._end_of(self._process, code)

    async def aclose(self) -> None:
        """Close connections and end the process with its group."""
        if self._starting is not None:
            self._starting.cancel()
            (server,) = await asyncio.gather(self._starting, return_exceptions=True)
            if isinstance(server, OpenAIServer):
                await server.aclose()
        if self._process is not None:
            await asyncio.to_thread(self._process.end)

    async def _started(self) -> OpenAIServer:
        """Wait for the one start, which goes on when a task that waits for it is cancelled."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> OpenAIServer:
        config = self._config
        port = take_port(config.port, HOST)
        environment = {**os.environ, **environment_of(config.devices, config.threads), **config.environment}
        self._process = KeptProcess(
            command_line(config, port), environment, cores=cores_of(config.devices), grace_s=config.grace_s
        )
        url = f"http://{HOST}:{port}"
        try:
            async with asyncio.timeout(config.start_timeout_s):
                await self._answers(f"{url}/health", self._process)
        except TimeoutError as cause:
            words = self._process.last_words()
            await asyncio.to_thread(self._process.end)
            raise EngineTimeout(
                f"server {config.program!r} was not ready in {config.start_timeout_s:g} s; log: {words!r}"
            ) from cause
        return OpenAIServer(
            OpenAIServerConfig(
                url,
                api=config.api,
                tokenizer=config.tokenizer,
                stop=config.stop,
                timeout_s=config.timeout_s,
                max_connections=config.max_connections,
                warms_prefixes=config.warms_prefixes,
            )
        )

    async def _answers(self, url: str, process: KeptProcess) -> None:
        async with httpx.AsyncClient(timeout=_HEALTH_TIMEOUT_S, trust_env=False) as client:
            while True:
                if (code := process.poll()) is not None:
                    raise self._end_of(process, code)
                try:
                    if (await client.get(url)).is_success:
                        return
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(_LOOK_S)

    def _end_of(self, process: KeptProcess, code: int) -> EngineUnavailable:
        name, words = self._config.program, process.last_words()
        return EngineUnavailable(f"server {name!r} ended with exit code {code}; its log ends: {words!r}")
