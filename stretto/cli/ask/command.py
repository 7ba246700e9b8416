"""The command `stretto ask`: questions over documents, answered with sources."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stretto.cli import options, parsing


def ask(
    question: Annotated[
        str | None, typer.Argument(help="The question to answer.", metavar="QUESTION")
    ] = None,
    docs: options.Docs = None,
    app: options.App = options.ADVANCED,
    passes: options.Passes = "weighed",
    engines: options.EnginesFile = None,
    llm: options.Llms = None,
    api: options.Api = None,
    tokenizer: options.Tokenizer = None,
    model: options.Model = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    replicas: options.Replicas = None,
    runs_in: options.RunsIn = None,
    policy: options.Policy = None,
    embedder: options.Embedder = None,
    reranker: options.Reranker = None,
    collection: Annotated[
        str | None,
        typer.Option(
            help="Keep the documents in this collection (PostgreSQL); later questions need no --docs.",
            metavar="NAME",
        ),
    ] = None,
    dsn: options.Dsn = None,
    search: options.SearchUrl = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            help="JSONL file of questions: strings, or objects with the key 'question'.", metavar="FILE"
        ),
    ] = None,
    settings: options.Settings = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds allowed for each question. With several questions, indexing does not count.",
            min=0.001,
            metavar="SECONDS",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one object for each question.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write a trace of where the time went: an HTML page, with Chrome trace JSON beside it.",
            metavar="FILE",
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Record sizes and times, but no texts, for `stretto replay`.", metavar="FILE"),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            help="Save each answer in this file; the same command again asks only what is not there.",
            metavar="FILE",
        ),
    ] = None,
    max_bytes: options.MaxBytes = options.MAX_BYTES,
    strict: options.Strict = False,
) -> None:
    """Answer questions over your documents, with sources.

    Each call loads the models again; `stretto serve --app` keeps them loaded.
    """
    parsing.check_paths(docs or ())
    from rich.console import Console

    from stretto.cli.ask.check import check
    from stretto.cli.ask.request import AskRequest, questions_of
    from stretto.cli.ask.run import run
    from stretto.cli.engines import EngineOptions

    errors = Console(stderr=True, emoji=False)
    asked = questions_of(question, questions)
    request = AskRequest(
        questions=asked,
        docs=tuple(docs or ()),
        app=app,
        passes=passes,
        settings=parsing.configuration(settings),
        engines=EngineOptions(
            file=engines,
            llms=tuple(llm or ()),
            api=api,
            tokenizer=tokenizer,
            model=model,
            device=device,
            dtype=dtype,
            replicas=replicas,
            runs_in=runs_in,
            policy=policy,
            embedder=embedder,
            reranker=reranker,
            search=None if docs else search,
        ),
        timeout_s=timeout,
        collection=collection,
        dsn=dsn,
        as_json=as_json,
        trace=trace,
        record=record,
        journal=journal,
        max_bytes=max_bytes,
        is_strict=strict,
    )
    if not run(check(request, errors), errors):
        raise typer.Exit(1)
