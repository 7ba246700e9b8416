"""`stretto route`: a router before a fleet of OpenAI-compatible servers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from stretto.cli import options
from stretto.cli.names import MAX_HELD_BYTES, PLACEMENTS
from stretto.cli.verbosity import say
from stretto.model.errors import UserError
from stretto.model.extras import imports_of

_OF_THE_FILE = ("placement", "snapshot", "announce", "host", "port", "max_held_bytes")
"""Options that stand for settings of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOptions:
    """The options of `stretto route`."""

    workers: Annotated[
        tuple[str, ...],
        typer.Option(
            "--worker",
            help="Address of a server, and its role if it computes prompts for others (prefill) or writes "
            "the answers to these (decode). Repeatable.",
            metavar="URL[,role=ROLE]",
        ),
    ] = ()
    config: Annotated[
        Path | None,
        typer.Option("--config", help=r"TOML file with \[router] and \[\[router.worker]].", metavar="FILE"),
    ] = None
    aliases: Annotated[
        tuple[str, ...],
        typer.Option(
            "--alias",
            help="Let a name stand for models, which get its requests by weight. Repeatable.",
            metavar="NAME=MODEL[:WEIGHT],…",
        ),
    ] = ()
    placement: Annotated[
        str | None,
        typer.Option(
            "--placement",
            help=f"Policy that chooses the worker of a request: {', '.join(PLACEMENTS)}, or FILE.py:NAME. "
            "Default: stretto.",
            metavar="NAME",
        ),
    ] = None
    snapshot: Annotated[
        str | None,
        typer.Option(
            "--snapshot",
            help="Keep what the servers hold in their caches in this file, from the router's end to its next "
            "start.",
            metavar="FILE",
        ),
    ] = None
    max_held_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-held-bytes",
            help="Bytes held for all clients together; more is refused with status 429. "
            f"Default: {MAX_HELD_BYTES}.",
            metavar="NUMBER",
        ),
    ] = None
    announce: options.Announce = None
    peers: options.Peer = ()
    otel: options.Otel = None
    tls_certificate: options.TlsCertificate = None
    tls_key: options.TlsKey = None
    worker_ca: options.WorkerCa = None
    worker_certificate: options.WorkerCertificate = None
    worker_key: options.WorkerKey = None
    host: options.Host = None
    port: options.RouterPort = None
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            help="Append a line of JSON for each request: where it went, why, and what came of it.",
            metavar="FILE",
        ),
    ] = None


def route(given: RouteOptions) -> None:
    """Run a router before servers that speak OpenAI's API, such as vLLM or SGLang."""
    from stretto.cli.tls import with_tls, with_worker_tls
    from stretto.cli.watching import watch_of

    with imports_of("route", "the router"):
        from stretto.router.aliases import read_alias
        from stretto.router.config import RouterConfig
        from stretto.router.config_file import read_router_config, read_workers
        from stretto.router.serve import run_router

    settings = RouterConfig() if given.config is None else read_router_config(given.config)
    settings = replace(settings, worker=(*settings.worker, *read_workers(given.workers)))
    settings = replace(settings, alias=(*settings.alias, *map(read_alias, given.aliases)))
    values: dict[str, Any] = {name: getattr(given, name) for name in _OF_THE_FILE}
    values["peer"] = (*settings.peer, *given.peers)
    settings = replace(settings, **{name: value for name, value in values.items() if value is not None})
    settings = with_tls(settings, given.tls_certificate, given.tls_key)
    settings = with_worker_tls(settings, given.worker_ca, given.worker_certificate, given.worker_key)
    if not settings.worker and settings.workers_file is None:
        raise UserError("give the servers with --worker URL, or in the file of --config")
    run_router(settings, given.record, say, watch_of(given.otel))
