"""The reader of files with a recorded run. It checks everything, so that a replay need not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from stretto.apps.vocabulary import DEFAULT
from stretto.cluster.placements.table import GONE_PLACEMENTS
from stretto.graph.text import parse_graph
from stretto.model.errors import ConfigError, GraphError, UserError
from stretto.model.nearest_name import check_name
from stretto.model.wording import why_unreadable
from stretto.sched.orders import GONE_ORDERS
from stretto.sched.vocabulary import Vocabulary
from stretto.schema.typed import Count, read_as, shortened
from stretto.trace.recorded_run import (
    SCHEMA,
    VERSION,
    GraphLine,
    LeftOut,
    RecordedEngine,
    RecordedGraph,
    RecordedHead,
    RecordedQuery,
    RecordedReplica,
    RecordedRun,
    RecordedSpan,
    RecordedText,
)
from stretto.trace.recorded_sizes import total_size

_MAX_CHARS = 2 * 10**9  # of all texts of a run, which a replay makes anew
_SLACK_S = 1e-6
_GONE = {"policy": GONE_ORDERS, "placement": GONE_PLACEMENTS}


def read_run(path: Path, vocabulary: Vocabulary = DEFAULT) -> RecordedRun:
    """Read the recording of a run (its graphs, queries and what engines answered, with times), as `stretto
    ask --record` writes it, and check all of it.

    Args:
        vocabulary: names of ops, of passes (rewrites of graphs) and of policies that the runtime knew which
            made the recording.

    Raises:
        UserError: the file cannot be read, or is no recorded run; the message names file, line and reason.
    """
    reader = _Reader(vocabulary)
    number = 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):  # noqa: B007  (errors name it)
                if line.strip():
                    reader.read(json.loads(line))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {why_unreadable(error)}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}, line {number}: {type(error).__name__}: {error}") from error
    except (UserError, GraphError) as error:
        raise UserError(f"{path}, line {number}: {error.message}") from error
    if not reader.engines:
        raise UserError(f"{path}, line 1: the engines are missing; the file is empty or was cut off")
    if not reader.queries:
        raise UserError(f"{path}: no query has ended in this run")
    queries = sorted(reader.queries.values(), key=lambda query: query.arrival_s)
    engines, graphs = tuple(reader.engines.values()), tuple(reader.graphs)
    return RecordedRun(engines, graphs, tuple(queries), tuple(reader.not_repeated))


class _Reader:
    """The contents of a file, as far as it was read. Raises UserError and GraphError, without the line."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._known = {"policy": vocabulary.policies, "placement": vocabulary.placements}
        self.engines: dict[str, RecordedEngine] = {}
        self.graphs: list[RecordedGraph] = []
        self.queries: dict[str, RecordedQuery] = {}
        self.not_repeated: list[str] = []
        self._num_chars = 0

    def read(self, row: Any) -> None:
        """The row of a line."""
        if not self.engines:
            self._head(row)
        elif isinstance(row, dict) and "text" in row:
            line = read_as(GraphLine, row)
            graph = parse_graph(line.text, self._vocabulary.ops)
            for primitive in graph.primitives:
                self._check_engine(primitive.engine)
            self.graphs.append(RecordedGraph(graph, line.is_optimised))
        elif isinstance(row, dict) and "not_repeated" in row:
            self.not_repeated.append(read_as(LeftOut, row).not_repeated)
        else:
            self._query(read_as(RecordedQuery, row))

    def _head(self, row: Any) -> None:
        if not isinstance(row, dict) or row.get("schema") != SCHEMA or row.get("version") != VERSION:
            raise UserError(f"expected a {SCHEMA} of version {VERSION}")
        for engine in read_as(RecordedHead, row).engines:
            for key, known in self._known.items():
                name = getattr(engine, key)
                if name in _GONE[key] and name not in known:
                    engine = msgspec.structs.replace(engine, **{key: _GONE[key][name]})
                    self.not_repeated = ["policies"]
                check_name(key, getattr(engine, key), known)
            if engine.name in self.engines:
                raise ConfigError(f"two engines are called {engine.name!r}")
            if not engine.replicas:
                alike = (RecordedReplica(engine.profile),) * engine.instances
                engine = msgspec.structs.replace(engine, replicas=alike)
            if len(engine.replicas) != engine.instances:
                raise UserError(f"engine {engine.name!r} must have a list of {engine.instances} replicas")
            self.engines[engine.name] = engine

    def _query(self, query: RecordedQuery) -> None:
        name = query.query
        for one in query.passes:
            check_name("pass", one, self._vocabulary.passes)
        if query.graph >= len(self.graphs):
            raise UserError(f"query {name!r} uses graph {query.graph}, which is not in the file")
        if name in self.queries:
            raise UserError(f"query {name!r} is in the file twice")
        for port, size in query.inputs.items():
            _check_size(size, f"input {shortened(port)}")
        for span in query.spans:
            self._check_span(span, query.latency_s)
        self._num_chars += sum(map(total_size, query.inputs.values()))
        self._num_chars += sum(total_size(span.sizes) for span in query.spans)
        if self._num_chars > _MAX_CHARS:
            raise UserError(f"the texts up to query {name!r} have more than {_MAX_CHARS} characters")
        self.queries[name] = query

    def _check_span(self, span: RecordedSpan, latency_s: float) -> None:
        self._check_engine(span.engine)
        step, first_s = span.step, span.start_s if span.first_s is None else span.first_s
        if not span.ready_s <= span.start_s <= first_s <= span.end_s <= latency_s + _SLACK_S:
            raise UserError(
                f"step {step!r} contradicts itself: ready at {span.ready_s:g} s, "
                f"begun at {span.start_s:g} s, ended at {span.end_s:g} s, and the query at {latency_s:g} s"
            )
        for size in span.sizes:
            if isinstance(size, list) and span.op in ("prefill", "decode"):
                raise UserError(f"step {step!r}: an answer's sizes are a list of numbers")
            _check_size(size, f"step {step!r}: a size")

    def _check_engine(self, name: str | None) -> None:
        if name is not None and name not in self.engines:
            raise UserError(f"there is no engine {name!r} in the file")


def _check_size(size: Any, what: str) -> None:
    """Check the size of a value: a number, a list of sizes, or the size of a text."""
    if isinstance(size, list):
        for one in size:
            _check_size(one, what)
    elif isinstance(size, Mapping):
        read_as(RecordedText, size, what)
    else:
        read_as(Count, size, what)
