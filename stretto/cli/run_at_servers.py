"""A run at servers that run already: `stretto run-plan --url URL` and `--engines FILE`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.model.errors import ConfigError, EngineUnavailable
from stretto.model.extras import check_installed, imports_of

if TYPE_CHECKING:
    from stretto.planner.running.run import RunOutcome
    from stretto.planner.running.unplanned_run import OfflineJob
    from stretto.service.serve import ServedParts

_LIMIT = 2**40
"""More than a run has at once: the limits of a service are for its clients."""


def run_at_servers(
    job: OfflineJob,
    urls: Sequence[str],
    engines: Path | None,
    say: Callable[[str], None],
    on_progress: Callable[[int, int, str], None],
    *,
    is_app: bool,
) -> tuple[RunOutcome, str]:
    """Answer the requests of a job at servers that run already, by a service that listens nowhere.

    Return how that went, and what is to be said of servers that went away.

    Args:
        on_progress: an `OnProgress` that is told of such servers too.
        urls: addresses of servers.
        engines: file with more of them, and with engines.
        is_app: whether the nodes are those of an application, each of which needs a model that is there. A
            line of a Batch file whose model is not there is refused alone.

    Raises:
        ConfigError: an address or the file is wrong, or no server has the model of a node.
        EngineUnavailable: a server is not up; or see `answer_all`.
        JournalError, NotSaved: see `answer_all`.
    """
    check_installed("service", "--url and --engines", "httptools", "httpx", "uvloop")
    with imports_of("service", "--url and --engines"):
        import uvloop
    return uvloop.run(_run(job, _parts(urls, engines), say, on_progress, is_app))


def _parts(urls: Sequence[str], engines: Path | None) -> ServedParts:
    from stretto.cli.engines_file import deployed
    from stretto.cli.served_workers import pool_of, with_pool
    from stretto.schema.reading import read_tables
    from stretto.service.config import Limits, ServiceConfig
    from stretto.service.serve import ServedParts

    config = ServiceConfig(limits=Limits(sessions=_LIMIT, output_tokens=_LIMIT), max_body_bytes=64_000_000)
    tables = None if engines is None else read_tables(engines)
    machine, described = (None, ()) if tables is None else deployed(tables)
    pool = pool_of(urls, tables, config, lambda line: None, None, is_patient=True)
    deployments = described if pool is None else with_pool(described, pool, ())
    if not deployments:
        raise ConfigError(f"--engines {engines}: describes neither servers nor engines")
    return ServedParts(deployments=tuple(deployments), config=config, machine=machine, pool=pool)


async def _run(
    job: OfflineJob,
    parts: ServedParts,
    say: Callable[[str], None],
    on_progress: Callable[[int, int, str], None],
    is_app: bool,
) -> tuple[RunOutcome, str]:
    from stretto.operate.watch import Watch
    from stretto.planner.running.unplanned_run import answer_all
    from stretto.service.batches.calls_at_service import CallsAtService, ServersOfRun, served_models
    from stretto.service.serve import running_service

    watch = Watch() if parts.pool is None else parts.pool.watch
    async with running_service(parts, {}, say, watch, has_port=False) as service:
        tenant = service.app.tenants.named("")
        assert tenant is not None, "a service without tenants has the one without a name"
        servers = ServersOfRun(service.runtime, parts.pool)
        for worker in servers.workers:
            if worker.state != "serving":
                raise EngineUnavailable(f"server {worker.config.url} is not up: {worker.reason}")
        if is_app:
            job.check(await served_models(service.app, tenant), "models of the servers")
        caller_of = partial(CallsAtService, service.app, tenant, servers)

        def show(num_ended: int, num_left: int) -> None:
            on_progress(num_ended, num_left, servers.losses())

        return await answer_all(job, "servers", caller_of, show), servers.losses()
