"""The settings of a router and of its workers (the servers behind it)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from urllib.parse import urlsplit

from stretto.cluster.placements.table import PLACEMENTS, check_placement
from stretto.cluster.scored_placement import ScoredPlacement
from stretto.costs.profile import UNKNOWN_LLM, Profile
from stretto.engines.http_client.address import Address, check_port
from stretto.engines.openai_server.config import KVEventsConfig
from stretto.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The settings of one worker: a server behind the router.

    Attributes:
        url: address of the server, such as "http://10.0.0.2:8000". A path after it comes before every
            request's path.
        num_slots: number of requests that may run there at once; more wait in the router.
        kv_tokens: number of tokens that may be in flight there, of prompts and expected outputs; None asks
            the server, and sets no limit if it does not tell.
        profile: predicted seconds of its work, for policies that compare seconds.
        kv_events: where it publishes what its prefix cache holds (vLLM); None leaves that to be guessed.
    """

    url: str
    num_slots: int = 256
    kv_tokens: int | None = None
    profile: Profile = UNKNOWN_LLM
    kv_events: KVEventsConfig | None = None

    def __post_init__(self) -> None:
        parse_address(self.url)
        _check_count(f"worker {self.url}", "num_slots", self.num_slots)
        if self.kv_tokens is not None:
            _check_count(f"worker {self.url}", "kv_tokens", self.kv_tokens)
        if self.kv_events is not None:
            for address in (self.kv_events.endpoint, self.kv_events.replay_endpoint):
                if address is not None and not address.startswith(("tcp://", "ipc://")):
                    raise ConfigError(
                        f"worker {self.url}: KV events are at {address!r}; it must be tcp://… or ipc://…"
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """The settings of a router.

    Attributes:
        worker: servers to begin with; more may be added while the router runs.
        placement: name of the policy that chooses the worker of a request.
        tokenizer: directory with the tokenizer of the workers' model, with which prompts that come as texts
            are looked up in what workers report of their caches; None looks up those that come as token ids.
        snapshot: file that keeps what workers hold in their caches, from the router's end to its next start;
            None begins without. What workers report by KV events is not kept.
        host: address to listen at.
        port: port to listen at; 0 takes a free one.
        max_waiting: number of requests that may wait in the router; more are refused with status 429.
        max_wait_s: seconds that a request may wait before it is refused with status 503.
        max_attempts: number of workers that are tried for one request before its first byte.
        max_failures: number of answers with status 5xx in a row after which a worker gets one request at a
            time.
        max_body_bytes: largest body of a request; a larger one is refused with status 413.
        connect_timeout_s: seconds that a connection to a worker may take.
        first_byte_timeout_s: seconds without an answer after which another worker is tried.
        idle_timeout_s: seconds without a byte after which an answer that has begun is cut.
        health_interval_s: seconds between two health checks of a worker that serves.
        health_timeout_s: seconds that a health check may take.
    """

    worker: tuple[WorkerConfig, ...] = ()
    placement: str = "stretto"
    tokenizer: str | None = None
    snapshot: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    max_waiting: int = 1000
    max_wait_s: float = 60.0
    max_attempts: int = 3
    max_failures: int = 3
    max_body_bytes: int = 64_000_000
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 600.0
    idle_timeout_s: float = 600.0
    health_interval_s: float = 10.0
    health_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        check_placement(self.placement)
        check_port(self.port)
        for name in ("max_attempts", "max_failures", "max_body_bytes"):
            _check_count("router", name, getattr(self, name))
        if self.max_waiting < 0:
            raise ConfigError(f"router: max_waiting is {self.max_waiting}; it must not be negative")
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name.endswith("_s") and not 0 < value < math.inf:
                raise ConfigError(f"router: {one.name} is {value!r}; it must be positive and finite")
        if self.tokenizer is not None and all(worker.kv_events is None for worker in self.worker):
            raise ConfigError("router: a tokenizer is only of use where a worker has kv_events; none has")
        if self.snapshot is not None and not isinstance(PLACEMENTS[self.placement](), ScoredPlacement):
            raise ConfigError(
                "router: a snapshot is only of use with a placement that keeps an index of prefixes, such as "
                f"'stretto'; {self.placement!r} keeps none"
            )
        urls = [worker.url.rstrip("/") for worker in self.worker]
        for url in urls:
            if urls.count(url) > 1:
                raise ConfigError(f"worker {url} is given twice")


def parse_address(url: str) -> Address:
    """Return the parts of a worker's URL.

    Raises:
        ConfigError: it is no URL of an HTTP server.
    """
    if not isinstance(url, str):
        raise ConfigError(f"worker {url!r}: it must be a URL like http://HOST:PORT")
    try:
        parts = urlsplit(url)
        port = parts.port
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"worker {url!r}: {error}; it must be a URL like http://HOST:PORT") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"worker {url!r}: it must be a URL like http://HOST:PORT")
    if parts.username is not None or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"worker {url!r}: it must be a URL without a user, spaces or non-ASCII letters")
    if not all(0 < len(label) < 64 for label in parts.hostname.removesuffix(".").split(".")):
        raise ConfigError(
            f"worker {url!r}: {parts.hostname!r} names no host; it must be a URL like http://HOST:PORT"
        )
    is_tls = parts.scheme == "https"
    default = 443 if is_tls else 80
    return Address(parts.hostname, port or default, is_tls, parts.netloc, parts.path.rstrip("/"))


def _check_count(where: str, name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{where}: {name} is {value!r}; it must be a whole number of at least 1")
