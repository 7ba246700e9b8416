"""How fast are documents embedded, next to sentence-transformers and onnxruntime, and is as much found?"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.indexing.contestants import (
    CONTESTANTS,
    DEFAULT,
    FLOAT32,
    ONNX,
    PLAIN,
    Contestant,
    Running,
    Vectors,
    start,
)
from benchmarks.indexing.corpus import Answered, answered_questions, chunks_of
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value
from stretto.engines.processor import has_bfloat16
from stretto.trace.summary import quantile

SPEED = "chunks embedded per second"
RECALL = "share of questions whose paragraph is found (%)"
_TOPS = (1, 5, 10)


@dataclass(frozen=True, slots=True)
class IndexingSize:
    """Numbers of measurements.

    Attributes:
        chunks: chunks of 256 tokens that are embedded in a round.
        rounds: rounds, in which contestants take turns.
        questions: questions that are searched for.
    """

    chunks: int = 96
    rounds: int = 7
    questions: int = 1190


QUICK = IndexingSize(chunks=24, rounds=3, questions=120)


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: some minutes, or two minutes if `quick`."""
    return measure(QUICK if options.quick else IndexingSize(), options)


def measure(
    size: IndexingSize, options: BenchmarkOptions, contestants: Sequence[Contestant] = CONTESTANTS
) -> Report:
    """Measure every contestant that is installed as often as `size` says."""
    origin, chunks = chunks_of(options.data, size.chunks)
    asked = answered_questions(options.data, size.questions)
    notes = [
        f"chunks of {origin}; contestants take turns in random order, each in a process of its own",
        "memory: largest of the process, libraries and model included",
    ]
    rows: list[Row] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running: list[Running] = []
        for contestant in contestants:
            options.say(f"loading {contestant.name}")
            try:
                one = start(contestant, folder)
            except ImportError as error:
                notes.append(f"left out: {contestant.name} ({error}; pip install 'stretto[bench]')")
                continue
            stack.callback(one.close)
            running.append(one)
            one.embed(chunks[:4], is_timed=False)
        order = random.Random(options.seed)
        for number in range(size.rounds):
            options.say(f"round {number + 1} of {size.rounds}")
            for one in order.sample(running, len(running)):
                one.embed(chunks, is_timed=True)
        rows += [_speed_row(one, len(chunks)) for one in running]
        if asked is None:
            notes.append("recall needs the questions of XQuAD: name a folder with --data")
        else:
            for one in running:
                options.say(f"recall of {one.contestant.name}")
                rows.append(_recall_row(one, asked))
    config = {**asdict(size), "quick": options.quick, "bfloat16": has_bfloat16()}
    return Report("indexing", options.seed, config, tuple(rows), _goals(rows), tuple(notes))


def _speed_row(one: Running, num_chunks: int) -> Row:
    rates = sorted(num_chunks / seconds for seconds in one.seconds)
    values: dict[str, Value] = {
        "median": quantile(rates, 0.5),
        "p10": quantile(rates, 0.1),
        "p90": quantile(rates, 0.9),
        "per_cpu_s": num_chunks / quantile(sorted(one.cpu_seconds), 0.5),
        "memory_mib": round(one.peak_mib),
    }
    return Row(SPEED, one.contestant.name, values, note=one.contestant.note)


def _recall_row(one: Running, asked: Answered) -> Row:
    found = recall(
        one.embed(asked.questions, is_timed=False), one.embed(asked.paragraphs, is_timed=False), asked.gold
    )
    values: dict[str, Value] = {f"first_{top}": 100 * share for top, share in found.items()}
    return Row(RECALL, one.contestant.name, values)


def recall(questions: Vectors, paragraphs: Vectors, gold: Sequence[int]) -> dict[int, float]:
    """Return, by number of hits, the share of questions whose own paragraph is among the best so many.

    `questions` has the shape (questions, dimensions), `paragraphs` (paragraphs, dimensions).
    """
    scores = questions @ paragraphs.T
    own = scores[np.arange(len(gold)), list(gold)]
    place = (scores > own[:, None]).sum(axis=1)
    return {top: float((place < top).mean()) for top in _TOPS}


def _goals(rows: Sequence[Row]) -> tuple[Goal, ...]:
    def value(table: str, name: str, column: str) -> float | None:
        found = [row.values[column] for row in rows if row.table == table and row.name == name]
        return float(found[0]) if found and isinstance(found[0], int | float) else None

    goals = []
    default = value(SPEED, DEFAULT, "median")
    assert default is not None
    if has_bfloat16():
        goals.append(Goal("chunks/s", default, 65, "higher"))
    for peer in (PLAIN, ONNX):
        if (theirs := value(SPEED, peer, "median")) is not None:
            goals.append(Goal(f"speed over that of {peer}", default / theirs, 1.0, "higher"))
    for top in _TOPS:
        column = f"first_{top}"
        ours, exact = value(RECALL, DEFAULT, column), value(RECALL, FLOAT32, column)
        if ours is not None and exact is not None:
            name = f"points that the first {top} differ from float32's"
            goals.append(Goal(name, abs(ours - exact), 0.3, "lower"))
    return tuple(goals)
