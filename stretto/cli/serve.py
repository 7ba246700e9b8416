"""`stretto serve`: apps, and programs on semantic variables, over HTTP."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from stretto.apps import APPS
from stretto.cli import options
from stretto.cli.documents import read_documents
from stretto.errors import ConfigError


def serve(
    engines: Annotated[
        Path | None,
        typer.Option(
            "--engines",
            help=r"TOML file with engines and their replicas, and \[service] with tenants and limits.",
            metavar="FILE",
        ),
    ] = None,
    llm: options.Llms = None,
    api: options.Api = None,
    tokenizer: options.Tokenizer = None,
    app: Annotated[
        list[str] | None,
        typer.Option(
            "--app",
            help="App to deploy: FILE.py:NAME, where NAME is a Template or a function that returns one, or a "
            f"ready-made one: {', '.join((*APPS, options.SEARCH))}. Repeatable.",
            metavar="FILE.py:NAME",
        ),
    ] = None,
    docs: Annotated[
        list[Path] | None,
        typer.Option(
            "--docs",
            help=f"Document or folder of documents that the app {options.SEARCH} searches. Repeatable.",
            metavar="PATH",
        ),
    ] = None,
    search: options.SearchUrl = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen at.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port to listen at; 0 takes a free one.")] = None,
) -> None:
    """Serve apps, and programs on semantic variables, over HTTP. Models stay loaded."""
    from stretto.cli.engines_file import deployed, read_tables
    from stretto.cli.served_engines import with_engines_of, with_usual_engines

    try:
        from stretto.service.apps.deployed_app import load_apps
        from stretto.service.config import read_service_config
        from stretto.service.serve import run_service
    except ImportError as error:
        raise ConfigError(f"the service needs the package {error.name}: stretto[service]") from error
    tables = None if engines is None else read_tables(engines)
    config = read_service_config(tables)
    given: dict[str, Any] = {"host": host, "port": port}
    config = replace(config, **{name: value for name, value in given.items() if value is not None})
    machine, described = (None, ()) if tables is None else deployed(tables)
    deployments = with_usual_engines(described, tuple(llm or ()), api, tokenizer)
    apps = load_apps(app or ())
    documents = read_documents(docs or [], options.MAX_BYTES, Console(stderr=True), is_strict=False)
    needed = {name: deployed.template for name, deployed in apps.items()}
    deployments = with_engines_of(needed, deployments, None if documents else search, documents)
    run_service(deployments, config, _say, machine, apps)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
