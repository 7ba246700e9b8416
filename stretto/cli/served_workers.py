"""The workers of a service: those of `--worker`, and of the table `[router]` of its engines file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.model.extras import imports_of
from stretto.schema.tables import Tables

if TYPE_CHECKING:
    from stretto.operate.watch import Watch
    from stretto.service.config import ServiceConfig
    from stretto.service.pool.pool import WorkerPool

_LLM = "llm"
_ENOUGH = 1_000_000
_PATIENCE_S = 900.0
"""Seconds that a request of a run waits for a server, such as one that is started again."""
_ANSWER_S = 3600.0
"""Longest silence of a server that a run waits for: answers come whole."""


def pool_of(
    urls: Sequence[str],
    tables: Tables | None,
    service: ServiceConfig,
    say: Callable[[str], None],
    model: str | None,
    watch: Watch | None = None,
    worker_tls: tuple[str | None, str | None, str | None] = (None, None, None),
    peers: tuple[str | None, Sequence[str]] = (None, ()),
    *,
    is_patient: bool = False,
) -> WorkerPool | None:
    """Return the workers of a service; None if it has none.

    Args:
        urls: URLs of workers besides those of the file.
        model: name of the model that the engine "llm" asks them for.
        watch: observer of all requests; None for one of the pool's own.
        worker_tls: files with authorities of workers' certificates, a certificate that they are shown, and
            its key, in place of those of the file.
        peers: address at which routers before the same workers are told what this one sends there, in place
            of that of the file, and addresses at which those announce.
        is_patient: whether requests wait as a run lets them, in place of as clients do.

    Raises:
        ConfigError: the table `[router]` has unknown keys or values, or a URL or file cannot be used.
    """
    row = None if tables is None else tables.one("router")
    if not urls and row is None:
        return None
    with imports_of("service", "--worker"):
        from stretto.cli.tls import with_worker_tls
        from stretto.router.config import RouterConfig
        from stretto.router.config_file import read_workers
        from stretto.service.pool.pool import WorkerPool
    config = RouterConfig() if row is None else row.build(RouterConfig)
    config = replace(config, worker=(*config.worker, *read_workers(urls)))
    if not config.worker and config.workers_file is None:
        return None
    if config.tls is not None:
        raise ConfigError("[router] has tls, but its clients are those of the service: put it into [service]")
    config = with_worker_tls(config, *worker_tls)
    announce, others = peers
    config = replace(config, announce=announce or config.announce, peer=(*config.peer, *others))
    if is_patient:
        if config.workers_file is not None or any(worker.is_several for worker in config.worker):
            raise ConfigError(
                "[router]: workers_file, dns and kubernetes find servers later; those of a run must be up "
                "when it begins; give each as [[router.worker]] with its url"
            )
        config = replace(
            config,
            max_waiting=_ENOUGH,
            max_wait_s=_PATIENCE_S,
            first_byte_timeout_s=_ANSWER_S,
            idle_timeout_s=_ANSWER_S,
        )
    return WorkerPool(config, service, say, model, _LLM, watch)


def with_pool(described: Sequence[Deployment], pool: WorkerPool, llms: Sequence[str]) -> Sequence[Deployment]:
    """Return the engines that a file describes, and the engine "llm" whose requests go to the workers.

    Raises:
        ConfigError: that engine is described otherwise too.
    """
    if llms or any(one.name == _LLM for one in described):
        raise ConfigError(
            "the workers answer as the engine 'llm'; give --worker, or --llm or an engine of that name"
        )
    return [*described, pool.deployment]
