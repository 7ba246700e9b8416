"""Runs a checked call of `stretto ask`: opens collections, starts engines, asks questions, writes reports."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace

from rich.console import Console

from stretto.cli.ask.answers import PrintedAnswer, Printer
from stretto.cli.ask.check import Checked
from stretto.cli.ask.questions import Questions, recorded
from stretto.cli.ask.reports import print_times, write_traces
from stretto.cli.ask.saved_answers import open_answers, saved_in
from stretto.cli.collections import by_absolute_path, collections_engine, missing, opened
from stretto.cli.indexing import IndexingRecorder

_SESSION = "documents"


def run_questions(checked: Checked, errors: Console) -> bool:
    """Run a checked call of `stretto ask`: ask the questions, print the answers, write the reports.

    Returns whether all questions were answered and all reports written.

    Raises:
        StrettoError: an engine cannot start, documents cannot be indexed, or a single question failed.
    """
    began_s = time.monotonic()
    request, given = checked.request, checked.request.given
    printer = Printer(errors, given.as_json, checked.says_small_model)
    recorder = IndexingRecorder()
    engines, documents = checked.engines, checked.documents
    is_reported = True
    with contextlib.ExitStack() as stack:
        if given.collection is not None:
            store = stack.enter_context(opened(given.dsn))
            as_given, documents = documents, by_absolute_path(documents)
            printer.names = {a.source: g.source for a, g in zip(documents, as_given, strict=True)}
            documents = missing(store, given.collection, documents, checked.recipe, errors)
            engines = engines.with_engine(collections_engine(given.dsn))
        questions = Questions(
            template=checked.template,
            configuration=checked.configuration,
            passes=given.passes,
            timeout_s=given.timeout,
            collection=given.collection or _SESSION,
            documents=documents,
            questions=request.questions,
            printer=printer,
            recorder=recorder,
        )
        if given.journal is not None:
            journal = stack.enter_context(open_answers(given.journal, checked))
            saved = saved_in(journal.entries(), request.questions)
            questions = replace(questions, journal=journal, saved=saved)
        if given.record is not None:
            questions = stack.enter_context(recorded(questions, given.record, engines.deployments))
        try:
            answers = asyncio.run(questions.run(engines, errors))
        finally:
            if given.trace is not None and given.chrome is not None and recorder.queries:
                is_reported = write_traces(given.trace, given.chrome, questions, engines.deployments, errors)
    if not given.as_json:
        print_times(recorder, time.monotonic() - began_s, errors)
    if questions.record is not None:
        is_reported = is_reported and questions.record.is_whole
    return not _say_failed(answers, errors) and is_reported


def _say_failed(answers: list[PrintedAnswer], errors: Console) -> bool:
    """Say how many questions failed; return whether any did."""
    failed = [answer for answer in answers if answer.error is not None]
    if failed:
        errors.print(f"[bold red]{len(failed)} of {len(answers)} questions failed[/]")
    return bool(failed)
