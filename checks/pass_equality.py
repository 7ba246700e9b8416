"""Checks that the passes keep the result, on hundreds of real questions answered with and without them.

    python -m checks.pass_equality --data DIR [--questions 200]

Engines are real: MiniLM embeddings, exact vector search, the default reranking, and for synthesis the
reference LLM in float32 on a tiny random checkpoint (greedy). The stand-in expands questions, because a
random model writes no lists of queries. Every answer and every source (the chunks, in order) is compared with
those of `none`.

A difference is excused only by a near-tie, which rounding may reverse: two chunks that changed places or
replaced each other, with scores within 1e-4; a search whose last hit and first left-out hit are that close;
or the two best logits of a step in one of the two runs. A different answer to different, excused sources is
excused with them. The exit code is 1 if any difference is not excused.

There are three parts: all questions over one indexed collection (named, shared), with no passes and all
passes; some of them with every pass alone and every pass left out; and some with documents that each query
indexes itself, in small pieces, so that pipelined ingestion is checked too.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.common.checkpoint import TINY, build_checkpoint
from benchmarks.common.corpora import Question, QuestionSet, question_sets
from stretto.apps import APPS
from stretto.apps.template import Template
from stretto.graph.passes.pipeline import PASSES
from stretto.model.deployment import Deployment
from stretto.model.errors import StrettoError
from stretto.model.values import ABSENT, Document, Hit
from stretto.runtime.runtime import Runtime
from stretto.trace.recorder import Recorder

Case: TypeAlias = tuple[str, Mapping[str, object]]

TIE = 1e-4
EXPANDER = "expander"
IN_FLIGHT = 6


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """Result of one run of a question, and how near it came to a tie."""

    answer: object
    sources: tuple[Hit, ...]
    logit_gap: float
    search_gap: float


@dataclass(slots=True)
class Tally:
    """Counts of one app in one part. `unexcused` has the questions; `answers` has the different answers."""

    num_questions: int = 0
    num_comparisons: int = 0
    equal_answers: int = 0
    equal_sources: int = 0
    excused: int = 0
    near_ties: int = 0
    answers: set[object] = field(default_factory=set)
    unexcused: list[str] = field(default_factory=list)

    def add(self, case: str, base: CheckedAnswer, other: CheckedAnswer) -> None:
        """Compare one run with the run without passes."""
        self.num_comparisons += 1
        self.answers.add(base.answer)
        self.near_ties += min(base.logit_gap, other.logit_gap, base.search_gap, other.search_gap) < TIE
        same_sources = _chunks(base) == _chunks(other)
        same_answer = base.answer == other.answer
        self.equal_sources += same_sources
        self.equal_answers += same_answer
        if same_sources and same_answer:
            return
        excused = is_tied_search(base, other) if not same_sources else _is_tied_decode(base, other)
        if excused:
            self.excused += 1
        else:
            self.unexcused.append(case)


def _chunks(asked: CheckedAnswer) -> list[tuple[str, int]]:
    return [(hit.chunk.source, hit.chunk.index) for hit in asked.sources]


def _is_tied_decode(base: CheckedAnswer, other: CheckedAnswer) -> bool:
    return min(base.logit_gap, other.logit_gap) < TIE


def is_tied_search(base: CheckedAnswer, other: CheckedAnswer) -> bool:
    """Whether the sources of two runs differ by near-ties only."""
    if min(base.search_gap, other.search_gap) < TIE:
        return True
    if len(base.sources) != len(other.sources):
        return False
    pairs = zip(base.sources, other.sources, strict=True)
    return all(
        abs(a.score - b.score) < TIE
        for a, b in pairs
        if (a.chunk.source, a.chunk.index) != (b.chunk.source, b.chunk.index)
    )


@dataclass(slots=True)
class Gaps:
    """Smallest difference, by query, of the last hit and the first left-out hit in any of its searches."""

    of_query: dict[str, float] = field(default_factory=dict)

    def note(self, query: str, gap: float) -> None:
        """Record the gap of one search of `query`."""
        self.of_query[query] = min(gap, self.of_query.get(query, float("inf")))


def real_engines(checkpoint: Path, gaps: Gaps) -> list[Deployment]:
    """The engines of the command line, one LLM for each of the two jobs, and a search that notes its gaps."""
    from benchmarks.common.reference.engine import ReferenceConfig, ReferenceLLM
    from checks.watched_vectors import WatchedVectors
    from stretto.engines.catalogue import local_engines, vectors_engine
    from stretto.engines.executables import PROFILES
    from stretto.engines.llms import STAND_IN, llm_engine

    vectors = vectors_engine().changed(executable=WatchedVectors, config=gaps)
    small_pieces = {**PROFILES, "embedding": replace(PROFILES["embedding"], max_efficient_batch=4)}
    reference = llm_engine(None).changed(executable=ReferenceLLM, config=ReferenceConfig(checkpoint))
    engines = local_engines(llm=reference, vectors=vectors, profiles=small_pieces, kept_texts=0)
    return [*engines, llm_engine(STAND_IN).changed(name=EXPANDER)]


@dataclass(slots=True)
class PassCheck:
    """A run of the whole check."""

    runtime: Runtime
    recorder: Recorder
    gaps: Gaps
    answer_tokens: int
    advance: Callable[[], None] = lambda: None
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)

    async def ask(
        self, app: str, template: Template, inputs: Mapping[str, object], passes: str
    ) -> CheckedAnswer:
        """Run one question once."""
        settings: dict[str, Mapping[str, object]] = {"synthesis": {"max_tokens": self.answer_tokens}}
        if app == "advanced":
            settings["query_expansion"] = {"engine": EXPANDER}
        query = await self.runtime.submit(template, inputs, configuration=settings, passes=passes)
        outputs = await query
        gap = float("inf")
        for span in self.recorder.spans:
            if any(part.query == query.id for part in span.parts):
                gap = min(gap, getattr(span.usage, "min_gap", float("inf")))
        self._forget(query.id)
        sources = outputs["sources"]
        assert isinstance(sources, list)
        answer = outputs["answer"]
        search_gap = self.gaps.of_query.pop(query.id, float("inf"))
        return CheckedAnswer("" if answer is ABSENT else answer, tuple(sources), gap, search_gap)

    def _forget(self, query: str) -> None:
        """Forget the spans of an ended query, which would be searched again and again."""
        spans = self.recorder.spans
        spans[:] = [s for s in spans if s.end_s is None or any(part.query != query for part in s.parts)]

    async def compare(
        self,
        part: str,
        app: str,
        template: Template,
        cases: Sequence[Case],
        passes: Sequence[str],
    ) -> None:
        """Run every case with no passes and with each choice of `passes`, a few at a time."""
        tally = self.tallies.setdefault((part, app), Tally())
        waiting = list(reversed(cases))

        async def client() -> None:
            while waiting:
                name, inputs = waiting.pop()
                runs = await asyncio.gather(
                    *(self.ask(app, template, inputs, chosen) for chosen in ("none", *passes))
                )
                tally.num_questions += 1
                for chosen, run in zip(passes, runs[1:], strict=True):
                    tally.add(f"{part}, {app}, passes {chosen}: {name}", runs[0], run)
                self.advance()

        await asyncio.gather(*(client() for _ in range(IN_FLIGHT)))


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """Numbers of questions in each part."""

    shared: int
    subsets: int
    private: int
    answer_tokens: int = 24

    @staticmethod
    def of(num_questions: int) -> CheckPlan:
        """Plan all questions in the first part, a twentieth with every subset, an eighth with private
        documents."""
        return CheckPlan(num_questions, max(1, num_questions // 20), max(1, num_questions // 8))

    @property
    def num_steps(self) -> int:
        """Number of all cases, for the progress bar."""
        return (self.shared + self.subsets + self.private) * len(APPS)


SUBSETS = (
    *PASSES,
    *(",".join(other for other in PASSES if other != name) for name in PASSES),
)
PRIVATE_SUBSETS = ("all", "split_stages", "prune_order,split_stages,pipeline_decode")


async def check(
    sets: Sequence[QuestionSet], plan: CheckPlan, folder: Path, seed: int, advance: Callable[[], None]
) -> dict[tuple[str, str], Tally]:
    """Run all parts; returns tallies by part and app. Writes a checkpoint to `folder`."""
    texts = [section.text for one in sets for document in one.documents for section in document.sections]
    checkpoint = build_checkpoint(folder, texts, shape=TINY, seed=seed)
    gaps, recorder = Gaps(), Recorder()
    async with Runtime(real_engines(checkpoint, gaps), observers=[recorder]) as runtime:
        run = PassCheck(runtime, recorder, gaps, plan.answer_tokens, advance)
        for one in sets:
            question = one.questions[0].text
            inputs = {"question": question, "files": list(one.documents), "collection": one.name}
            await run.ask("naive", APPS["naive"](named_collection=True), inputs, "all")
        for app in APPS:
            await _check_app(run, app, sets, plan)
    return run.tallies


async def _check_app(run: PassCheck, app: str, sets: Sequence[QuestionSet], plan: CheckPlan) -> None:
    shared, private = APPS[app](named_collection=True), APPS[app]()
    cases: list[Case] = [
        (q.text, {"question": q.text, "files": [], "collection": one.name})
        for one in sets
        for q in one.questions
    ]
    await run.compare("shared", app, shared, cases, ["all"])
    await run.compare("subsets", app, shared, _spread(cases, plan.subsets), SUBSETS)
    own: list[Case] = [(q.text, _own(one, q)) for one in sets for q in one.questions]
    await run.compare("private", app, private, _spread(own, plan.private), PRIVATE_SUBSETS)


def _spread(cases: Sequence[Case], count: int) -> Sequence[Case]:
    """Choose `count` cases, evenly from all."""
    step = max(1, len(cases) // count)
    return cases[::step][:count]


def _own(one: QuestionSet, question: Question) -> Mapping[str, object]:
    """Inputs with the question's document and the next one, which the query indexes itself."""
    place = next(i for i, document in enumerate(one.documents) if document.source == question.source)
    files: list[Document] = [one.documents[(place + i) % len(one.documents)] for i in range(2)]
    return {"question": question.text, "files": files}


def print_tallies(tallies: Mapping[tuple[str, str], Tally], console: Console) -> None:
    """Print a table, and the questions with differences that are not excused."""
    table = Table(title="equal to the results of no passes", title_justify="left", box=SIMPLE, padding=0)
    for column in ("", "app"):
        table.add_column(column, no_wrap=True)
    for column in ("asked", "pairs", "answers", "sources", "near tie", "excused", "bad"):
        table.add_column(column, justify="right", no_wrap=True)
    for (part, app), tally in tallies.items():
        counts = (tally.num_questions, tally.num_comparisons)
        equal = (tally.equal_answers, tally.equal_sources)
        bad = f"[red]{len(tally.unexcused)}[/]" if tally.unexcused else "0"
        table.add_row(part, app, *map(str, (*counts, *equal, tally.near_ties, tally.excused)), bad)
    console.print(table)
    num_distinct = sum(len(tally.answers) for (part, _), tally in tallies.items() if part == "shared")
    console.print(
        "shared: one collection, passes all; subsets: each pass alone and each left out; private: documents"
        " indexed by each query. pairs: runs compared; answers, sources: equal ones; near tie: pairs in which"
        f" a step came within {TIE:g} of a tie; excused: pairs that differ by one; bad: otherwise."
        f" Different answers in shared: {num_distinct}.",
        style="dim",
        highlight=False,
    )
    for tally in tallies.values():
        for case in tally.unexcused[:10]:
            console.print(f"differs: {case}", markup=False, highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        "python -m checks.pass_equality", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with squad_xquad_en, perhaps tatqa")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    console = Console()
    plan = CheckPlan.of(max(1, options.questions))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    start_s = time.monotonic()
    try:
        sets = question_sets(options.data, plan.shared, options.seed)
        with (
            Progress(*columns, console=console) as progress,
            tempfile.TemporaryDirectory(prefix="stretto-equality-") as folder,
        ):
            bar = progress.add_task("comparing", total=plan.num_steps)
            tallies = asyncio.run(
                check(sets, plan, Path(folder), options.seed, lambda: progress.advance(bar))
            )
    except StrettoError as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        return 2
    print_tallies(tallies, console)
    names = ", ".join(f"{len(one.questions)} questions over {one.name}" for one in sets)
    console.print(f"{names}; seed {options.seed}; {time.monotonic() - start_s:.0f} s", highlight=False)
    return 1 if any(tally.unexcused for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
