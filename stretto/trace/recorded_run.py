"""The content of a file with a recorded run: sizes and times, no texts.

JSON lines. The first says what it is and which engines there were; then come the graphs, each before the
first query that uses it, and the queries, as they ended. A line `not_repeated` stands where the first of
something begins that a replay leaves out, a key of `NOT_REPEATED`:

    {"schema": "stretto-run", "version": 1, "engines": [{"name": "llm", "kind": "llm", "instances": 2, …,
     "replicas": [{"profile": {…}, "num_slots": 8, "kv_tokens": null, "tp": 1}, …]}]}
    {"graph": "advanced_rag", "text": "graph advanced_rag(…", "is_optimised": false}
    {"query": "q1", "graph": 0, "arrival_s": 0.0, "latency_s": 1.9, "error": null,
     "passes": ["prune_order"], "spans": […], "tenant": "", "objective": "latency", "deadline_s": 5.0,
     "program": "", "inputs": {"question": {"chars": 31, "id": "9f3c…"}, "files": [[1200, 800]]}}
    {"not_repeated": "sessions"}

The seconds of a deadline count from the query's arrival. The size of a text is its characters, of a document
those of its sections. Equal ids are equal texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from stretto.graph.graph import Graph
from stretto.model.profile import Profile
from stretto.model.tasks import Objective
from stretto.schema.typed import Count, Number, Seconds, Text

SCHEMA = "stretto-run"
VERSION = 1
NOT_REPEATED = {
    "sessions": "sessions",
    "fleet": "instances that came or went",
    "policies": "policies that are gone, in whose place are the nearest ones,",
}
SETTINGS = (
    "policy",
    "placement",
    "age_limit_s",
    "fill_timeout_s",
    "max_batch",
    "max_running",
    "timeout_s",
    "keeps_state",
)
"""Fields of an `Engine` that a recorded run keeps."""
YesNo: TypeAlias = Literal["", "yes", "no"]
Age: TypeAlias = Annotated[float, Meta(ge=0)]
"""Seconds, which may be infinite."""


class RecordedReplica(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one replica that a replay needs: its costs, its room and its tensor parallelism."""

    profile: Profile
    num_slots: Number | None = None
    kv_tokens: Number | None = None
    tp: Number = 1


class RecordedEngine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An engine of a recorded run: the plain fields of its `Engine`, and its replicas.

    Attributes:
        instances: number of replicas.
        profile: costs of the first replica.
        replicas: the replicas; none in files of earlier versions, where all are like the first.
    """

    name: Text
    kind: Literal["batch", "llm", "llm_server"]
    instances: Number
    policy: Text
    age_limit_s: Age
    fill_timeout_s: Seconds
    max_batch: Number | None
    max_running: Number
    timeout_s: Annotated[float, Meta(gt=0)] | None
    keeps_state: bool
    profile: Profile
    placement: Text = "least_seconds"
    replicas: tuple[RecordedReplica, ...] = ()


class RecordedHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of a recorded run."""

    schema: str
    version: int
    engines: tuple[RecordedEngine, ...]


class RecordedSpan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The share of a recorded query in a batch, or one of its LLM requests.

    Times are seconds from the query's arrival.

    Attributes:
        num_units: units of the whole batch, or of the request's prompt, as the schedulers count them.
        num_chars: characters of the texts that the whole batch reads, or of the prompt.
        num_cached: units found in the instance's cache.
        num_output: tokens that a request has generated.
        ready_s: when it was handed to the instance.
        first_s: when the first piece of its output arrived; None if none did.
        sizes: characters of the results: of texts, of the items of lists, of each chunk.
        word: "yes" or "no" if its text begins with that, because the app may branch on it; else "".
    """

    engine: Text
    instance: Count
    step: Text
    op: Text
    num_items: Count
    num_units: Count
    num_chars: Count
    ready_s: Seconds
    start_s: Seconds
    end_s: Seconds
    num_cached: Count = 0
    num_output: Count = 0
    first_s: Seconds | None = None
    sizes: list[Any] = []
    word: YesNo = ""


class RecordedQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A recorded query: which graph it ran, when it arrived, and how it ended.

    Attributes:
        graph: position of its graph in the file.
        inputs: sizes of its inputs, by name.
        spans: shares of batches and LLM requests that ran for it.
    """

    query: Text
    graph: Count
    arrival_s: Seconds
    latency_s: Seconds
    error: str | None
    passes: tuple[Text, ...]
    inputs: dict[str, Any]
    spans: tuple[RecordedSpan, ...]
    tenant: Text = ""
    objective: Objective = "throughput"
    deadline_s: Age | None = None
    program: Text = ""


class RecordedText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The size of an input that is a text, and an id that equal texts share."""

    chars: Count
    id: Text


class GraphLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line with the name and the text of a graph."""

    graph: Text
    text: Text
    is_optimised: bool


class LeftOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line that says that something has happened which a replay leaves out."""

    not_repeated: Literal["sessions", "fleet", "policies"]


@dataclass(frozen=True, slots=True)
class RecordedGraph:
    """A recorded graph of an app's steps.

    `is_optimised` says that only the graph after the optimisation passes is known, not the one before.
    """

    graph: Graph
    is_optimised: bool


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The content of a file with a recorded run: its engines, its graphs, and its queries.

    Attributes:
        not_repeated: what happened in the run and not in a replay, keys of `NOT_REPEATED`.
    """

    engines: tuple[RecordedEngine, ...]
    graphs: tuple[RecordedGraph, ...]
    queries: tuple[RecordedQuery, ...]
    not_repeated: tuple[str, ...] = ()
