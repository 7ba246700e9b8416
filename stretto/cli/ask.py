"""`stretto ask`: questions over documents, answered with sources."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stretto.cli import options
from stretto.cli.answers import Printer
from stretto.cli.collections import by_absolute_path, collections_engine, missing, opened
from stretto.cli.indexing import NAME, IndexingRecorder, indexing_template, recipe
from stretto.cli.progress import spinner
from stretto.cli.questions import Questions, recorded
from stretto.cli.terminal import shown
from stretto.core import Document
from stretto.deployment import Deployment
from stretto.documents import load_documents
from stretto.engines.batch.embedding import MINILM
from stretto.engines.catalogue import SMALL_MODEL, is_small_model, llm_engine, local_engines, search_engines
from stretto.errors import UserError
from stretto.frontend.plan_cache import PlanCache
from stretto.trace.chrome import chrome_trace
from stretto.trace.html import write_trace
from stretto.trace.recorder import Recorder
from stretto.trace.summary import summarise
from stretto.vocabulary import DEFAULT

_SESSION = "documents"


def ask(
    question: Annotated[str | None, typer.Argument(help="What you want to know.", metavar="QUESTION")] = None,
    docs: options.Docs = None,
    app: options.App = options.ADVANCED,
    passes: options.Passes = "all",
    llm: options.Llm = None,
    api: options.Api = None,
    tokenizer: options.Tokenizer = None,
    embedder: options.Embedder = MINILM,
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
            help="A JSONL file of questions: strings, or objects with the key 'question'.", metavar="FILE"
        ),
    ] = None,
    settings: options.Settings = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds for a question; of several, without the indexing before them.",
            min=0.001,
            metavar="SECONDS",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a question.")] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write where the time went: an HTML page, and Chrome trace JSON beside it.", metavar="FILE"
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Write sizes and times, for `stretto replay`; no texts.", metavar="FILE"),
    ] = None,
    max_bytes: options.MaxBytes = 50_000_000,
) -> None:
    """Answer questions over your documents, with sources."""
    errors = Console(stderr=True)
    if (question is None) == (questions is None):
        raise UserError("give one question, or a file of them with --questions")
    asked = [options.checked_question(question)] if question is not None else []
    asked += options.read_questions(questions) if questions else []
    searches = app == options.SEARCH
    if searches and collection is not None:
        raise UserError(f"the app {app} keeps no --collection: it searches --docs, or with --search")
    if not docs and collection is None and not (searches and search):
        raise UserError("give documents with --docs, or the name of a --collection")
    if collection is not None and not collection.strip():
        raise UserError("the collection has no name")
    if trace is not None:
        options.checked_target("--trace", trace)
        options.checked_target("--trace", _chrome_file(trace))
    if record is not None:
        options.checked_target("--record", record)
    DEFAULT.select_passes(passes)
    template = options.template(app, named_collection=True)
    configuration = options.configuration(settings)
    template.lower(configuration)
    llm_ = llm_engine(llm, api=api, tokenizer=tokenizer)
    if app == options.ADVANCED and is_small_model(llm_):  # it writes broken JSON now and then
        configuration.setdefault("query_expansion", {}).setdefault("constrained", True)
    made_by = "" if searches else recipe(template, configuration, embedder)
    if not searches:
        configuration.setdefault(NAME, {})["recipe"] = made_by
    documents = _load(docs or [], max_bytes, errors)
    printer = Printer(errors, as_json, is_small_model=llm in (None, SMALL_MODEL))
    recorder = IndexingRecorder()
    is_traced = True
    with contextlib.ExitStack() as stack:
        vectors = None
        if collection is not None:
            store = stack.enter_context(opened(dsn))
            given, documents = documents, by_absolute_path(documents)
            printer.names = {a.source: g.source for a, g in zip(documents, given, strict=True)}
            documents = missing(store, collection, documents, made_by, errors)
            vectors = collections_engine(dsn)
        if searches:
            unmeasured, documents = search_engines(llm_, None if docs else search, documents), []
        else:
            unmeasured = local_engines(
                llm=llm_, vectors=vectors, embedding_model=embedder, reranking_model=reranker
            )
        engines = options.measured(unmeasured)
        name = collection or _SESSION
        run = Questions(template, configuration, passes, timeout, name, documents, asked, printer, recorder)
        if record is not None:
            run = stack.enter_context(recorded(run, record, engines))
        try:
            answers = asyncio.run(run.run(engines, errors))
        finally:
            if trace is not None and recorder.queries:
                is_traced = _write_trace(trace, run, engines, errors)
    if not as_json:
        _print_times(recorder, errors)
    failed = [answer for answer in answers if answer.error is not None]
    if failed:
        errors.print(f"[bold red]{len(failed)} of {len(answers)} questions failed[/]")
    if failed or not is_traced:
        raise typer.Exit(1)


def _load(paths: Sequence[Path], max_bytes: int, errors: Console) -> list[Document]:
    if not paths:
        return []
    with spinner(errors) as progress:
        task = progress.add_task("reading documents")
        return load_documents(
            paths,
            max_bytes=max_bytes,
            on_document=lambda path: progress.update(
                task, description=f"reading {escape(shown(path, sys.stderr))}"
            ),
        )


def _write_trace(path: Path, run: Questions, engines: Sequence[Deployment], errors: Console) -> bool:
    """Whether it could be written; if not, that is said, and the query's own error stays."""
    plan_cache = PlanCache({engine.name: engine.profile for engine in engines})
    passes = DEFAULT.select_passes(run.passes)
    plans = [plan_cache.plan(run.template, run.configuration, passes)]
    if run.indexes_first:
        configuration = {NAME: run.configuration.get(NAME, {})}
        plans.insert(0, plan_cache.plan(indexing_template(run.template), configuration, passes))
    chrome = _chrome_file(path)
    try:
        write_trace(path, run.recorder, plans)
        chrome.write_text(json.dumps(chrome_trace(run.recorder)))
    except OSError as error:
        errors.print(
            f"[bold red]UserError[/]: --trace {escape(os.fspath(path))}: {error.strerror}", soft_wrap=True
        )
        return False
    errors.print(f"[dim]wrote {escape(os.fspath(path))} and {escape(os.fspath(chrome))}[/]", soft_wrap=True)
    return True


def _chrome_file(path: Path) -> Path:
    return path.with_suffix(".trace.json")


def _print_times(recorder: Recorder, errors: Console) -> None:
    summary = summarise(recorder)
    table = Table("engine", box=None, pad_edge=False, style="dim", title_justify="left")
    table.title = f"{summary.wall_s:.2f} s in all"
    for heading in ("batches", "items", "busy s", "share"):
        table.add_column(heading, justify="right")
    for row in sorted(summary.engines, key=lambda row: -row.busy_s):
        table.add_row(
            row.engine,
            str(row.num_batches),
            str(row.num_items),
            f"{row.busy_s:.2f}",
            f"{row.share:.0%}",
        )
    errors.print(table)
