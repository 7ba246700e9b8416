"""What tells which workers are wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

from stretto.http.client.address import bracketed
from stretto.http.tls import ClientTls
from stretto.router.worker_config import WorkerConfig
from stretto.router.worker_url import parse_address

Want: TypeAlias = Callable[[Sequence[WorkerConfig]], None]
"""Takes all workers that a source wants now."""


class WorkerSource(Protocol):
    """A source of workers.

    Attributes:
        name: what it is, for the log and for the list of workers.
    """

    name: str

    async def follow(self, want: Want) -> None:
        """Tell all workers that are wanted, again and again or whenever they may have changed, until
        cancelled. While they cannot be told, nothing is: workers stay. The log says why, once.
        """
        ...


class Located:
    """The workers that an entry of the settings stands for, which differ by their addresses.

    Args:
        config: the entry. The host of its URL is the name that certificates must have, unless it says
            another.
        usual_tls: what holds for workers that have nothing of TLS themselves.

    Attributes:
        url, host, port: parts of the entry; the port may be missing.
    """

    def __init__(self, config: WorkerConfig, usual_tls: ClientTls | None) -> None:
        address = parse_address(config.url)
        tls = (config.tls or usual_tls or ClientTls()) if address.is_tls else None
        if tls is not None and tls.server_name is None:
            tls = replace(tls, server_name=address.host)
        self.url = config.url
        self.host = address.host
        self.port: int | None = urlsplit(config.url).port
        self._config = replace(config, tls=tls, dns=None, kubernetes=None)

    def at(self, host: str, port: int | None = None) -> WorkerConfig:
        """Return the settings of the worker at an address.

        Args:
            port: port where the entry names none; None for the usual one of its scheme.

        Raises:
            ConfigError: it is no address.
        """
        config, found = self._config, self.port or port
        where = bracketed(host) if found is None else f"{bracketed(host)}:{found}"
        events = config.kv_events
        if events is not None:
            replay = events.replay_endpoint
            events = replace(
                events,
                endpoint=self._moved(events.endpoint, host),
                replay_endpoint=None if replay is None else self._moved(replay, host),
            )
        url = urlsplit(config.url)._replace(netloc=where).geturl()
        return replace(config, url=url, kv_events=events)

    def _moved(self, endpoint: str, host: str) -> str:
        """Return an address of KV events, with a worker's host in place of the entry's."""
        return endpoint.replace(f"//{bracketed(self.host)}:", f"//{bracketed(host)}:")
