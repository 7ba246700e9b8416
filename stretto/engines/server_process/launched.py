"""A server process on this machine, from its start to its end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Protocol

import httpx

from stretto.engines.server_process.config import ServerProcessConfig
from stretto.engines.server_process.kept import KeptProcess, take_port
from stretto.engines.server_process.programs import command_line
from stretto.model.devices import cores_of, environment_of
from stretto.model.errors import EngineTimeout, EngineUnavailable

_LOOK_S = 0.1
_HEALTH_TIMEOUT_S = 5.0


class Launched(Protocol):
    """The interface of an LLM server that we start and end, on this machine or on another one."""

    async def start(self) -> str:
        """Start the LLM server and wait until it answers /health; return its URL.

        Raises:
            EngineUnavailable: the server ended before; the message has the last lines of its log.
            EngineTimeout: the server did not answer in `start_timeout_s`.
        """
        ...

    async def ended(self) -> EngineUnavailable:
        """Wait until the started server ends by itself; return the error with which its tasks fail."""
        ...

    async def aclose(self) -> None:
        """End the server with all its processes. It may be called again, and before the server has
        started.
        """
        ...


class LaunchedServer:
    """An LLM server that runs as a child process on this machine.

    Args:
        watched: further processes whose end ends the server, as our own end does.

    Raises:
        ConfigError: `config.program` is not the name of a server that we know how to start.
    """

    def __init__(self, config: ServerProcessConfig, watched: Sequence[int] = ()) -> None:
        command_line(config, config.port or 0)
        self._config = config
        self._watched = watched
        self._process: KeptProcess | None = None

    async def start(self) -> str:
        """Start the LLM server and wait until it answers /health; return its URL."""
        config = self._config
        port = take_port(config.port, config.address)
        environment = {**os.environ, **environment_of(config.devices, config.threads), **config.environment}
        self._process = KeptProcess(
            command_line(config, port),
            environment,
            cores=cores_of(config.devices),
            grace_s=config.grace_s,
            watched=self._watched,
        )
        url = f"http://{config.address}:{port}"
        try:
            async with asyncio.timeout(config.start_timeout_s):
                await self._answers(f"{url}/health", self._process)
        except TimeoutError as cause:
            words = self._process.last_words()
            await asyncio.to_thread(self._process.end)
            raise EngineTimeout(
                f"server {config.program!r} was not ready in {config.start_timeout_s:g} s; log: {words!r}"
            ) from cause
        return url

    async def ended(self) -> EngineUnavailable:
        """Wait until the started server ends by itself; return the error with which its tasks fail."""
        assert self._process is not None
        while (code := self._process.poll()) is None:
            await asyncio.sleep(_LOOK_S)
        return self._end_of(self._process, code)

    async def aclose(self) -> None:
        """End the server with all its processes. It may be called again, and before the server has
        started.
        """
        if self._process is not None:
            await asyncio.to_thread(self._process.end)

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
