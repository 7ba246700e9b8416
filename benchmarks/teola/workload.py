"""Makes queries of the three apps with the sizes of real question sets; the same seed gives the same queries.

Texts are synthetic: engines in virtual time only need lengths, in characters. They come from `--data`, or
from `SAMPLE`, the medians of ten equal parts of the same sets.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from benchmarks.teola.costs import CHUNK_TOKENS
from stretto.apps import APPS, search_empowered
from stretto.apps.template import Template
from stretto.model.errors import DocumentError
from stretto.model.values import Document, Section

REPORT_EXCERPTS = 96
"""Number of TAT-QA's excerpts that make one report of about 60 pages; no set of whole reports was
available."""
_STRIDE = 16
PAUSE_S = 1000.0
"""Seconds between queries that come one at a time."""

_CHUNK_CHARS = 4 * CHUNK_TOKENS - 4


@dataclass(frozen=True, slots=True)
class DatasetSizes:
    """Lengths of questions, and of the document that comes with each (empty if none does), in characters."""

    questions: Sequence[int]
    documents: Sequence[int] = ()


SAMPLE: Mapping[str, DatasetSizes] = {
    "webquestions": DatasetSizes((25, 29, 31, 34, 36, 38, 40, 43, 46, 53)),
    "hotpotqa": DatasetSizes((50, 60, 69, 76, 83, 90, 99, 109, 125, 155)),
    "truthfulqa": DatasetSizes(
        (27, 35, 39, 44, 47, 53, 59, 67, 80, 130),
        (5620, 7773, 9850, 12952, 18414, 21364, 25109, 30415, 39620, 61942),
    ),
    "finqa": DatasetSizes(
        (36, 47, 54, 60, 65, 71, 78, 86, 97, 119),
        (157888, 159384, 164349, 164734, 166464, 169396, 172959, 174694, 189271, 192216),
    ),
}
"""Sizes by set. `finqa` has questions and tables with text of TAT-QA, in place of FinQABench. `truthfulqa`
does not include the pages of its questions; their sizes are those of 200 Python Enhancement Proposals."""

DATASETS: Mapping[str, tuple[str, str]] = {
    "search": ("webquestions", "hotpotqa"),
    "naive": ("truthfulqa", "finqa"),
    "advanced": ("truthfulqa", "finqa"),
}
"""Sets that each app is asked about (Teola §7)."""


def templates() -> dict[str, Template]:
    """The three apps, by name."""
    return {"search": search_empowered(), **{name: make() for name, make in APPS.items()}}


@dataclass(frozen=True, slots=True)
class QueryArrival:
    """A query: its app, its time of arrival, and its inputs."""

    name: str
    app: str
    at_s: float
    inputs: Mapping[str, object]


def sizes(data: Path | None) -> Mapping[str, DatasetSizes]:
    """Sizes of all sets.

    Raises:
        DocumentError: a set is not in `data`.
    """
    if data is None:
        return SAMPLE
    reports = [_table_chars(row) for row in _rows(data / "tatqa" / "documents.jsonl")]
    pages = [len(str(row["text"])) for row in _rows(data / "corpus_peps" / "peps_200.jsonl.gz")]
    return {
        "webquestions": DatasetSizes(_question_chars(data / "webquestions" / "test.jsonl")),
        "hotpotqa": DatasetSizes(_question_chars(data / "hotpotqa" / "dev_questions.jsonl.gz")),
        "truthfulqa": DatasetSizes(_question_chars(data / "truthfulqa" / "truthfulqa.jsonl"), pages),
        "finqa": DatasetSizes(_question_chars(data / "tatqa" / "questions.jsonl"), list(_reports(reports))),
    }


def queries(
    app: str,
    known: Mapping[str, DatasetSizes],
    count: int,
    per_s: float,
    seed: int,
    *,
    dataset: str | None = None,
) -> list[QueryArrival]:
    """Make queries with Poisson arrivals, the first at 0, about the app's sets in turn or about `dataset`
    alone.

    At a rate of 0, a query arrives long after the end of the one before.
    """
    generator = random.Random(f"{app}/{dataset}/{seed}")
    arrivals = random.Random(f"arrivals/{app}/{seed}")
    names = (dataset,) if dataset else DATASETS[app]
    asked = []
    at_s = 0.0
    for number in range(count):
        chosen = known[names[number % len(names)]]
        name = f"{app}{seed}.{number}"
        question = _text(name, generator.choice(chosen.questions)) + "?"
        inputs: dict[str, object] = {"question": question}
        if chosen.documents:
            inputs["files"] = [_document(name, generator.choice(chosen.documents))]
        asked.append(QueryArrival(name, app, at_s, inputs))
        at_s += arrivals.expovariate(per_s) if per_s else PAUSE_S
    return asked


def _document(name: str, chars: int) -> Document:
    """Make a document with one section for each chunk."""
    lengths = [_CHUNK_CHARS] * (chars // _CHUNK_CHARS) + [max(4, chars % _CHUNK_CHARS)]
    sections = tuple(Section(_text(f"{name} chunk {i}", length)) for i, length in enumerate(lengths))
    return Document(f"{name}.txt", sections, name)


def _text(name: str, chars: int) -> str:
    """Make a text whose first word is different for every name."""
    first = blake2b(name.encode(), digest_size=6).hexdigest()
    return (first + " xxxxxxxxxxx" * (chars // 12 + 1))[: max(chars - 1, len(first))] + "x"


def _reports(excerpts: Sequence[int]) -> Iterator[int]:
    """Yield the sizes of whole reports, which overlap, from the sizes of excerpts in their order."""
    for start in range(0, len(excerpts) - REPORT_EXCERPTS + 1, _STRIDE):
        yield sum(excerpts[start : start + REPORT_EXCERPTS])


def _question_chars(path: Path) -> list[int]:
    return [len(str(row["question"])) for row in _rows(path)]


def _table_chars(row: Mapping[str, object]) -> int:
    paragraphs, table = row["paragraphs"], row["table"]
    assert isinstance(paragraphs, list)
    assert isinstance(table, list)
    return sum(map(len, paragraphs)) + sum(len(" | ".join(map(str, line))) for line in table)


def _rows(path: Path) -> list[dict[str, object]]:
    try:
        content = path.read_bytes()
        text = gzip.decompress(content) if path.suffix == ".gz" else content
        return [json.loads(line) for line in text.splitlines()]
    except (OSError, ValueError) as error:
        raise DocumentError(f"{path}: {error}") from error
