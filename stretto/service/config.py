"""The settings of a service, of its tenants, and the limits of each."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from stretto.http.client.address import check_port_number
from stretto.http.tls import ServerTls
from stretto.model.errors import ConfigError
from stretto.model.number_checks import check_counts, check_positive
from stretto.schema.tables import Tables
from stretto.service.api_keys import PREFIX, is_hash
from stretto.service.apps.limits import AppLimits

DEFAULT_CHAT_TOKENS = 4096
"""Tokens of an answer to a chat that names no limit: of the longest where an engine has room for it, and as
many are spent of a tenant's `tokens_per_minute`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a tenant. What is beyond one is refused with status 429, or 422 where it can never fit.

    Attributes:
        sessions: number of open sessions, and of requests of OpenAI's API that run or wait at once.
        variables: number of variables of one session.
        bytes: number of bytes of the values that clients set in one session and have not given up.
        depth: number of calls on the longest way through the calls of one session.
        width: number of calls in one request.
        output_tokens: largest number of tokens that one output may be allowed.
        file_bytes: number of bytes of the files that it keeps, those that batches have written among them.
            A batch that runs is never kept from writing its files.
        requests_per_minute: number of POST requests. Infinite for no limit.
        tokens_per_minute: number of tokens that calls may ask for: for each, the largest number that it may
            generate, and a quarter of the characters of its prompt. Infinite for no limit.
    """

    sessions: int = 10_000
    variables: int = 100_000
    bytes: int = 256_000_000
    depth: int = 100_000
    width: int = 10_000
    output_tokens: int = 1_000_000
    file_bytes: int = 100_000_000_000
    requests_per_minute: float = math.inf
    tokens_per_minute: float = math.inf

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not value > 0:
                raise ConfigError(f"limits: {one.name} is {value!r}; it must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantConfig:
    """The settings of a tenant: an owner of sessions, who sees nothing of other tenants.

    Attributes:
        name: name for traces and engines.
        keys: API keys of the tenant's clients, or hashes of them as `stretto keys` writes them.
        limits: limits in place of those of the service.
        weight: share of the engines that it gets relative to other tenants, while they all have work.
    """

    name: str
    keys: tuple[str, ...] = field(repr=False)
    limits: Limits | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a tenant needs a name")
        if not self.keys or not all(key and key.isascii() and key.isprintable() for key in self.keys):
            raise ConfigError(f"tenant {self.name!r}: keys must be one or more texts of printable ASCII")
        for number, key in enumerate(self.keys):
            if key.startswith(PREFIX) and not is_hash(key):  # the error does not say what may be a key
                raise ConfigError(
                    f"tenant {self.name!r}: keys[{number}] is no hash of a key, as `stretto keys` writes it"
                )
        check_positive(f"tenant {self.name!r}", self, ("weight",))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """The settings of a service, the table `[service]` of an engines file.

    Attributes:
        tls: certificate and key that clients are shown; None answers in plain HTTP.
        host: address to listen at.
        port: port to listen at; 0 takes a free one.
        tenant: tenants, in tables `[[service.tenant]]`. With none, every client is one and the same tenant,
            and needs no key.
        limits: limits of each tenant that has none of its own.
        apps: limits of the queries of deployed apps.
        max_body_bytes: largest body of a request; a larger one is refused with status 413.
        max_held_bytes: bytes of requests and long answers that are held for all clients together; one request
            may hold as many as are still free, and is refused with status 429 beyond. Several tenants share
            them fairly. At least twice `max_body_bytes`, and three times where there are several tenants.
        max_body_s: seconds in which the body of a request must have come, before status 408.
        max_unread_s: seconds for which a client may leave an answer unread; its connection is closed then.
        max_wait_s: seconds that one request may wait for a variable, before status 408.
        session_idle_s: seconds without a request after which a session expires.
        admin_key_env: environment variable with the key of the admin, who may see metrics and programs of all
            tenants; None leaves that to clients on the same machine.
        max_queries: number of sessions with work, and of apps' queries, that run at once.
        grace_s: seconds that requests may still take after an interrupt.
        files_kept_s: seconds after which files are removed that say nothing else, and batches that have
            ended; infinite to keep them.
    """

    tls: ServerTls | None = None
    host: str = "127.0.0.1"
    port: int = 8700
    tenant: tuple[TenantConfig, ...] = ()
    limits: Limits = field(default_factory=Limits)
    apps: AppLimits = field(default_factory=AppLimits)
    max_body_bytes: int = 16_000_000
    max_held_bytes: int = 512_000_000
    max_body_s: float = 60.0
    max_unread_s: float = 60.0
    max_wait_s: float = 60.0
    session_idle_s: float = 600.0
    admin_key_env: str | None = None
    max_queries: int = 4096
    grace_s: float = 25.0
    files_kept_s: float = 30 * 86_400.0

    def __post_init__(self) -> None:
        check_port_number(self.port)
        check_counts("service", self, ("max_body_bytes", "max_queries"))
        times = ("max_body_s", "max_unread_s", "max_wait_s", "session_idle_s", "grace_s")
        check_positive("service", self, times)
        if not self.files_kept_s > 0:
            raise ConfigError(f"files_kept_s is {self.files_kept_s!r}; it must be positive")
        num_bodies = 3 if len(self.tenant) > 1 else 2
        if self.max_held_bytes < num_bodies * self.max_body_bytes:
            raise ConfigError(
                f"max_held_bytes is {self.max_held_bytes}; it must be at least {num_bodies} times "
                f"max_body_bytes, which is {self.max_body_bytes}"
            )
        names = [tenant.name for tenant in self.tenant]
        keys = [key for tenant in self.tenant for key in tenant.keys]
        for kind, known in (("tenant", names), ("key", keys)):
            if len(set(known)) < len(known):
                raise ConfigError(f"service: the same {kind} stands there twice")


def read_service_config(tables: Tables | None) -> ServiceConfig:
    """Return the settings of a service from an engines file; the usual ones if it has none.

    Raises:
        ConfigError: a key or value of the table `[service]` is wrong.
    """
    row = None if tables is None else tables.one("service")
    return ServiceConfig() if row is None else row.build(ServiceConfig)
