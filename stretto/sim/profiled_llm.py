"""An LLM instance in virtual time.

It prefills one request at a time, the smallest rank first, skipping what its cache holds, and decodes all
its sequences side by side, each at the speed of one. What is said is computed at once by a deterministic
engine; this class only decides when it is heard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from stretto.core import Prompt
from stretto.costs.tokens import num_tokens
from stretto.engine import Engine
from stretto.engines.contract import SteppedLLM
from stretto.engines.scripted.task_queue import TaskQueue
from stretto.messages import Event, LLMReport
from stretto.tasks import LLMEvent, LLMTask, Piece, Started


class Timeline(Protocol):
    """What an instance needs of its driver."""

    now_s: float

    def at(self, at_s: float, happen: Callable[[], Sequence[Event]]) -> None: ...
    def duration_s(self, seconds: float) -> float: ...
    def slowness(self, engine: str, instance: int, at_s: float) -> float: ...
    def lose(self, engine: str, instance: int, at_s: float) -> None: ...


class ProfiledLLM:
    """One instance of an LLM engine, by its profile."""

    def __init__(self, engine: Engine, instance: int, timeline: Timeline, ready_s: float = 0.0) -> None:
        self._engine = engine
        self._instance = instance
        self._timeline = timeline
        self._executable: SteppedLLM = engine.executable(engine.config)
        self._waiting = TaskQueue()
        self._is_prefilling = False
        self._is_dead = False
        self._live: set[int] = set()
        self._held: dict[str, list[Prompt]] = {}
        if timeline.now_s < ready_s:
            self._is_prefilling = True
            timeline.at(ready_s, self._ready)

    def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        """Queue a request."""
        self._live.add(task.id)
        self._waiting.push(task, rank)
        self._timeline.at(self._timeline.now_s, self._prefill_next)

    def cancel(self, task: int) -> None:
        """Nothing more will be heard of the task."""
        self._live.discard(task)
        self._waiting.discard(task)

    def reprioritise(self, task: int, rank: tuple[float, ...]) -> None:
        """Give a waiting request another rank."""
        self._waiting.reprioritise(task, rank)

    def release(self, query: str) -> None:
        """Forget the prefixes that `query` left."""
        self._held.pop(query, None)

    def kill(self) -> None:
        """Nothing more will be heard of any task."""
        self._live.clear()
        self._is_dead = True

    def _ready(self) -> Sequence[Event]:
        self._is_prefilling = False
        return self._prefill_next()

    def _prefill_next(self) -> Sequence[Event]:
        """Start the request of the smallest rank, if the prefill unit is free."""
        if self._is_prefilling or self._is_dead or not self._waiting:
            return ()
        task = self._waiting.pop()
        self._is_prefilling = True
        seconds = self._engine.profile.batch_s(self._num_missing_tokens(task.prompt))
        end_s = self._timeline.now_s + self._duration_s(seconds)
        self._timeline.at(end_s, lambda: self._prefilled(task))
        return self._report(Started(task.id))

    def _prefilled(self, task: LLMTask) -> Sequence[Event]:
        """The prompt is in: schedule the tokens to come, and go on with the next request."""
        self._is_prefilling = False
        if self._is_dead:
            return ()
        self._timeline.at(self._timeline.now_s, self._prefill_next)
        if task.id not in self._live:
            return ()
        self._held.setdefault(task.query, []).append(task.prompt)
        token_s = self._duration_s(self._engine.profile.per_output_s)
        at_s = self._timeline.now_s
        try:
            answer = self._answer(task)
        except Exception:  # as in a real driver, what escapes the engine takes the instance down
            self._timeline.lose(self._engine.name, self._instance, at_s)
            return ()
        for event in answer:
            if isinstance(event, Started):
                continue
            if isinstance(event, Piece):
                at_s += token_s * num_tokens(event.value)
            self._timeline.at(at_s, lambda e=event: self._heard(e))  # type: ignore[misc]
        return ()

    def _answer(self, task: LLMTask) -> list[LLMEvent]:
        """All the engine says about `task`, at once."""
        self._executable.admit(task, ())
        events: list[LLMEvent] = []
        while self._executable.has_work():
            events += self._executable.step()
        self._executable.release(task.query)
        return events

    def _duration_s(self, seconds: float) -> float:
        slowness = self._timeline.slowness(self._engine.name, self._instance, self._timeline.now_s)
        return self._timeline.duration_s(seconds) * slowness

    def _heard(self, event: LLMEvent) -> Sequence[Event]:
        if event.task not in self._live:
            return ()
        if not isinstance(event, Piece):
            self._live.discard(event.task)
        return self._report(event)

    def _report(self, event: LLMEvent) -> Sequence[Event]:
        return (LLMReport(self._engine.name, self._instance, event),)

    def _num_missing_tokens(self, prompt: Prompt) -> int:
        """Tokens of the prompt beyond the longest held prefix, in whole segments."""
        held = max(
            (_common(prompt, other) for prompts in self._held.values() for other in prompts), default=0
        )
        return sum(num_tokens(segment.text) for segment in prompt[held:])


def _common(prompt: Prompt, other: Prompt) -> int:
    length = 0
    for a, b in zip(prompt, other, strict=False):
        if a.text != b.text:
            break
        length += 1
    return length
