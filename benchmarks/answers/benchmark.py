"""`stretto bench answers`: how good are the answers of the ready-made apps, beside BM25's best sentence?

An answer is right if it contains the known one. The first source is right if it is a passage of the right
document and contains the known answer. Half of each set served to choose prompts and settings, and only the
other half is reported.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.answers.asking import Answer, Asking
from benchmarks.answers.baseline import BestSentence
from benchmarks.answers.questions import SETS, WHOLE, Asked, Half, QuestionSets, read_sets
from benchmarks.answers.scores import contains, token_f1
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row
from stretto.documents.support import NOT_FOUND
from stretto.engines.llms import DEFAULT_LLM

QUALITY = "answers that contain the known one, F1 and right first sources (%)"
BASELINE = "BM25's best sentence"
_CELLS = Path("runs") / "answers"
_F1_GOAL = 1.3


@dataclass(frozen=True, slots=True)
class AnswersSize:
    """Questions of each set, of both halves together; and the half that is asked."""

    counts: Mapping[str, int] = field(default_factory=lambda: {"xquad": 50, "tatqa": 25, "long": 8})
    apps: tuple[str, ...] = ("naive", "advanced", "search")
    half: Half = "reported"


QUICK = AnswersSize({"xquad": 16, "tatqa": 8, "long": 0}, ("naive",))


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: 15 minutes on two idle cores, two if `quick`, or half an hour if `whole`."""
    size = QUICK if options.quick else AnswersSize(WHOLE) if options.whole else AnswersSize()
    return measure(size, options)


def measure(size: AnswersSize, options: BenchmarkOptions) -> Report:
    """Ask as many questions as `size` says."""
    sets = read_sets(options.data, size.counts, size.half, options.seed)
    llm = DEFAULT_LLM if options.checkpoint is None else str(options.checkpoint)
    answers = {BASELINE: best_sentences(sets)}
    answers |= Asking(sets, llm, options.cells or _CELLS).answers(size.apps, options.say)
    rows = [row for name, given in answers.items() for row in _rows(name, sets.questions, given)]
    notes = (
        f"LLM: {Path(llm).name}; {len(sets.questions)} questions, the half of each set that is {size.half}",
        "an answer contains the known one as whole words, without case, punctuation and articles",
        "a first source is right if it is of the right document and contains the known answer",
    )
    goals = _goals(rows, size)
    return Report("answers", options.seed, asdict(size), tuple(rows), tuple(goals), notes)


def best_sentences(sets: QuestionSets) -> list[Answer]:
    """Return the baseline's answers."""
    indices = {key: BestSentence(documents) for key, documents in sets.documents.items()}
    found = [indices[one.collection].answer(one.question) for one in sets.questions]
    return [Answer(text, source, text) for source, text in found]


def _rows(name: str, questions: Sequence[Asked], answers: Sequence[Answer]) -> list[Row]:
    rows = []
    for of in ("all", *SETS):
        pairs = [
            (one, answer) for one, answer in zip(questions, answers, strict=True) if of in ("all", one.set)
        ]
        if not pairs:
            continue
        right = [contains(answer.text, one.known) for one, answer in pairs]
        f1 = [token_f1(answer.text, one.known) for one, answer in pairs]
        sourced = [
            answer.source == one.source and contains(answer.passage, one.known) for one, answer in pairs
        ]
        values = {
            "questions": len(pairs),
            "contains_percent": 100 * statistics.fmean(right),
            "f1_percent": 100 * statistics.fmean(f1),
            "first_source_percent": 100 * statistics.fmean(sourced),
            "said_not_found_percent": 100
            * statistics.fmean(answer.text.startswith(NOT_FOUND) for _, answer in pairs),
            "words_of_an_answer": statistics.fmean(len(answer.text.split()) for _, answer in pairs),
        }
        rows.append(Row(QUALITY, f"{name}, {of}", values))
    return rows


def _goals(rows: Sequence[Row], size: AnswersSize) -> list[Goal]:
    values = {row.name: row.values for row in rows}

    def value(name: str, column: str) -> float:
        found = values[f"{name}, all"][column]
        assert isinstance(found, int | float)
        return float(found)

    goals = []
    for app in size.apps:
        gained = value(app, "contains_percent") - value(BASELINE, "contains_percent")
        goals.append(Goal(f"{app}: points of contains-answer above the baseline", gained, 0.0, "higher"))
        ratio = value(app, "f1_percent") / max(1e-9, value(BASELINE, "f1_percent"))
        goals.append(Goal(f"{app}: F1 over the baseline's", ratio, _F1_GOAL, "higher"))
    if {"naive", "advanced"} <= set(size.apps):
        gained = value("advanced", "contains_percent") - value("naive", "contains_percent")
        goals.append(Goal("advanced: points of contains-answer above naive", gained, 0.0, "higher"))
    return goals
