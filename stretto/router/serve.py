"""Runs a router until it is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from stretto.costs.learned_work import LearnedWork
from stretto.http.collector import spare_collector
from stretto.http.signals import run_until_interrupted, serve_until_interrupted
from stretto.model.extras import imports_of
from stretto.model.wording import counted
from stretto.operate.watch import Watch
from stretto.router.config import RouterConfig
from stretto.router.discovery.keeper import WorkerKeeper
from stretto.router.discovery.sources import worker_sources
from stretto.router.door import RouterDoor
from stretto.router.front import Front
from stretto.router.health import HealthChecks
from stretto.router.held_blocks_file import HeldBlocksFile
from stretto.router.load_checks import LoadChecks
from stretto.router.own_routes import OwnRoutes
from stretto.router.request_log import RequestLog
from stretto.router.token_reader import TokenReader
from stretto.router.worker_changes import WorkerChanges
from stretto.sched.orders.tenants_served import NO_WEIGHTS

if TYPE_CHECKING:
    from stretto.router.kv_feeds import KVFeeds
    from stretto.router.peer_link import PeerLink

_SWEEP_S = 1.0
_GRACE_S = 25.0
"""Seconds that requests may still take after an interrupt; Kubernetes kills after 30 s."""
_LAST_S = 1.0
"""Seconds in which clients may take what ends their requests, when the router ends."""


class RunningRouter:
    """A router of this process. An async context manager: it runs inside it.

    Args:
        record: file to which what happened to each request is appended; None for none.
        say: called with what a user should know of the workers.
        tenant_weights: shares of tenants relative to each other; 1 where none is given.
        has_port: whether it listens; else requests come in this process alone, through its `door`.
        watch: what sees all requests; None for one of its own.

    Attributes:
        changes: what changes the workers; inside of the block.
        sources: what tells of workers that come and go; inside of the block.
        peers: the exchange with other routers before the same workers, inside of the block; None without.
        learned: what programs have asked for. One of an earlier run may be put there before this one begins.

    Raises:
        ConfigError: the port is in use, a worker does not speak HTTP, `record` cannot be written, or the file
            of `config.snapshot` is no snapshot.
    """

    def __init__(
        self,
        config: RouterConfig,
        record: Path | None = None,
        say: Callable[[str], None] = lambda _: None,
        *,
        tenant_weights: Mapping[str, float] = NO_WEIGHTS,
        has_port: bool = True,
        watch: Watch | None = None,
    ) -> None:
        self._watch = Watch() if watch is None else watch
        self._config = config
        self._record = record
        self._say = say
        self._tenant_weights = tenant_weights
        self._has_port = has_port
        self.learned = LearnedWork()

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return self.door.server.port

    @property
    def url(self) -> str:
        """Address of the router."""
        return self.door.server.url

    async def __aenter__(self) -> RunningRouter:
        self._log = RequestLog(self._record) if self._record is not None else None
        if self._log is not None:
            self._watch.observers.add(self._log)
        self.front = Front(self._config, self._tenant_weights, self._watch, self.learned)
        self.door = RouterDoor(self.front)
        self._checks = HealthChecks(self.front)
        self._load_checks = LoadChecks(self.front)
        self._feeds: KVFeeds | None = None
        self.peers: PeerLink | None = None
        self.changes = WorkerChanges(self.front, self._checks, self._cache_feeds)
        self.door.own_route = OwnRoutes(self.door, self.changes)
        self._keeper: WorkerKeeper | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._has_started = False
        self._held: HeldBlocksFile | None = None
        self._following = asyncio.create_task(self._watch.certificates.follow())
        try:
            self.sources = worker_sources(self._config)
            alone = [worker for worker in self._config.worker if not worker.is_several]
            await asyncio.gather(*map(self._checks.add_and_wait, alone))
            for worker in self.front.router_state.view.workers():
                if worker.state != "serving":
                    self._say(f"worker {worker.config.url} is not up yet: {worker.reason}")
            self._restore_held()
            for worker in self.front.router_state.view.workers():
                if worker.config.kv_events is not None:
                    self._cache_feeds().begin(worker)
            self._follow_peers()
            self._keeper = WorkerKeeper(self.changes, self.sources)
            if self._has_port:
                await self.door.server.listen()
            self._has_started = True
        except BaseException:
            await self.__aexit__()
            raise
        self._sweep()
        return self

    async def __aexit__(self, *_: object) -> None:
        server = self.door.server
        self._following.cancel()
        server.stop_listening()
        index = self.front.placement.index
        if self._has_started and self._held is not None and index is not None:
            self._held.save(index, self.front.router_state.view.workers(), monotonic())
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._keeper is not None:
            await self._keeper.close()
        if self._feeds is not None:
            await self._feeds.close()
        if self.peers is not None:
            await self.peers.close()
        if self.front.tokens is not None:
            self.front.tokens.close()
        await self._checks.close()
        await self._load_checks.close()
        server.close()
        while server.connections:
            await asyncio.sleep(0)
        self.front.readers.close()
        for link in self.front.links.values():
            link.connections.close()
        self.front.catch_up()
        if self._log is not None:
            self._log.close()

    async def finish(self, grace_s: float) -> None:
        """Take no more connections, and wait until the requests that run or wait are answered, at most
        `grace_s` seconds. What is left is refused or cut then, with an error that says so.
        """
        await self.door.server.finish(grace_s)
        self.front.end_all("the router is being ended")
        await self.door.server.finish(_LAST_S)

    def _restore_held(self) -> None:
        """Believe what the snapshot says of the workers that serve. Raises ConfigError."""
        if self._config.snapshot is not None and (index := self.front.placement.index) is not None:
            self._held = HeldBlocksFile(Path(self._config.snapshot))
            self._held.restore(index, self.front.router_state.view.workers(), monotonic())

    def _follow_peers(self) -> None:
        """Begin to talk to other routers before the same workers, if there are any. Raises ConfigError."""
        if self._config.announce is not None:
            with imports_of("kv-events", "announce"):
                from stretto.router.peer_link import PeerLink
            self.peers = PeerLink(self.front, self._config)

    def _cache_feeds(self) -> KVFeeds:
        """Return what follows the KV events of workers that publish them. Raises ConfigError."""
        if self._feeds is None:
            with imports_of("kv-events", "kv_events"):
                from stretto.router.kv_feeds import KVFeeds
            if self._config.tokenizer is not None:
                self.front.tokens = TokenReader(Path(self._config.tokenizer))
            self._feeds = KVFeeds(self.front)
        return self._feeds

    def _sweep(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)  # also after a bug
        self.front.sweep()
        if self._log is not None:
            self._log.flush()
        if self._config.learns_slots:
            self._load_checks.sweep()


def run_router(
    config: RouterConfig, record: Path | None, say: Callable[[str], None], watch: Watch | None = None
) -> None:
    """Run a router until interrupted; `say` is told its address and what is wrong with its workers.
    `watch` sees all requests, and is closed in the end.

    The first interrupt lets requests that run or wait be answered, for some time; a second one ends them.

    Raises:
        ConfigError: see `RunningRouter`.
    """

    seen = watch or Watch()

    async def serve() -> None:
        try:
            async with RunningRouter(config, record, say, watch=seen) as router:
                spare_collector()
                num = len(router.front.router_state.view.workers())
                also = "".join(f", {source.name}" for source in router.sources)
                say(f"{router.url}  {counted(num, 'worker')}{also}, placement {config.placement}")
                await serve_until_interrupted(
                    say,
                    lambda: router.front.router_state.view.num_clients,
                    lambda: router.finish(_GRACE_S),
                    _GRACE_S,
                )
        finally:  # an interrupt cancels
            await asyncio.to_thread(seen.close)

    run_until_interrupted(serve(), seen.certificates.reload)
