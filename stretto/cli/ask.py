"""`stretto ask`: questions over documents, answered with sources."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stretto.cli import options
from stretto.cli.answers import Answer, Printer
from stretto.cli.collections import by_absolute_path, collections_engine, missing, opened
from stretto.cli.indexing import NAME, Indexed, IndexingRecorder, indexing_template, recipe
from stretto.cli.progress import bar, spinner
from stretto.core import Document
from stretto.documents import load_documents
from stretto.engine import Engine
from stretto.engines.embedding import MINILM
from stretto.engines.local import llm_engine, local_engines
from stretto.errors import StrettoError, UserError
from stretto.frontend.planner import Planner
from stretto.frontend.template import Configuration, Template
from stretto.graph.passes.pipeline import select_passes
from stretto.runtime.query import Query
from stretto.runtime.runtime import Runtime
from stretto.trace.chrome import chrome_trace
from stretto.trace.html import write_trace
from stretto.trace.recorder import Recorder
from stretto.trace.summary import summarise

_SESSION = "documents"


def ask(
    question: Annotated[str | None, typer.Argument(help="What you want to know.")] = None,
    docs: options.Docs = None,
    app: options.App = "advanced",
    passes: options.Passes = "all",
    llm: options.Llm = None,
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
            help="Seconds for each question. One question's include indexing; several follow it.",
            min=0.001,
            metavar="SECONDS",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object for each question.")] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write where the time went: an HTML page, and Chrome trace JSON beside it.", metavar="FILE"
        ),
    ] = None,
    max_bytes: options.MaxBytes = 50_000_000,
) -> None:
    """Answer questions over your documents, with sources."""
    errors = Console(stderr=True)
    if (question is None) == (questions is None):
        raise UserError("give one question, or a file of them with --questions")
    asked = [options.checked_question(question)] if question is not None else []
    asked += options.read_questions(questions) if questions else []
    if not docs and collection is None:
        raise UserError("give documents with --docs, or the name of a --collection")
    if collection is not None and not collection.strip():
        raise UserError("the collection has no name")
    if trace is not None:
        options.checked_target("--trace", trace)
    select_passes(passes)
    template = options.template(app, named_collection=True)
    configuration = options.configuration(settings)
    template.lower(configuration)
    made_by = recipe(template, configuration, embedder)
    configuration.setdefault(NAME, {})["recipe"] = made_by
    llm_ = llm_engine(llm)
    documents = _load(docs or [], max_bytes, errors)
    printer = Printer(errors, as_json, is_stand_in=llm is None)
    recorder = IndexingRecorder()
    with contextlib.ExitStack() as stack:
        vectors = None
        if collection is not None:
            store = stack.enter_context(opened(dsn))
            given, documents = documents, by_absolute_path(documents)
            printer.names = {a.source: g.source for a, g in zip(documents, given, strict=True)}
            documents = missing(store, collection, documents, made_by, errors)
            vectors = collections_engine(dsn)
        engines = options.measured(
            local_engines(llm=llm_, vectors=vectors, embedding_model=embedder, reranking_model=reranker)
        )
        run = _Run(
            template, configuration, passes, timeout, collection or _SESSION, documents, asked, printer, recorder
        )
        try:
            answers = asyncio.run(run.run(engines, errors))
        finally:
            if trace is not None and recorder.queries:
                _write_trace(trace, run, engines, errors)
    if not as_json:
        _print_times(recorder, errors)
    failed = [answer for answer in answers if answer.error is not None]
    if failed:
        errors.print(f"[bold red]{len(failed)} of {len(answers)} questions failed[/]")
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Run:
    """The questions of one call of `ask`, over one collection."""

    template: Template
    configuration: Configuration
    passes: str
    timeout_s: float | None
    collection: str
    documents: Sequence[Document]
    questions: Sequence[str]
    printer: Printer
    recorder: IndexingRecorder

    @property
    def indexes_first(self) -> bool:
        """One question is answered while its documents come in; several need all of them first."""
        return len(self.questions) > 1 and bool(self.documents)

    async def run(self, engines: Sequence[Engine], errors: Console) -> list[Answer]:
        """Index and ask. With JSON every question gets its object, else the first failure of all is raised."""
        async with contextlib.AsyncExitStack() as stack:
            with spinner(errors) as progress:
                progress.add_task("loading models")
                runtime = await stack.enter_async_context(Runtime(engines, recorder=self.recorder))
            if len(self.questions) == 1 and not self.printer.as_json:
                return [await self._ask_one(runtime, errors)]
            if self.indexes_first:
                try:
                    await self._index(runtime, errors)
                except StrettoError as error:
                    if not self.printer.as_json:
                        raise
                    answers = [Answer.failed(question, error) for question in self.questions]
                    for answer in answers:
                        self.printer.print(answer)
                    return answers
            with bar(errors) as progress:
                answering = progress.add_task("answering", total=len(self.questions))
                return await self._ask_all(runtime, lambda: progress.advance(answering))

    async def _index(self, runtime: Runtime, errors: Console) -> None:
        with bar(errors) as progress:
            storing = progress.add_task("indexing", total=None)

            def show(indexed: Indexed) -> None:
                progress.update(
                    storing,
                    description=f"indexing {indexed.num_documents}/{len(self.documents)} documents, chunks",
                    completed=indexed.num_stored,
                    total=indexed.num_chunks,
                )

            self.recorder.on_progress = show
            inputs = {"files": list(self.documents), "collection": self.collection}
            configuration = {NAME: self.configuration.get(NAME, {})}
            await (
                await runtime.submit(
                    indexing_template(self.template), inputs, configuration=configuration, passes=self.passes
                )
            )
            self.recorder.on_progress = lambda indexed: None

    async def _submit(self, runtime: Runtime, question: str) -> Query:
        documents = [] if self.indexes_first else list(self.documents)
        return await runtime.submit(
            self.template,
            {"question": question, "files": documents, "collection": self.collection},
            configuration=self.configuration,
            passes=self.passes,
            deadline_s=self.timeout_s,
        )

    async def _ask_one(self, runtime: Runtime, errors: Console) -> Answer:
        """One question: its answer is printed while it is decoded; its failure is the command's."""
        query = await self._submit(runtime, self.questions[0])
        pieces = query.stream("answer")
        with spinner(errors) as progress:
            progress.add_task("reading and answering")
            first = await anext(pieces, "")
        self.printer.show(first)
        try:
            async for piece in pieces:
                self.printer.show(piece)
        except StrettoError:
            self.printer.show("\n")
            raise
        answer = self.printer.answer(self.questions[0], await query)
        self.printer.end(answer)
        return answer

    async def _ask_all(self, runtime: Runtime, advance: Callable[[], None]) -> list[Answer]:
        """Questions side by side, printed in order; a failure is noted and the others go on."""

        async def ask_next(question: str) -> Answer:
            try:
                return self.printer.answer(question, await (await self._submit(runtime, question)))
            except StrettoError as error:
                return Answer.failed(question, error)
            finally:
                advance()

        answers = []
        for task in [asyncio.create_task(ask_next(question)) for question in self.questions]:
            answers.append(await task)
            self.printer.print(answers[-1])
        return answers


def _load(paths: Sequence[Path], max_bytes: int, errors: Console) -> list[Document]:
    if not paths:
        return []
    with spinner(errors) as progress:
        task = progress.add_task("reading documents")
        return load_documents(
            paths,
            max_bytes=max_bytes,
            on_document=lambda path: progress.update(task, description=f"reading {escape(path)}"),
        )


def _write_trace(path: Path, run: _Run, engines: Sequence[Engine], errors: Console) -> None:
    planner = Planner({engine.name: engine.profile for engine in engines})
    passes = select_passes(run.passes)
    plans = [planner.plan(run.template, run.configuration, passes)]
    if run.indexes_first:
        configuration = {NAME: run.configuration.get(NAME, {})}
        plans.insert(0, planner.plan(indexing_template(run.template), configuration, passes))
    write_trace(path, run.recorder, plans)
    chrome = path.with_suffix(".trace.json")
    chrome.write_text(json.dumps(chrome_trace(run.recorder)))
    errors.print(f"[dim]wrote {escape(os.fspath(path))} and {escape(os.fspath(chrome))}[/]", soft_wrap=True)


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
