"""A run as a file that can be run again in simulation: sizes and times, no texts.

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

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from stretto.cluster.messages import StartInstance, StopInstance
from stretto.costs.tokens import num_tokens
from stretto.graph.graph import Graph
from stretto.graph.passes.weigh import WEIGHED
from stretto.graph.text import print_graph
from stretto.model.deployment import Deployment
from stretto.model.errors import StrettoError, UserError
from stretto.model.private_file import private
from stretto.model.profile import Profile
from stretto.model.references import Reference
from stretto.model.tasks import Done, Failed, LLMTask, Objective, Piece, Started, Task
from stretto.model.values import Chunk, Document, Hit
from stretto.sched.messages import (
    Action,
    Admit,
    BatchDone,
    BatchFailed,
    CancelTask,
    Drain,
    Event,
    InstanceLost,
    InstanceStopped,
    LLMReport,
    Open,
    Reply,
    StartBatch,
    Submit,
    Suspended,
)
from stretto.sched.observer import Observer

_log = logging.getLogger(__name__)
SCHEMA = "stretto-run"
VERSION = 1
NOT_REPEATED = {
    "sessions": "sessions",
    "fleet": "instances that came or went",
    "policies": "policies that are gone, in whose place are the nearest ones,",
}
_SETTINGS = (
    "policy",
    "placement",
    "age_limit_s",
    "fill_timeout_s",
    "max_batch",
    "max_running",
    "timeout_s",
    "keeps_state",
)


@dataclass(frozen=True, slots=True)
class RecordedSpan:
    """The share of a recorded query (run of an app) in a batch, or one of its LLM requests.

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

    engine: str
    instance: int
    step: str
    op: str
    num_items: int
    num_units: int
    num_chars: int
    ready_s: float
    start_s: float
    end_s: float
    num_cached: int = 0
    num_output: int = 0
    first_s: float | None = None
    sizes: Sequence[Any] = ()
    word: str = ""


@dataclass(frozen=True, slots=True)
class RecordedQuery:
    """A recorded query (one run of an app): which graph it ran, when it arrived, and how it ended.

    Attributes:
        graph: position of its graph in the file.
        inputs: sizes of its inputs, by name.
        spans: shares of batches and LLM requests that ran for it.
    """

    query: str
    graph: int
    arrival_s: float
    latency_s: float
    error: str | None
    passes: tuple[str, ...]
    inputs: Mapping[str, Any]
    spans: tuple[RecordedSpan, ...]
    tenant: str = ""
    objective: Objective = "throughput"
    deadline_s: float | None = None
    program: str = ""


@dataclass(frozen=True, slots=True)
class RecordedGraph:
    """A recorded graph of an app's steps.

    `is_optimised` says that only the graph after the optimisation passes is known, not the one before.
    """

    graph: Graph
    is_optimised: bool


@dataclass(frozen=True, slots=True)
class RecordedReplica:
    """The settings of one replica (running copy of an engine) that are kept in the recording of a run, so
    that the run can be simulated again: its costs, its room and
    its tensor parallelism.
    """

    profile: Profile
    num_slots: int | None = None
    kv_tokens: int | None = None
    tp: int = 1


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The content of a file with a recorded run: its engines, its graphs, and its queries (runs of apps).

    Attributes:
        engines: the plain fields of each `Engine`, the `Profile` of its first replica, and its replicas as
            `RecordedReplica`s.
        not_repeated: what happened in the run and not in a replay, keys of `NOT_REPEATED`.
    """

    engines: tuple[Mapping[str, Any], ...]
    graphs: tuple[RecordedGraph, ...]
    queries: tuple[RecordedQuery, ...]
    not_repeated: tuple[str, ...] = ()


@dataclass(slots=True)
class _Open:
    """A batch or a request that is running."""

    tasks: Sequence[Task | LLMTask]
    num_units: int
    ready_s: float
    start_s: float
    first_s: float | None = None


@dataclass(slots=True)
class _Query:
    submit: Submit
    arrival_s: float
    spans: list[RecordedSpan] = field(default_factory=list)


class RunRecorder(Observer):
    """An observer that writes a run to a file for `stretto replay`, each query (run of an app) when it ends.

    A full disk ends the recording with a warning, and nothing else; `is_whole` is False from then on.

    Args:
        before_passes: graphs as they were before any optimisation pass, so that a replay can choose others.

    Raises:
        UserError: the file cannot be written.
    """

    def __init__(
        self,
        path: Path,
        deployments: Sequence[Deployment],
        *,
        before_passes: Sequence[Graph] = (),
    ) -> None:
        self._before_passes = {graph.name: graph for graph in before_passes}
        self._graph_ids: dict[str, int] = {}
        self._open_queries: dict[str, _Query] = {}
        self._open: dict[tuple[str, int, int], _Open] = {}
        self._zero_s: float | None = None
        self._num_declared = {deployment.name: len(deployment.replicas) for deployment in deployments}
        self._not_repeated: set[str] = set()
        self._path = path
        self.is_whole = True
        try:
            self._file = open(path, "w", encoding="utf-8", opener=private)  # noqa: SIM115
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from error
        described = [_described(deployment) for deployment in deployments]
        self._write({"schema": SCHEMA, "version": VERSION, "engines": described})

    def close(self) -> None:
        """Close the file into which the run is recorded."""
        try:
            self._file.close()
        except OSError as error:
            self._lose(error)

    def on_event(self, event: Event, now_s: float) -> None:
        """Record what a message to the schedulers says has happened, such as the end of a batch."""
        match event:
            case Submit(query):
                if self._zero_s is None:
                    self._zero_s = now_s
                self._open_queries[query] = _Query(event, now_s)
            case BatchDone(engine, instance, batch, results):
                if (ran := self._open.pop((engine, instance, batch), None)) is not None:
                    for task, result in zip(ran.tasks, results, strict=False):
                        if isinstance(task, Task):
                            num_items = 1 if task.num_items is None else task.num_items
                            sizes = _result_sizes(task, result)
                            self._span((engine, instance), ran, task, now_s, task.op, num_items, sizes)
            case LLMReport(engine, instance, told):
                request = self._open.get((engine, instance, told.task))
                if request is not None:
                    self._on_told((engine, instance), request, told, now_s)
            case BatchFailed(engine, instance, batch):
                self._open.pop((engine, instance, batch), None)
            case Suspended(engine, instance, task_id):
                self._open.pop((engine, instance, task_id), None)
            case InstanceLost(engine, instance) | InstanceStopped(engine, instance):
                self._forget(engine, instance)
                self._leave_out("fleet")
            case Drain():
                self._leave_out("fleet")
            case Open():
                self._leave_out("sessions")

    def on_action(self, action: Action, now_s: float) -> None:
        """Record what the schedulers have decided; if a query has ended, write it to the file."""
        match action:
            case StartBatch(engine, instance, batch, tasks, num_units):
                self._open[engine, instance, batch] = _Open(tasks, num_units, now_s, now_s)
            case Admit(engine, instance, task):
                self._open[engine, instance, task.id] = _Open((task,), 0, now_s, now_s)
            case CancelTask(engine, instance, task_id):
                self._open.pop((engine, instance, task_id), None)
            case StartInstance(engine, instance) if instance >= self._num_declared.get(engine, 0):
                self._leave_out("fleet")  # declared replicas have the first numbers
            case StopInstance(engine, instance, "kill"):
                self._forget(engine, instance)
            case Reply(query, _, error):
                self._ended(query, error, now_s)

    def _on_told(self, key: tuple[str, int], request: _Open, told: object, now_s: float) -> None:
        task = request.tasks[0]
        match told:
            case Started():
                request.start_s = now_s
            case Piece():
                request.first_s = now_s if request.first_s is None else request.first_s
            case Done(task_id, value, usage):
                del self._open[(*key, task_id)]
                assert isinstance(task, LLMTask)
                op = "prefill" if value is None else "decode"
                request.num_units = sum(num_tokens(segment.text) for segment in task.prompt)
                cached_share = usage.num_cached_tokens / max(1, usage.num_prompt_tokens)
                num_output = usage.num_output_tokens or (num_tokens(str(value)) if op == "decode" else 0)
                tokens = round(cached_share * request.num_units), num_output
                self._span(key, request, task, now_s, op, 1, _sizes(value), tokens, _word(value))

            case Failed(task_id):
                del self._open[(*key, task_id)]

    def _forget(self, engine: str, instance: int) -> None:
        """Forget what was running on an instance that has ended: it stands in no file."""
        for key in [key for key in self._open if key[:2] == (engine, instance)]:
            del self._open[key]

    def _span(
        self,
        key: tuple[str, int],
        ran: _Open,
        task: Task | LLMTask,
        now_s: float,
        op: str,
        num_items: int,
        sizes: Sequence[Any],
        tokens: tuple[int, int] = (0, 0),
        word: str = "",
    ) -> None:
        query = self._open_queries.get(task.query)
        if query is None:
            return
        zero_s = query.arrival_s
        first_s = None if ran.first_s is None else ran.first_s - zero_s
        query.spans.append(
            RecordedSpan(
                *key,
                task.step,
                op,
                num_items,
                ran.num_units,
                num_chars(ran.tasks),
                ran.ready_s - zero_s,
                ran.start_s - zero_s,
                now_s - zero_s,
                *tokens,
                first_s,
                sizes,
                word,
            )
        )

    def _ended(self, name: str, error: StrettoError | None, now_s: float) -> None:
        query = self._open_queries.pop(name, None)
        if query is None or self._zero_s is None:
            return
        submit = query.submit
        deadline_s = None if submit.deadline_s is None else max(0.0, submit.deadline_s - query.arrival_s)
        self._write(
            {
                "query": name,
                "graph": self._graph_id(submit),
                "arrival_s": query.arrival_s - self._zero_s,
                "latency_s": now_s - query.arrival_s,
                "error": None if error is None else f"{type(error).__name__}: {error}",
                "passes": list(submit.egraph.passes if submit.passes == WEIGHED else submit.passes),
                "inputs": {port: _input(value) for port, value in submit.inputs.items()},
                "spans": [asdict(span) for span in query.spans],
                "tenant": submit.tenant,
                "objective": submit.objective,
                "deadline_s": deadline_s,
                "program": submit.program,
            }
        )

    def _leave_out(self, kind: str) -> None:
        """Note that something happens which a replay does not repeat."""
        if kind not in self._not_repeated:
            self._not_repeated.add(kind)
            self._write({"not_repeated": kind})

    def _graph_id(self, submit: Submit) -> int:
        graph = submit.egraph.graph
        known = self._before_passes.get(graph.name)
        text = print_graph(known or graph, submit.egraph.ops)
        if text not in self._graph_ids:
            self._graph_ids[text] = len(self._graph_ids)
            self._write({"graph": graph.name, "text": text, "is_optimised": known is None})
        return self._graph_ids[text]

    def _write(self, line: Mapping[str, Any]) -> None:
        if not self.is_whole:
            return
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        """Say once that the recording ends here."""
        if self.is_whole:
            self.is_whole = False
            _log.warning("the recording %s is not whole: %s", self._path, error.strerror)


def num_chars(tasks: Sequence[Task | LLMTask]) -> int:
    """Return the number of characters of all texts that these tasks read: prompts of LLM tasks, or inputs of
    batch tasks.
    """
    return sum(
        sum(len(segment.text) for segment in task.prompt)
        if isinstance(task, LLMTask)
        else sum(total_size(_size(value)) for value in task.inputs.values())
        for task in tasks
    )


def total_size(size: Any) -> int:
    """Return the total number of characters of a value in a recorded run, whose size may be a nested list."""
    if isinstance(size, dict):
        return int(size["chars"])
    return sum(map(total_size, size)) if isinstance(size, list) else int(size)


def _size(value: object) -> Any:
    """Characters of texts; of lists, of each item. Anything else counts 0."""
    match value:
        case Reference():
            return _size(value.load())
        case str():
            return len(value)
        case Document(sections=sections):
            return [len(section.text) for section in sections]
        case Chunk(text=text) | Hit(chunk=Chunk(text=text)):
            return len(text)
        case list() | tuple():
            return [_size(item) for item in value]
    return 0  # numbers, vectors, effects


def _input(value: object) -> Any:
    if isinstance(value, str):
        digest = blake2b(value.encode("utf-8", "replace"), digest_size=8).hexdigest()
        return {"chars": len(value), "id": digest}
    return _size(value)


def _sizes(value: object) -> list[Any]:
    return [_size(item) for item in value] if isinstance(value, list | tuple) else [_size(value)]


def _word(value: object) -> str:
    words = value.lower().split(maxsplit=1) if isinstance(value, str) else []
    word = words[0].strip(".,!*\"'`") if words else ""
    return word if word in ("yes", "no") else ""


def _result_sizes(task: Task, result: object) -> list[Any]:
    """Return the sizes of texts and of lists of texts; none of vectors and effects."""
    return _sizes(result) if task.op not in ("embed", "ingest") else []


def _described(deployment: Deployment) -> dict[str, object]:
    """Return what a replay needs to know of an engine."""
    engine = deployment.engine
    is_server = engine.is_llm and any(replica.runs_in == "loop" for replica in deployment.replicas)
    return {
        "name": engine.name,
        "kind": "llm_server" if is_server else engine.contract,
        "instances": len(deployment.replicas),
        **{name: getattr(engine, name) for name in _SETTINGS},
        "profile": asdict(deployment.profile),
        "replicas": [
            asdict(RecordedReplica(replica.profile, replica.num_slots, replica.kv_tokens, replica.tp))
            for replica in deployment.replicas
        ],
    }
