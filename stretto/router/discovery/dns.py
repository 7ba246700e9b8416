"""Workers at the addresses of a name, which is looked up again and again."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence

from stretto.router.discovery.source import Located, Want
from stretto.router.found_workers import DnsConfig
from stretto.router.worker_config import WorkerConfig

_log = logging.getLogger(__name__)
Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the addresses of a name. Raises OSError if there are none, or nobody knows."""


async def addresses_of(host: str) -> Sequence[str]:
    """Return the addresses of a name, as this machine resolves it. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})


class DnsNames:
    """The addresses of the host of a worker's URL.

    Args:
        workers: the workers at these addresses.
        resolve: looks the name up.
    """

    def __init__(self, config: DnsConfig, workers: Located, resolve: Resolve = addresses_of) -> None:
        self.name = f"dns {workers.url}"
        self._config = config
        self._workers = workers
        self._resolve = resolve

    async def follow(self, want: Want) -> None:
        """Tell the workers at the addresses of the name, after each look-up."""
        host, is_away = self._workers.host, False
        while True:
            try:
                want(self._at(await self._resolve(host)))
            except OSError as error:
                if not is_away:
                    _log.warning("%s cannot be looked up; its workers stay: %s", host, error)
                is_away = True
            else:
                if is_away:
                    _log.warning("%s can be looked up again", host)
                is_away = False
            await asyncio.sleep(self._config.every_s)

    def _at(self, hosts: Sequence[str]) -> list[WorkerConfig]:
        return [self._workers.at(host) for host in hosts]
