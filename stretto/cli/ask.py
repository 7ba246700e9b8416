"""`stretto ask`: questions over documents, answered with sources."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from stretto.cli import options
from stretto.core import ABSENT, Document, Hit
from stretto.documents import load_documents
from stretto.engine import Engine
from stretto.engines.embedding import MINILM
from stretto.engines.local import PROFILES, llm_engine, local_engines
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

_STAND_IN = "The LLM is a stand-in that copies sentences; give a real one with --llm DIR or --llm URL."
_NOTHING_FOUND = "No passage was found."
_SESSION = "documents"


@dataclass(frozen=True, slots=True)
class Answer:
    """What `--json` prints of one question."""

    question: str
    answer: str | None
    sources: Sequence[Hit]
    error: str | None = None

    def as_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "question": self.question,
            "answer": self.answer,
            "sources": [
                {
                    "file": hit.chunk.source,
                    "page": hit.chunk.page,
                    "section": hit.chunk.title,
                    "score": round(hit.score, 4),
                    "text": hit.chunk.text,
                }
                for hit in self.sources
            ],
            "error": self.error,
        }


def ask(
    question: Annotated[str | None, typer.Argument(help="What you want to know.")] = None,
    docs: options.Docs = None,
    app: options.App = "advanced",
    passes: options.Passes = "all",
    llm: Annotated[
        str | None, typer.Option(help="A checkpoint's directory, or the URL of an OpenAI-compatible server.")
    ] = None,
    collection: Annotated[
        str | None,
        typer.Option(
            help="Keep the documents in this collection (PostgreSQL); later questions need no --docs."
        ),
    ] = None,
    dsn: Annotated[
        str | None,
        typer.Option(
            envvar="STRETTO_DSN", help="PostgreSQL to keep collections in; else an embedded server."
        ),
    ] = None,
    questions: Annotated[
        Path | None, typer.Option(help="A JSONL file of questions (strings, or objects with `question`).")
    ] = None,
    settings: options.Settings = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds that a question may take.", min=0.001)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per question.")] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write where the time went: an HTML page, and Chrome trace JSON beside it."),
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
    recipe = _recipe(template, configuration)
    if recipe:
        configuration.setdefault("indexing", {})["recipe"] = recipe
    template.lower(configuration)
    llm_ = llm_engine(llm)
    documents = _load(docs or [], max_bytes, errors)
    store = _collection_engine(dsn) if collection is not None else None
    if store is not None and collection is not None:
        documents = _missing(store, collection, documents, recipe, errors)
    engines = local_engines(llm=llm_, vectors=store, profiles=options.saved_profiles())
    if llm is None:
        errors.print(f"[dim]{_STAND_IN}[/]", soft_wrap=True)
    recorder = Recorder()
    run = _Run(template, configuration, passes, timeout, collection or _SESSION, documents, asked, as_json)
    try:
        answers = asyncio.run(run.run(engines, recorder, errors))
    finally:
        if trace is not None and recorder.queries:
            _write_trace(trace, recorder, run, engines, errors)
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
    as_json: bool

    async def run(self, engines: Sequence[Engine], recorder: Recorder, errors: Console) -> list[Answer]:
        """Ask all: the first brings the documents, the others follow when those are in."""
        async with contextlib.AsyncExitStack() as stack:
            with _spinner(errors) as progress:
                progress.add_task("loading models")
                runtime = await stack.enter_async_context(Runtime(engines, recorder=recorder))
            if len(self.questions) == 1:
                return [await self._ask_one(runtime, errors)]
            with _bar(errors) as progress:
                bar = progress.add_task("answering", total=len(self.questions))
                return await self._ask_all(runtime, lambda: progress.advance(bar))

    async def _submit(self, runtime: Runtime, question: str, documents: Sequence[Document]) -> Query:
        return await runtime.submit(
            self.template,
            {"question": question, "files": list(documents), "collection": self.collection},
            configuration=self.configuration,
            passes=self.passes,
            deadline_s=self.timeout_s,
        )

    async def _ask_one(self, runtime: Runtime, errors: Console) -> Answer:
        """One question: its answer is printed while it is decoded; its failure is the command's."""
        query = await self._submit(runtime, self.questions[0], self.documents)
        pieces = query.stream("answer")
        with _spinner(errors) as progress:
            progress.add_task("reading and answering")
            first = await anext(pieces, "")
        if not self.as_json:
            _show(first)
            try:
                async for piece in pieces:
                    _show(piece)
            except StrettoError:
                _show("\n")
                raise
        answer = _answer(self.questions[0], await query)
        if self.as_json:
            self._print(answer)
        else:
            _show("\n" if answer.answer else _NOTHING_FOUND + "\n")
            _print_sources(answer)
        return answer

    async def _ask_all(self, runtime: Runtime, advance: Callable[[], None]) -> list[Answer]:
        """Many questions, printed in order; a failure is noted and the others go on."""

        async def ask_next(question: str, documents: Sequence[Document]) -> Answer:
            try:
                return _answer(question, await (await self._submit(runtime, question, documents)))
            except StrettoError as error:
                return Answer(question, None, (), f"{type(error).__name__}: {error}")
            finally:
                advance()

        answers = [await ask_next(self.questions[0], self.documents)]
        self._print(answers[0])
        tasks = [asyncio.create_task(ask_next(question, [])) for question in self.questions[1:]]
        for task in tasks:
            answers.append(await task)
            self._print(answers[-1])
        return answers

    def _print(self, answer: Answer) -> None:
        if self.as_json:
            sys.stdout.write(json.dumps(answer.as_json(), ensure_ascii=False) + "\n")
            sys.stdout.flush()
            return
        console = Console()
        console.print(f"[bold]{escape(answer.question)}[/]", soft_wrap=True)
        if answer.error is not None:
            console.print(f"[red]{escape(answer.error)}[/]", soft_wrap=True)
        else:
            console.print(answer.answer or _NOTHING_FOUND, markup=False, highlight=False, soft_wrap=True)
            _print_sources(answer)


def _answer(question: str, outputs: Mapping[str, object]) -> Answer:
    text, sources = outputs["answer"], outputs["sources"]
    hits = [hit for hit in sources if isinstance(hit, Hit)] if isinstance(sources, list) else []
    return Answer(question, None if text is ABSENT else str(text), hits)


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _print_sources(answer: Answer) -> None:
    console = Console()
    for number, hit in enumerate(answer.sources, 1):
        console.print(f"  [dim]{number}. {escape(hit.chunk.place)}[/]", highlight=False, soft_wrap=True)


def _spinner(errors: Console) -> Progress:
    columns = SpinnerColumn(), TextColumn("{task.description}")
    return Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)


def _bar(errors: Console) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)


def _load(paths: Sequence[Path], max_bytes: int, errors: Console) -> list[Document]:
    if not paths:
        return []
    with _spinner(errors) as progress:
        task = progress.add_task("reading documents")
        return load_documents(
            paths,
            max_bytes=max_bytes,
            on_document=lambda path: progress.update(task, description=f"reading {escape(path)}"),
        )


def _recipe(template: Template, configuration: Configuration) -> str:
    """What a chunk of a collection was made with: documents made otherwise are made again."""
    indexing = next((c for c in template.components if c.name == "indexing"), None)
    if indexing is None:
        return ""
    settings = {**vars(indexing.config), **configuration.get("indexing", {})}
    return f"tokens={settings['tokens']} overlap={settings['overlap']} model={MINILM}"


def _collection_engine(dsn: str | None) -> Engine:
    from stretto.engines.postgres import PostgresConfig, PostgresVectors

    folder = options.data_dir() / "postgres"
    if dsn is None:
        folder.mkdir(parents=True, exist_ok=True)
    config = PostgresConfig(dsn=dsn, data_dir=None if dsn else folder)
    return Engine(
        "vectors", PostgresVectors, config, profile=PROFILES["vectors"], max_batch=1024, keeps_state=True
    )


def _missing(
    store: Engine, collection: str, documents: list[Document], recipe: str, errors: Console
) -> list[Document]:
    """Of `documents`, those that the collection does not hold yet."""
    with _spinner(errors) as progress, contextlib.closing(store.executable(store.config)) as vectors:
        progress.add_task("looking into the collection")
        if not documents and collection not in vectors.collections():
            known = ", ".join(vectors.collections()) or "none"
            raise UserError(
                f"there is no collection {collection!r} (there are: {known}); give --docs to make it"
            )
        missing: list[Document] = vectors.missing(collection, documents, recipe)
    if len(missing) < len(documents):
        present = len(documents) - len(missing)
        errors.print(
            f"[dim]in {escape(repr(collection))} already: {present} of {len(documents)} documents[/]",
            soft_wrap=True,
        )
    return missing


def _write_trace(
    path: Path, recorder: Recorder, run: _Run, engines: Sequence[Engine], errors: Console
) -> None:
    planner = Planner({engine.name: engine.profile for engine in engines})
    plan = planner.plan(run.template, run.configuration, select_passes(run.passes))
    write_trace(path, recorder, [plan])
    chrome = path.with_suffix(".trace.json")
    chrome.write_text(json.dumps(chrome_trace(recorder)))
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
