"""Runs a checked call of `stretto ask`: opens collections, starts engines, asks questions, writes reports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stretto.apps.plan_cache import PlanCache
from stretto.cli.ask.answers import PrintedAnswer, Printer
from stretto.cli.ask.check import Checked
from stretto.cli.ask.questions import Questions, recorded
from stretto.cli.ask.saved_answers import open_answers, saved_in
from stretto.cli.collections import by_absolute_path, collections_engine, missing, opened
from stretto.cli.indexing import NAME, IndexingRecorder, indexing_template
from stretto.cli.verbosity import note, shows_notes
from stretto.model.deployment import Deployment
from stretto.runtime.conditions import idle_conditions
from stretto.trace.chrome import chrome_trace
from stretto.trace.html import write_trace
from stretto.trace.recorder import Recorder
from stretto.trace.summary import summarise

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


def write_traces(
    page: Path, chrome: Path, run: Questions, engines: Sequence[Deployment], errors: Console
) -> bool:
    """Write traces of where the time went: an HTML page, and a file in Chrome's trace format.

    Returns whether that succeeded. A failure is printed, not raised, so that it hides no earlier error.
    """
    idle = idle_conditions(engines)
    plan_cache = PlanCache(idle.profiles, run.template.vocabulary, idle)
    passes = run.template.vocabulary.select_passes(run.passes)
    plans = [plan_cache.plan(run.template, run.configuration, passes)]
    if run.indexes_first:
        configuration = {NAME: run.configuration.get(NAME, {})}
        plans.insert(0, plan_cache.plan(indexing_template(run.template), configuration, passes))
    try:
        write_trace(page, run.recorder, plans)
        chrome.write_text(json.dumps(chrome_trace(run.recorder)))
    except OSError as error:
        errors.print(
            f"[bold red]UserError[/]: --trace {escape(os.fspath(page))}: {error.strerror}", soft_wrap=True
        )
        return False
    note(errors, f"wrote {escape(os.fspath(page))} and {escape(os.fspath(chrome))}")
    return True


def print_times(recorder: Recorder, whole_s: float, errors: Console) -> None:
    """Print a table of how busy each engine was to `errors`, a console on stderr, unless it is to be quiet.

    Args:
        whole_s: seconds of the whole run, in which engines were started too.
    """
    if not shows_notes():
        return
    summary = summarise(recorder)
    table = Table("engine", box=None, pad_edge=False, style="dim")
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
    loading_s = max(0.0, whole_s - summary.wall_s)
    note(errors, f"{whole_s:.2f} s in all: {loading_s:.2f} s to load, {summary.wall_s:.2f} s to answer")
    errors.print(table)
