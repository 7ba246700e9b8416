"""`stretto serve`: programs on semantic variables over HTTP."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from stretto.cli import options
from stretto.errors import ConfigError


def serve(
    engines: Annotated[
        Path | None,
        typer.Option(
            "--engines",
            help="TOML file with engines and their replicas, and [service] with tenants and limits.",
            metavar="FILE",
        ),
    ] = None,
    llm: options.Llms = None,
    api: options.Api = None,
    tokenizer: options.Tokenizer = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen at.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port to listen at; 0 takes a free one.")] = None,
) -> None:
    """Serve programs on semantic variables over HTTP, to clients such as stretto.programs.Client."""
    from stretto.cli.engines_file import deployed, read_tables
    from stretto.cli.served_engines import with_usual_engines

    try:
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
    run_service(deployments, config, _say, machine)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
