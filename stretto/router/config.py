"""The settings of a router and of its workers (the servers behind it)."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from stretto.cluster.placements.table import placement_of
from stretto.cluster.scored_placement import ScoredPlacement
from stretto.http.client.address import check_port_number
from stretto.http.tls import ClientTls, ServerTls
from stretto.model.errors import ConfigError
from stretto.model.number_checks import check_counts, check_positive
from stretto.model.user_files import is_in_file
from stretto.router.aliases import AliasConfig
from stretto.router.repairs import RepairConfig
from stretto.router.roles import check_roles
from stretto.router.worker_config import WorkerConfig
from stretto.router.worker_url import server_of
from stretto.sched.orders import GONE_ORDERS, ORDERS, check_policy

_ENDPOINT = re.compile(r"tcp://(?:[^\s/:\[\]]+|\[[0-9A-Fa-f:.]+(?:%\w+)?\]):(\d{1,5}|\*)|ipc://\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """The settings of a router.

    Attributes:
        worker: servers to begin with; more may be added while the router runs.
        workers_file: file with further servers, in tables `[[router.worker]]`, which is looked at each
            second; None for none.
        alias: names of models that stand for others.
        repair: rules by which prompts are repaired that change before text that stays.
        placement: name of the policy that chooses the worker of a request, or FILE.py:NAME of one's own.
        order: name of the order in which requests that wait are served, or FILE.py:NAME of one's own.
        holds_programs: whether programs are held while the workers have no room in KV memory for what they
            keep there from one request to the next.
        learns_slots: whether it is learned from the `/metrics` of workers how many requests each runs at
            once, so that no more are sent there.
        tokenizer: directory with the tokenizer of the workers' model, with which prompts that come as texts,
            and chats if it has a chat template, are looked up in what workers report of their caches; None
            looks up those that come as token ids.
        snapshot: file that keeps what workers hold in their caches, from the router's end to its next start;
            None begins without. What workers report by KV events is not kept.
        announce: address such as "tcp://0.0.0.0:7400" at which other routers before the same workers are told
            what this one sends there; None tells nobody.
        peer: addresses at which those routers announce.
        admin_key_env: environment variable with the key of the admin, who may change the workers, and see the
            live page and where the time of programs went; None leaves that to clients on the same machine.
        tls: certificate and key that clients are shown; None answers in plain HTTP.
        worker_tls: authorities, certificate and name for workers at https://… that have no `tls` of their
            own; None trusts the system's authorities and shows no certificate.
        host: address to listen at.
        port: port to listen at; 0 takes a free one.
        max_waiting: number of requests that may wait in the router; more are refused with status 429.
        max_wait_s: seconds that a request may wait before it is refused with status 503.
        max_hold_s: seconds that a request may be held before, while its program has no room in KV memory.
            Then it is refused with status 503.
        max_attempts: number of workers that are tried for one request before its first byte.
        max_failures: number of answers with status 5xx in a row after which a worker gets one request at a
            time.
        max_body_bytes: largest body of a request; a larger one is refused with status 413.
        max_held_bytes: bytes that are held for all clients together, of requests, of answers that they do not
            read, and of answers that are kept until they are whole. A client may hold at most as many as are
            free; its further requests are refused with status 429. At least twice `max_body_bytes`.
        max_programs: number of programs that are remembered, so that later requests are recognised as part of
            them; about 1 kB each. 0 recognises none.
        max_stored_ids: number of ids of responses, files and the like for which it is remembered which worker
            keeps them; about 200 bytes each.
        max_body_s: seconds in which the body of a request must have come, before status 408.
        hedge_share: largest share of requests that are sent a second time, to another worker, because they
            wait for their first byte much longer than others; 0 sends none.
        connect_timeout_s: seconds that a connection to a worker may take.
        first_byte_timeout_s: seconds without an answer after which another worker is tried.
        idle_timeout_s: seconds without a byte after which an answer that has begun is cut.
        health_interval_s: seconds between two health checks of a worker that serves.
        health_timeout_s: seconds that a health check may take.
    """

    worker: tuple[WorkerConfig, ...] = ()
    workers_file: str | None = None
    alias: tuple[AliasConfig, ...] = ()
    repair: tuple[RepairConfig, ...] = ()
    placement: str = "stretto"
    order: str = "programs_first"
    holds_programs: bool = True
    learns_slots: bool = True
    tokenizer: str | None = None
    snapshot: str | None = None
    announce: str | None = None
    peer: tuple[str, ...] = ()
    admin_key_env: str | None = None
    tls: ServerTls | None = None
    worker_tls: ClientTls | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    max_waiting: int = 1000
    max_wait_s: float = 60.0
    max_hold_s: float = 600.0
    max_attempts: int = 3
    max_failures: int = 3
    max_body_bytes: int = 64_000_000
    max_held_bytes: int = 512_000_000
    max_programs: int = 100_000
    max_stored_ids: int = 100_000
    max_body_s: float = 60.0
    hedge_share: float = 0.0
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 600.0
    idle_timeout_s: float = 600.0
    health_interval_s: float = 10.0
    health_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        placement = placement_of(self.placement)
        if is_in_file(self.order) or self.order in GONE_ORDERS:
            check_policy(self.order)
        elif self.order not in ORDERS:
            known = ", ".join(ORDERS)
            raise ConfigError(f"router: order is {self.order!r}; it must be one of {known}, or FILE.py:NAME")
        for name in ("holds_programs", "learns_slots"):
            if type(value := getattr(self, name)) is not bool:
                raise ConfigError(f"router: {name} is {value!r}; it must be true or false")
        check_port_number(self.port)
        counts = ("max_attempts", "max_failures", "max_body_bytes", "max_held_bytes")
        check_counts("router", self, counts)
        check_counts("router", self, ("max_waiting", "max_programs", "max_stored_ids"), least=0)
        if self.max_held_bytes < 2 * self.max_body_bytes:
            raise ConfigError(
                f"router: max_held_bytes is {self.max_held_bytes}; it must be at least twice max_body_bytes, "
                f"which is {self.max_body_bytes}"
            )
        times = [one.name for one in fields(self) if one.name.endswith("_s")]
        check_positive("router", self, times)
        if not 0.0 <= self.hedge_share <= 1.0:
            raise ConfigError(f"router: hedge_share is {self.hedge_share!r}; it must be from 0 to 1")
        may_find_more = self.workers_file is not None
        if self.tokenizer is not None and not may_find_more and not any(one.kv_events for one in self.worker):
            raise ConfigError("router: a tokenizer is only of use where a worker has kv_events; none has")
        if self.snapshot is not None and not isinstance(placement(), ScoredPlacement):
            raise ConfigError(
                "router: a snapshot is only of use with a placement that keeps an index of prefixes, such as "
                f"'stretto'; {self.placement!r} keeps none"
            )
        self._check_peers()
        names = [one.name for one in self.alias]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"router: alias {twice[0]!r} is given twice")
        if not may_find_more:
            check_roles([one.role for one in self.worker])
        servers = [server_of(worker.url) for worker in self.worker]
        for worker, server in zip(self.worker, servers, strict=True):
            if servers.count(server) > 1:
                raise ConfigError(f"worker {worker.url} is given twice")

    def _check_peers(self) -> None:
        """Check the addresses of routers before the same workers. Raises ConfigError."""
        addresses = self.peer if self.announce is None else (self.announce, *self.peer)
        for address in addresses:
            found = _ENDPOINT.fullmatch(address) if isinstance(address, str) else None
            if found is None or int((found[1] or "0").replace("*", "0")) > 65535:
                raise ConfigError(
                    f"router: {address!r:.200} is no address of a router; it must be tcp://HOST:PORT or "
                    "ipc://PATH, with an IPv6 address in brackets"
                )
        if self.peer and self.announce is None:
            raise ConfigError(
                "router: peer is given without announce; routers tell each other, so each needs both"
            )
