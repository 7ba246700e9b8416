"""The reader of files with a recorded run. It checks everything, so that a replay need not."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from stretto.apps.vocabulary import DEFAULT
from stretto.cluster.placements.table import GONE_PLACEMENTS
from stretto.graph.text import parse_graph
from stretto.model.errors import ConfigError, GraphError, UserError
from stretto.model.profile import Profile
from stretto.model.tasks import Objective
from stretto.sched.orders import GONE_ORDERS
from stretto.sched.vocabulary import Vocabulary
from stretto.trace.row_checks import (
    COUNT,
    FLAG,
    NUMBER,
    OBJECT,
    SECONDS,
    SIZES,
    TEXT,
    FieldKind,
    check_row,
    list_of,
    one_of,
    or_null,
    shortened,
)
from stretto.trace.run_file import (
    NOT_REPEATED,
    SCHEMA,
    VERSION,
    RecordedGraph,
    RecordedQuery,
    RecordedReplica,
    RecordedRun,
    RecordedSpan,
    total_size,
)

_MAX_CHARS = 2 * 10**9  # of all texts of a run, which a replay makes anew
_SLACK_S = 1e-6
_MESSAGE = FieldKind("a text", lambda value: isinstance(value, str))  # may name files that are no Unicode
_AGE = FieldKind("a time from 0 on", lambda value: value == math.inf or SECONDS.holds(value))
_TIMEOUT = FieldKind("a time above 0 s", lambda value: SECONDS.holds(value) and value > 0)
_ROWS = list_of(OBJECT)

_ENGINE = {
    "name": TEXT,
    "kind": one_of(("batch", "llm", "llm_server")),
    "instances": NUMBER,
    "policy": TEXT,
    "age_limit_s": _AGE,
    "fill_timeout_s": SECONDS,
    "max_batch": or_null(NUMBER),
    "max_running": NUMBER,
    "timeout_s": or_null(_TIMEOUT),
    "keeps_state": FLAG,
    "profile": OBJECT,
}
_REPLICA = {
    "profile": OBJECT,
    "num_slots": or_null(NUMBER),
    "kv_tokens": or_null(NUMBER),
    "tp": NUMBER,
}
_PROFILE = {
    "base_s": SECONDS,
    "per_unit_s": SECONDS,
    "max_efficient_batch": NUMBER,
    "per_output_s": SECONDS,
    "per_neighbour_s": SECONDS,
    "per_token_s": SECONDS,
    "unit_tokens": SECONDS,
    "host_token_s": SECONDS,
    "disk_token_s": SECONDS,
    "reads_shared_once": FLAG,
}
# Files of earlier versions lack these. Their engines have equal replicas, made of `instances` and `profile`.
_PROFILE_DEFAULTS = {
    **dict.fromkeys(("per_neighbour_s", "per_token_s", "unit_tokens", "host_token_s", "disk_token_s"), 0.0),
    "reads_shared_once": False,
}
_PLACEMENT = "least_seconds"
_GONE = {"policy": GONE_ORDERS, "placement": GONE_PLACEMENTS}
_QUERY_DEFAULTS = {"tenant": "", "objective": "throughput", "deadline_s": None, "program": ""}
_GRAPH = {"graph": TEXT, "text": TEXT, "is_optimised": FLAG}
_QUERY = {
    "query": TEXT,
    "graph": COUNT,
    "arrival_s": SECONDS,
    "latency_s": SECONDS,
    "error": or_null(_MESSAGE),
    "passes": list_of(TEXT),
    "inputs": OBJECT,
    "spans": _ROWS,
    "tenant": TEXT,
    "objective": one_of(get_args(Objective)),
    "deadline_s": or_null(_AGE),
    "program": TEXT,
}
_SPAN = {
    "engine": TEXT,
    "instance": COUNT,
    "step": TEXT,
    "op": TEXT,
    "num_items": COUNT,
    "num_units": COUNT,
    "num_chars": COUNT,
    "ready_s": SECONDS,
    "start_s": SECONDS,
    "end_s": SECONDS,
    "num_cached": COUNT,
    "num_output": COUNT,
    "first_s": or_null(SECONDS),
    "sizes": list_of(SIZES),
    "word": one_of(("", "yes", "no")),
}
_TEXT_INPUT = {"chars": COUNT, "id": TEXT}


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
        raise UserError(f"{path}: cannot be read ({error})") from error
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
        self._ops = vocabulary.ops
        self._known = {"policy": vocabulary.policies, "placement": vocabulary.placements}
        self._engine_row = {
            **_ENGINE,
            **{key: one_of(names) for key, names in self._known.items()},
        }
        self._query_row = {**_QUERY, "passes": list_of(one_of(vocabulary.passes))}
        self.engines: dict[str, Mapping[str, Any]] = {}
        self.graphs: list[RecordedGraph] = []
        self.queries: dict[str, RecordedQuery] = {}
        self.not_repeated: list[str] = []
        self._num_chars = 0

    def read(self, row: Any) -> None:
        """The row of a line."""
        if not self.engines:
            self._head(row)
        elif isinstance(row, dict) and "text" in row:
            self._graph(row)
        elif isinstance(row, dict) and "not_repeated" in row:
            check_row(row, {"not_repeated": one_of(NOT_REPEATED)})
            self.not_repeated.append(row["not_repeated"])
        else:
            self._query(row)

    def _head(self, row: Any) -> None:
        if not isinstance(row, dict) or row.get("schema") != SCHEMA or row.get("version") != VERSION:
            raise UserError(f"expected a {SCHEMA} of version {VERSION}")
        check_row(row, {"schema": TEXT, "version": COUNT, "engines": _ROWS})
        for found in row["engines"]:
            fields = {"placement": _PLACEMENT, **found}
            for key, gone in _GONE.items():
                name = fields.get(key)
                if isinstance(name, str) and name in gone and name not in self._known[key]:
                    fields[key] = gone[name]
                    self.not_repeated = ["policies"]
            listed = fields.pop("replicas", None)
            check_row(fields, self._engine_row)
            name, profile = fields["name"], _profile(fields["profile"])
            if name in self.engines:
                raise ConfigError(f"two engines are called {name!r}")
            if listed is None:
                replicas = (RecordedReplica(profile),) * fields["instances"]
            else:
                replicas = _replicas(listed, name, fields["instances"])
            self.engines[name] = {**fields, "profile": profile, "replicas": replicas}

    def _graph(self, row: Any) -> None:
        check_row(row, _GRAPH)
        graph = parse_graph(row["text"], self._ops)
        for primitive in graph.primitives:
            self._check_engine(primitive.engine)
        self.graphs.append(RecordedGraph(graph, row["is_optimised"]))

    def _query(self, row: Any) -> None:
        row = {**_QUERY_DEFAULTS, **row} if isinstance(row, dict) else row
        check_row(row, self._query_row)
        name = row["query"]
        if row["graph"] >= len(self.graphs):
            raise UserError(f"query {name!r} uses graph {row['graph']}, which is not in the file")
        if name in self.queries:
            raise UserError(f"query {name!r} is in the file twice")
        for port, size in row["inputs"].items():
            _check_input(port, size)
        spans = tuple(self._span(span, row["latency_s"]) for span in row["spans"])
        self._num_chars += sum(map(total_size, row["inputs"].values()))
        self._num_chars += sum(total_size(span.sizes) for span in spans)
        if self._num_chars > _MAX_CHARS:
            raise UserError(f"the texts up to query {name!r} have more than {_MAX_CHARS} characters")
        fields = {**row, "passes": tuple(row["passes"]), "spans": spans}
        self.queries[name] = RecordedQuery(**fields)

    def _span(self, row: Any, latency_s: float) -> RecordedSpan:
        check_row(row, _SPAN)
        self._check_engine(row["engine"])
        span = RecordedSpan(**row)
        step, first_s = span.step, span.start_s if span.first_s is None else span.first_s
        if not span.ready_s <= span.start_s <= first_s <= span.end_s <= latency_s + _SLACK_S:
            raise UserError(
                f"step {step!r} contradicts itself: ready at {span.ready_s:g} s, "
                f"begun at {span.start_s:g} s, ended at {span.end_s:g} s, and the query at {latency_s:g} s"
            )
        if span.op in ("prefill", "decode") and not all(map(COUNT.holds, span.sizes)):
            raise UserError(f"step {step!r}: an answer's sizes are a list of numbers")
        return span

    def _check_engine(self, name: str | None) -> None:
        if name is not None and name not in self.engines:
            raise UserError(f"there is no engine {name!r} in the file")


def _replicas(listed: Any, engine: str, instances: int) -> tuple[RecordedReplica, ...]:
    if not _ROWS.holds(listed) or len(listed) != instances:
        raise UserError(f"replicas of engine {engine!r} must be a list of {instances} objects")
    for replica in listed:
        check_row(replica, _REPLICA)
    return tuple(RecordedReplica(**{**row, "profile": _profile(row["profile"])}) for row in listed)


def _profile(row: Mapping[str, Any]) -> Profile:
    profile = {**_PROFILE_DEFAULTS, **row}
    check_row(profile, _PROFILE)
    return Profile(**profile)


def _check_input(port: str, size: Any) -> None:
    if isinstance(size, dict):
        check_row(size, _TEXT_INPUT)
    elif not SIZES.holds(size):
        raise UserError(f"input {shortened(port)} is {shortened(size)}, not {SIZES.what}")
