"""Seeing what happens in a simulated run, without keeping all of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from stretto.cluster.kv_events import KVEvent
from stretto.messages import (
    Action,
    Admit,
    BatchDone,
    BatchFailed,
    Emit,
    Event,
    InstanceLost,
    LLMReport,
    Reply,
    StartBatch,
    Submit,
)
from stretto.tasks import Done, Failed, Piece


@dataclass(frozen=True, slots=True)
class StepsDone:
    """Steps of an instance, run one after the other without a gap, from `start_s` on.

    `ends_s` has the end of each. `num_sequences` were on board, and `num_tokens` computed in each step.
    """

    engine: str
    instance: int
    start_s: float
    ends_s: Sequence[float]
    num_sequences: int
    num_tokens: int


class Watcher:
    """Sees what happens; a subclass overrides what it cares for. Nothing it does may change the run."""

    def on_event(self, event: Event, now_s: float) -> None:
        """Before the schedulers handle it."""

    def on_action(self, action: Action, now_s: float) -> None:
        """Before it is carried out."""

    def on_steps(self, steps: StepsDone) -> None:
        """An instance with a model has taken steps."""

    def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent], now_s: float) -> None:
        """What a prefix cache holds has changed, and the news has arrived."""


class RunLog(Watcher):
    """A run as lines of JSON, one for each event, action, step and cache report; times are exact.

    `digest` is over all lines; `lines` has them if they are kept.
    """

    def __init__(self, *, keeps: bool = True) -> None:
        self.lines: list[str] = []
        self.num_lines = 0
        self._keeps = keeps
        self._hash = blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """Equal digests are equal runs, byte for byte."""
        return self._hash.hexdigest()

    def on_event(self, event: Event, now_s: float) -> None:
        self._write(now_s, event)

    def on_action(self, action: Action, now_s: float) -> None:
        self._write(now_s, action)

    def on_steps(self, steps: StepsDone) -> None:
        for end_s in steps.ends_s:
            self._line([end_s, "Step", steps.engine, steps.instance, steps.num_sequences, steps.num_tokens])

    def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent], now_s: float) -> None:
        for event in events:
            self._line([now_s, type(event).__name__, engine, instance, _digest(event)])

    def _write(self, now_s: float, message: Event | Action) -> None:
        self._line([now_s, type(message).__name__, *_fields(message)])

    def _line(self, fields: Sequence[object]) -> None:
        line = json.dumps(fields)
        self._hash.update(line.encode() + b"\n")
        self.num_lines += 1
        if self._keeps:
            self.lines.append(line)


def _fields(message: Event | Action) -> list[object]:
    """What tells a message from others; values by a digest."""
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
