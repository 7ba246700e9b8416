"""What a contestant is given to do, and what it gives back: plain data that travels as JSON.

Times are emulated seconds since the first query could arrive. A program multiplies real seconds by `speed` to
get emulated ones. This file needs the standard library alone, as contestants have environments of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document, which is embedded, found and read as a unit. `index` is its number there."""

    source: str
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class SourceText:
    """A document as it comes with a query, cut into passages already."""

    source: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """One query: its time of arrival, its question and its documents."""

    name: str
    at_s: float
    question: str
    documents: tuple[SourceText, ...]


@dataclass(frozen=True, slots=True)
class ServerUrls:
    """Addresses of the emulated servers that all contestants use."""

    llm: tuple[str, ...]
    embedding: str
    reranking: str


@dataclass(frozen=True, slots=True)
class Work:
    """What a contestant has to do: answer queries of one app on given servers.

    Attributes:
        model: name of the LLM in requests.
        max_sequences: sequences that an LLM server runs at once.
        prompts: texts of the app's prompts by name, with {variables}.
        settings: settings of the app by name, such as the number of hits.
        warm_up: queries to answer before the measurement, with other questions.
        options: the contestant's own settings.
    """

    app: str
    speed: float
    servers: ServerUrls
    model: str
    max_sequences: int
    prompts: Mapping[str, str]
    settings: Mapping[str, int]
    queries: tuple[Asked, ...]
    warm_up: tuple[Asked, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answered:
    """The end of one query.

    Attributes:
        end_s: time of the answer.
        answer: the text; None if the query failed.
        sources: passages that the answer is from, as (source, index).
        error: text of the error with which it failed.
    """

    name: str
    end_s: float
    answer: str | None
    sources: tuple[tuple[str, int], ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """What a contestant gives back: all answers, and the processor seconds that it used for them."""

    answered: tuple[Answered, ...]
    cpu_s: float


def write_work(work: Work, path: Path) -> None:
    """Write work as JSON."""
    path.write_text(json.dumps(asdict(work)), "utf-8")


def read_work(path: Path) -> Work:
    """Read work from JSON that `write_work` wrote."""
    found = json.loads(path.read_text("utf-8"))
    urls = found.pop("servers")
    servers = ServerUrls(tuple(urls["llm"]), urls["embedding"], urls["reranking"])
    queries = tuple(map(_asked, found.pop("queries")))
    return Work(**found | {"warm_up": tuple(map(_asked, found["warm_up"]))}, servers=servers, queries=queries)


def write_done(done: Done, path: Path) -> None:
    """Write results as JSON."""
    path.write_text(json.dumps(asdict(done)), "utf-8")


def read_done(found: Mapping[str, Any]) -> Done:
    """Read results from the JSON that `write_done` wrote."""
    answered = tuple(
        Answered(**one | {"sources": tuple((source, index) for source, index in one["sources"])})
        for one in found["answered"]
    )
    return Done(answered, found["cpu_s"])


def _asked(found: Mapping[str, Any]) -> Asked:
    documents = tuple(
        SourceText(one["source"], tuple(Passage(**passage) for passage in one["passages"]))
        for one in found["documents"]
    )
    return Asked(found["name"], found["at_s"], found["question"], documents)
