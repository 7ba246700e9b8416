"""`stretto serve`: OpenAI's API, apps, and programs on semantic variables, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import options, parsing
from stretto.cli.names import APPS, SEARCH
from stretto.cli.verbosity import say
from stretto.model.errors import StrettoError, UserError
from stretto.model.extras import check_installed, imports_of

if TYPE_CHECKING:
    from rich.console import Console

    from stretto.model.deployment import Deployment
    from stretto.runtime.runtime import Runtime
    from stretto.schema.tables import Tables
    from stretto.service.config import ServiceConfig
    from stretto.service.serve import ServedParts


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of `stretto serve`."""

    engines: Annotated[
        Path | None,
        typer.Option(
            "--engines",
            help=r"TOML file with engines and their replicas, and \[service] with tenants and limits.",
            metavar="FILE",
        ),
    ] = None
    llm: options.Llms = ()
    worker: Annotated[
        tuple[str, ...],
        typer.Option(
            "--worker",
            help="Address of a server that speaks OpenAI's API. All requests wait in one queue for the "
            "workers: those of apps and programs, as the engine 'llm', and what names a model of the "
            r"workers, which is passed on. Repeatable; others stand in the file as \[\[router.worker]].",
            metavar="URL[,role=ROLE]",
        ),
    ] = ()
    api: options.Api = None
    tokenizer: options.Tokenizer = None
    model: options.Model = None
    app: Annotated[
        tuple[str, ...],
        typer.Option(
            "--app",
            help="App to deploy: FILE.py:NAME, where NAME is a Template or a function that returns one, or a "
            f"ready-made one: {', '.join((*APPS, SEARCH))}. Repeatable.",
            metavar="FILE.py:NAME",
        ),
    ] = ()
    docs: Annotated[
        tuple[Path, ...],
        typer.Option(
            "--docs",
            help=f"Document or folder of documents that the app {SEARCH} searches, and from which apps "
            "answer chats that bring none. Repeatable.",
            metavar="PATH",
        ),
    ] = ()
    search: options.SearchUrl = None
    offline: Annotated[
        Path | None,
        typer.Option(
            "--offline",
            help="OpenAI Batch file to answer with what queries leave of the engines; its lines name engines "
            "as models. Results: FILE.answers, FILE.failed, FILE.journal; the same file again goes on.",
            metavar="FILE",
        ),
    ] = None
    offline_app: Annotated[
        Path | None,
        typer.Option(
            "--offline-app",
            help="Application, as for `stretto run-plan`, that the lines of --offline are requests to; the "
            "models of its nodes are engines.",
            metavar="APP",
        ),
    ] = None
    otel: options.Otel = None
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            help="Folder in which OpenAI's files and batches are kept. Batches run with what other requests "
            "leave of the engines, and go on when the service is started again.",
            metavar="DIR",
        ),
    ] = None
    announce: options.Announce = None
    peers: options.Peer = ()
    tls_certificate: options.TlsCertificate = None
    tls_key: options.TlsKey = None
    worker_ca: options.WorkerCa = None
    worker_certificate: options.WorkerCertificate = None
    worker_key: options.WorkerKey = None
    host: options.Host = None
    port: options.ServicePort = None


def serve(given: ServeOptions) -> None:
    """Serve models, apps, and programs on semantic variables, over HTTP. Models stay loaded."""
    parsing.check_paths(given.docs)
    check_installed("service", "the service", "httptools", "httpx", "uvloop")
    if given.offline is None and given.offline_app is not None:
        raise UserError("--offline-app: has no use without --offline; name the file of requests")
    from rich.console import Console

    from stretto.cli.progress import spinner

    errors = Console(stderr=True, emoji=False)
    parts = _parts(given, errors)
    with imports_of("service", "the service"):
        from stretto.http.server import check_port
        from stretto.service.serve import run_service
    check_port(parts.config.host, parts.config.port)
    with ExitStack() as starting:
        starting.enter_context(spinner(errors)).add_task("starting engines", total=None)

        def say_ready(line: str) -> None:
            starting.close()
            say(line)

        run_service(parts, say_ready)


def _parts(given: ServeOptions, errors: Console) -> ServedParts:
    """Return what is served: engines and apps of the options and of the engines file."""
    from stretto.cli.documents import read_documents
    from stretto.cli.engines_file import deployed
    from stretto.cli.reachable import out_of_reach
    from stretto.cli.saved import learned_file
    from stretto.cli.served_engines import with_engines_of, with_usual_engines, with_vector_engines
    from stretto.cli.served_workers import pool_of, with_pool
    from stretto.cli.watching import watch_of
    from stretto.engines.llm_size import has_small_llm
    from stretto.schema.reading import read_tables

    with imports_of("service", "the service"):
        from stretto.service.apps.deployed_app import load_apps
        from stretto.service.serve import ServedParts
    tables = None if given.engines is None else read_tables(given.engines)
    config = _config(given, tables)
    machine, described = (None, ()) if tables is None else deployed(tables)
    watch = watch_of(given.otel)
    worker_tls = given.worker_ca, given.worker_certificate, given.worker_key
    peers = given.announce, given.peers
    pool = pool_of(given.worker, tables, config, say, given.model, watch, worker_tls, peers)
    if pool is None and any(worker_tls):
        raise UserError("--worker-ca, --worker-certificate, --worker-key: have no use without workers")
    if pool is None and any(peers):
        raise UserError("--announce, --peer: have no use without workers")
    if pool is None:
        deployments = with_usual_engines(described, given.llm, given.api, given.tokenizer, given.model)
    else:
        deployments = with_usual_engines(
            with_pool(described, pool, given.llm), (), given.api, given.tokenizer
        )
    is_small = pool is None and has_small_llm([one.name for one in described], given.llm)
    apps = load_apps(given.app, small_llm=is_small)
    documents = read_documents(given.docs, options.MAX_BYTES, errors, is_strict=False)
    needed = {name: deployed.template for name, deployed in apps.items()}
    deployments = with_engines_of(needed, deployments, None if documents else given.search, documents)
    deployments, spares = with_vector_engines(deployments)
    for away in asyncio.run(out_of_reach(deployments)):
        say(f"{away}; started without it")
    return ServedParts(
        deployments=tuple(deployments),
        config=config,
        machine=machine,
        apps=apps,
        beside=None if given.offline is None else _beside(given.offline, given.offline_app, deployments),
        documents=documents,
        spares=spares,
        learned=learned_file(),
        pool=pool,
        watch=watch,
        state=given.state,
        engines_file=given.engines,
    )


def _config(given: ServeOptions, tables: Tables | None) -> ServiceConfig:
    """Return the settings of the service: those of its file, with the options' address and port."""
    from stretto.cli.tls import with_tls
    from stretto.service.api_keys import is_hash
    from stretto.service.config import read_service_config

    config = read_service_config(tables)
    if plain := [one.name for one in config.tenant if not all(map(is_hash, one.keys))]:
        say(f"keys of {', '.join(plain)} stand in plain text: put hashes there, which `stretto keys` writes")
    values: dict[str, Any] = {"host": given.host, "port": given.port}
    config = replace(config, **{name: value for name, value in values.items() if value is not None})
    return with_tls(config, given.tls_certificate, given.tls_key)


def _beside(
    requests: Path, app: Path | None, deployments: Iterable[Deployment]
) -> Callable[[Runtime], Coroutine[Any, Any, None]]:
    """Return what answers requests, to an application if there is one, with what queries leave of the
    engines.
    """
    from stretto.planner.plan_files import read_application
    from stretto.planner.running.batch_lines import read_batch_application
    from stretto.planner.running.offline_job import run_beside
    from stretto.planner.running.requests import read_run_requests
    from stretto.planner.running.unplanned_run import OfflineJob, check_known
    from stretto.service.batches.lines_in_process import LinesInProcess, prompt_and_limit

    llms = [one.engine.name for one in deployments if one.engine.is_llm]
    if app is None:
        application, store = read_batch_application(
            requests, door=prompt_and_limit, check_known=partial(check_known, known=llms)
        )
    else:
        application = read_application(app)
        store = read_run_requests(requests, application, door=prompt_and_limit)
    answers, failures, journal = (
        requests.with_name(f"{requests.name}.{ending}") for ending in ("answers", "failed", "journal")
    )
    if answers.exists() and not journal.exists():
        raise UserError(f"{answers}: is there already, without a journal; move or remove it")
    job = OfflineJob(application, store, answers, failures, journal)
    job.check(llms)

    async def beside(runtime: Runtime) -> None:
        try:
            with closing(LinesInProcess(runtime, "offline")) as lines:
                outcome = await run_beside(job, runtime, lines)
        except StrettoError as error:  # queries go on
            say(f"offline requests stopped: {error}")
            return
        say(f"offline requests: {outcome.num_answered} answered, {outcome.num_failed} failed")

    return beside
