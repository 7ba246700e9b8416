"""A run written as text, to compare runs byte for byte."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b

from stretto.cluster.kv_events import KVEvent
from stretto.model.tasks import Done, Failed, Piece
from stretto.sched.actions import Action, Admit, Emit, Reply, StartBatch
from stretto.sched.engine_events import BatchDone, BatchFailed, InstanceLost, LLMReport
from stretto.sched.messages import Event, Submit
from stretto.sched.observer import Observer, StepsDone


class RunLog(Observer):
    """An observer of a simulation that writes the run as lines of JSON, one for each event, action, LLM step
    and change of a prefix cache, so that two runs can be compared.

    Times are exact.

    Attributes:
        lines: all lines written so far.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._hash = blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """Hash of all lines written so far, to compare runs: two with equal digests have written the same
        lines.
        """
        return self._hash.hexdigest()

    def on_event(self, event: Event, now_s: float) -> None:
        """Write a line about an event, handled at `now_s`."""
        self._write(now_s, event)

    def on_action(self, action: Action, now_s: float) -> None:
        """Write a line about an action (what the schedulers have decided), carried out at `now_s`."""
        self._write(now_s, action)

    def on_steps(self, steps: StepsDone) -> None:
        """Write a line for each of the completed steps of an LLM instance."""
        for end_s in steps.ends_s:
            self._line([end_s, "Step", steps.engine, steps.instance, steps.num_sequences, steps.num_tokens])

    def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent], now_s: float) -> None:
        """Write a line for each change of an instance's prefix cache."""
        for event in events:
            self._line([now_s, type(event).__name__, engine, instance, _digest(event)])

    def _write(self, now_s: float, message: Event | Action) -> None:
        self._line([now_s, type(message).__name__, *_fields(message)])

    def _line(self, fields: Sequence[object]) -> None:
        line = json.dumps(fields)
        self._hash.update(line.encode() + b"\n")
        self.lines.append(line)


def _fields(message: Event | Action) -> list[object]:
    """Return the fields that tell a message from others, with digests in place of values."""
    match message:
        case Submit(query, egraph, inputs):
            return [query, egraph.graph.name, _digest(inputs)]
        case BatchDone(engine, instance, batch, results):
            return [engine, instance, batch, _digest(results)]
        case BatchFailed(engine, instance, batch, error):
            return [engine, instance, batch, _error(error)]
        case InstanceLost(engine, instance, error):
            return [engine, instance, _error(error)]
        case LLMReport(engine, instance, event):
            said: list[object] = [engine, instance, type(event).__name__, event.task]
            match event:
                case Piece(value=value):
                    return [*said, _digest(value)]
                case Done(value=value, usage=usage):
                    return [*said, _digest(value), repr(usage)]
                case Failed(error=error):
                    return [*said, _error(error)]
            return said
        case StartBatch(engine, instance, batch, tasks, num_units):
            return [engine, instance, batch, num_units, *(task.id for task in tasks)]
        case Admit(engine, instance, task, rank):
            return [engine, instance, task.id, task.query, task.step, rank, _digest(task.prompt)]
        case Emit(query, output, text):
            return [query, output, text]
        case Reply(query, outputs, error):
            return [query, _digest(outputs), None if error is None else _error(error)]
    return [repr(message)]


def _error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _digest(value: object) -> str:
    return blake2b(repr(value).encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
