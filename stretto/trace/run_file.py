"""The recorder of runs, which a simulation can run again: sizes and times, no texts."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from stretto.cluster.messages import StartInstance, StopInstance
from stretto.costs.mean_output import num_tokens
from stretto.graph.graph import Graph
from stretto.graph.passes.weigh import WEIGHED
from stretto.graph.text import print_graph
from stretto.model.deployment import Deployment
from stretto.model.errors import StrettoError, UserError
from stretto.model.private_file import private
from stretto.model.tasks import Done, Failed, LLMTask, Piece, Started, Task
from stretto.sched.actions import Action, Admit, CancelTask, Reply, StartBatch
from stretto.sched.engine_events import (
    BatchDone,
    BatchFailed,
    Drain,
    InstanceLost,
    InstanceStopped,
    LLMReport,
    Suspended,
)
from stretto.sched.messages import Event, Open, Submit
from stretto.sched.observer import Observer
from stretto.trace.recorded_run import SCHEMA, SETTINGS, VERSION, RecordedReplica, RecordedSpan, YesNo
from stretto.trace.recorded_sizes import first_word, input_size, num_chars, result_sizes, sizes_of

_log = logging.getLogger(__name__)


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
    """An observer that writes a run to a file for `stretto replay`, each query when it ends.

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
                            sizes = result_sizes(task, result)
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
                self._span(key, request, task, now_s, op, 1, sizes_of(value), tokens, first_word(value))

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
        sizes: list[Any],
        tokens: tuple[int, int] = (0, 0),
        word: YesNo = "",
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
                "inputs": {port: input_size(value) for port, value in submit.inputs.items()},
                "spans": [msgspec.to_builtins(span) for span in query.spans],
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


def _described(deployment: Deployment) -> dict[str, object]:
    """Return what a replay needs to know of an engine."""
    engine = deployment.engine
    is_server = engine.is_llm and any(replica.runs_in == "loop" for replica in deployment.replicas)
    return {
        "name": engine.name,
        "kind": "llm_server" if is_server else engine.contract,
        "instances": len(deployment.replicas),
        **{name: getattr(engine, name) for name in SETTINGS},
        "profile": asdict(deployment.profile),
        "replicas": [
            msgspec.to_builtins(
                RecordedReplica(replica.profile, replica.num_slots, replica.kv_tokens, replica.tp)
            )
            for replica in deployment.replicas
        ],
    }
