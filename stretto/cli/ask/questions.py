"""Runs the questions of `stretto ask`: a single one with streamed output, several at the same time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from stretto.apps.template import Configuration, Template
from stretto.cli.ask.answers import PrintedAnswer, Printer
from stretto.cli.ask.saved_answers import Saved, saved_answer_entry
from stretto.cli.engines import Assembled
from stretto.cli.indexing import NAME, Indexed, IndexingRecorder, indexing_template
from stretto.cli.progress import bar, spinner
from stretto.cli.reachable import out_of_reach
from stretto.cli.verbosity import note
from stretto.model.deployment import Deployment
from stretto.model.errors import NotSaved, StrettoError
from stretto.model.tasks import Ending
from stretto.model.values import Document
from stretto.runtime.journal.committer import Committer
from stretto.runtime.journal.file import JournalFile
from stretto.runtime.query import Query
from stretto.runtime.runtime import Runtime
from stretto.trace.run_file import RunRecorder


@dataclass(frozen=True)
class Questions:
    """The questions of one call of `stretto ask`, with the app and the documents that answer them.

    Attributes:
        template: the app.
        configuration: settings of the app, by component.
        passes: graph passes to run: "weighed", "all", "none", or names joined by commas.
        collection: name of the collection that the documents are stored in.
        documents: documents that still have to be indexed.
        recorder: observer of the run that also reports the progress of indexing.
        record: observer that writes the run to a file for `stretto replay`; None for none.
        journal: file that answers are saved in; None for none.
        saved: what an earlier run has saved there, by number of the question.
    """

    template: Template
    configuration: Configuration
    passes: str
    timeout_s: float | None
    collection: str
    documents: Sequence[Document]
    questions: Sequence[str]
    printer: Printer
    recorder: IndexingRecorder
    record: RunRecorder | None = None
    journal: JournalFile | None = None
    saved: Mapping[int, Saved] = field(default_factory=dict)

    @property
    def indexes_first(self) -> bool:
        """Whether documents are indexed before any question is asked, in a run of their own.

        A single question is asked at once: its own run indexes the documents. So does each run of an app in a
        file of the user, which has no named collection.
        """
        has_collection = "collection" in dict(self.template.inputs)
        return len(self.questions) > 1 and bool(self.documents) and has_collection

    async def run(self, engines: Assembled, errors: Console) -> list[PrintedAnswer]:
        """Start the engines, index the documents, ask the questions, print the answers, and return them.

        If no server of an engine can be reached, or indexing fails, the error is raised; with JSON output it
        becomes the answer to each question.
        """
        if len(self.saved) == len(self.questions):
            return self._print_saved()
        began_s = time.monotonic()
        by_options = [one for one in engines.deployments if one.name not in engines.from_file]
        if away := await out_of_reach(by_options):  # one in a file is waited for
            return self._all_failed(away[0])
        async with contextlib.AsyncExitStack() as stack:
            with spinner(errors) as progress:
                progress.add_task("loading models", total=None)
                observers = [self.recorder] if self.record is None else [self.recorder, self.record]
                runtime = await stack.enter_async_context(
                    Runtime(
                        engines.deployments,
                        vocabulary=self.template.vocabulary,
                        observers=observers,
                        machine=engines.machine,
                        ray_address=_ray_address(engines.deployments),
                    )
                )
            if len(self.questions) == 1 and not self.printer.as_json and self.journal is None:
                loading_s = time.monotonic() - began_s
                answer = await self._ask_one(runtime, errors)
                _say_loaded(loading_s, errors)
                return [answer]
            if self.indexes_first:
                try:
                    await self._index(runtime, errors)
                except StrettoError as error:
                    return self._all_failed(error)
            with bar(errors) as progress:
                answering = progress.add_task("answering", total=len(self.questions))
                committer = None
                if self.journal is not None:
                    committer = await stack.enter_async_context(Committer(self.journal))
                return await self._ask_all(runtime, committer, lambda: progress.advance(answering))

    def _all_failed(self, error: StrettoError) -> list[PrintedAnswer]:
        """Print and return the error as the answer to each question, if the output is JSON; else raise it."""
        if not self.printer.as_json:
            raise error
        answers = [PrintedAnswer.failed(question, error) for question in self.questions]
        for answer in answers:
            self.printer.print(answer)
        return answers

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
        known = {"question": question, "files": documents, "collection": self.collection}
        return await runtime.submit(
            self.template,
            {name: known[name] for name, _ in self.template.inputs},
            configuration=self.configuration,
            passes=self.passes,
            deadline_s=self.timeout_s,
        )

    async def _ask_one(self, runtime: Runtime, errors: Console) -> PrintedAnswer:
        """Ask one question: its answer is printed while it is decoded, and its error is raised."""
        query = await self._submit(runtime, self.questions[0])
        pieces = query.stream("answer")
        with spinner(errors) as progress:
            progress.add_task("reading and answering", total=None)
            first = await anext(pieces, "")
        self.printer.show(first)
        try:
            async for piece in pieces:
                self.printer.show(piece)
        except StrettoError:
            self.printer.show("\n")
            raise
        outputs = await query
        answer = self.printer.answer(self.questions[0], outputs, _ending(query))
        self.printer.end(answer)
        return answer

    async def _ask_all(
        self, runtime: Runtime, committer: Committer | None, advance: Callable[[], None]
    ) -> list[PrintedAnswer]:
        """Ask questions at the same time, print answers in order; if one fails, the others go on.

        With a committer, an answer is saved before it is printed.
        """

        async def ask_next(number: int, question: str) -> PrintedAnswer:
            try:
                saved = self.saved.get(number)
                if saved is None:
                    query = await self._submit(runtime, question)
                    saved = await query, _ending(query)
                    if committer is not None:
                        await committer.save(saved_answer_entry(number, question, *saved))
                return self.printer.answer(question, *saved)
            except NotSaved:
                raise
            except StrettoError as error:
                return PrintedAnswer.failed(question, error)
            finally:
                advance()

        answers = []
        asking = [asyncio.create_task(ask_next(*each)) for each in enumerate(self.questions)]
        for task in asking:
            answers.append(await task)
            self.printer.print(answers[-1])
        return answers

    def _print_saved(self) -> list[PrintedAnswer]:
        """Print answers that were all saved by an earlier run."""
        answers = [self.printer.answer(text, *self.saved[at]) for at, text in enumerate(self.questions)]
        for answer in answers:
            self.printer.print(answer)
        return answers


def _ending(query: Query) -> Ending | None:
    """Return how the answer of a query has ended; None if by itself."""
    return next((ending for ending in query.endings if "answer" in ending.outputs), None)


def _say_loaded(seconds: float, errors: Console) -> None:
    """Say how long the models took to load, and how that time is saved."""
    note(
        errors,
        f"Models were loaded in {seconds:.1f} s; each call of `stretto ask` loads them again. "
        "--questions FILE asks many at once, and `stretto serve --app` keeps them loaded.",
    )


@contextlib.contextmanager
def recorded(run: Questions, path: Path, engines: Sequence[Deployment]) -> Iterator[Questions]:
    """Context manager that yields the same questions, set to record their run in a file for `stretto
    replay`.
    """
    before_passes = [run.template.lower(run.configuration)]
    if run.indexes_first:
        indexing = indexing_template(run.template)
        before_passes.append(indexing.lower({NAME: run.configuration.get(NAME, {})}))
    record = RunRecorder(path, engines, before_passes=before_passes)
    with contextlib.closing(record):
        yield replace(run, record=record)


def _ray_address(engines: Sequence[Deployment]) -> str:
    """Return the variable RAY_ADDRESS where a replica needs it."""
    needs_ray = any(replica.runs_in == "ray" for engine in engines for replica in engine.replicas)
    return os.environ.get("RAY_ADDRESS", "") if needs_ray else ""
