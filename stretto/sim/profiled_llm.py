"""A simulated LLM instance that takes its times from the engine's cost profile alone.

It prefills one request at a time, the smallest rank first, skipping what its cache holds, and decodes all its
sequences side by side, each at the speed of one. If a prefill is cancelled, the cache holds the segments that
were computed by then. A deterministic engine computes the output at once; this class only decides when it is
delivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stretto.costs.mean_output import num_tokens
from stretto.engines.contract import SteppedLLM
from stretto.engines.scripted.task_queue import TaskQueue
from stretto.model.replica import Engine, Replica
from stretto.model.tasks import LLMEvent, LLMTask, Piece, Started
from stretto.model.values import Prompt, num_common_segments
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event
from stretto.sim.simulated_model import Surroundings


class Timeline(Surroundings, Protocol):
    """The interface of the simulator to an instance that takes its times from a profile."""

    def duration_s(self, seconds: float) -> float:
        """Return a predicted duration, multiplied by a random factor (jitter)."""
        ...


@dataclass(frozen=True, slots=True)
class _Prefilling:
    task: LLMTask
    start_s: float
    end_s: float

    def num_computed(self, num_tokens: int, now_s: float) -> float:
        """Return how many of `num_tokens` are computed by `now_s`."""
        return num_tokens * (now_s - self.start_s) / (self.end_s - self.start_s)


class ProfiledLLM:
    """A simulated LLM instance that takes its times from the engine's cost profile alone: one prefill at a
    time, and all decodes side by side.
    """

    def __init__(self, engine: Engine, replica: Replica, instance: int, timeline: Timeline) -> None:
        self._engine = engine
        self._profile = replica.profile
        self._instance = instance
        self._timeline = timeline
        self._executable: SteppedLLM = replica.executable(replica.config)
        self._waiting = TaskQueue()
        self._prefilling: _Prefilling | None = None
        self._is_dead = False
        self._live: set[int] = set()
        self._held: dict[str, list[Prompt]] = {}

    def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        """Queue a request for its prefill; of the requests that wait, the one with the smallest `rank` goes
        first.
        """
        self._live.add(task.id)
        self._waiting.push(task, rank)
        self._timeline.at(self._timeline.now_s, self._prefill_next)

    def cancel(self, task: int) -> None:
        """Cancel a task: it sends no further message. If it is being prefilled, the next request starts."""
        self._live.discard(task)
        self._waiting.discard(task)
        current, now_s = self._prefilling, self._timeline.now_s
        if current is None or current.task.id != task:
            return
        self._prefilling = None
        if now_s > current.start_s:
            self._hold(current, now_s)
        self._timeline.at(now_s, self._prefill_next)

    def reprioritise(self, task: int, rank: tuple[float, ...]) -> None:
        """Change the rank of a waiting request."""
        self._waiting.reprioritise(task, rank)

    def release(self, query: str) -> None:
        """Drop the prefixes that `query` left in the simulated cache."""
        self._held.pop(query, None)

    def suspend(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return the tasks that have not ended, as (id, empty tuple) pairs. The tuple stands for the tokens
        generated, which are not simulated here.
        """
        return [(task, ()) for task in sorted(self._live)]

    def kill(self) -> None:
        """Stop the simulated instance for ever: no task sends a further message."""
        self._live.clear()
        self._is_dead = True

    def _prefill_next(self) -> Sequence[Event]:
        """Start the waiting request with the smallest rank, unless another one is being prefilled."""
        if self._prefilling is not None or self._is_dead or not self._waiting:
            return ()
        task = self._waiting.pop()
        seconds = self._profile.batch_s(self._num_missing_tokens(task.prompt))
        end_s = self._timeline.now_s + self._duration_s(seconds)
        prefilling = self._prefilling = _Prefilling(task, self._timeline.now_s, end_s)
        self._timeline.at(end_s, lambda: self._prefilled(prefilling))
        return self._report(Started(task.id))

    def _prefilled(self, ended: _Prefilling) -> Sequence[Event]:
        """End a prefill: schedule the pieces of the output, and start the next request."""
        if self._is_dead or self._prefilling is not ended:
            return ()
        task = ended.task
        self._prefilling = None
        self._timeline.at(self._timeline.now_s, self._prefill_next)
        if task.id not in self._live:
            return ()
        self._held.setdefault(task.query, []).append(task.prompt)
        token_s = self._duration_s(self._profile.per_output_s)
        at_s = self._timeline.now_s
        try:
            answer = self._answer(task)
        except Exception:  # as in a real driver, what escapes the engine takes the instance down
            self._timeline.break_down(self._engine.name, self._instance)
            return ()
        for event in answer:
            if isinstance(event, Started):
                continue
            if isinstance(event, Piece):
                at_s += token_s * num_tokens(event.value)
            self._timeline.at(at_s, lambda e=event: self._heard(e))  # type: ignore[misc]
        return ()

    def _hold(self, cancelled: _Prefilling, now_s: float) -> None:
        """Keep the whole segments that were computed when a prefill was cancelled."""
        prompt = cancelled.task.prompt
        num_missing = self._num_missing_tokens(prompt)
        num_left = sum(num_tokens(segment.text) for segment in prompt) - num_missing
        num_left += int(cancelled.num_computed(num_missing, now_s))
        length = 0
        while length < len(prompt) and num_tokens(prompt[length].text) <= num_left:
            num_left -= num_tokens(prompt[length].text)
            length += 1
        if length:
            self._held.setdefault(cancelled.task.query, []).append(prompt[:length])

    def _answer(self, task: LLMTask) -> list[LLMEvent]:
        """Return all events of the engine for `task`, computed at once."""
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
        """Return the number of prompt tokens after the longest held prefix, in whole segments."""
        held = max(
            (num_common_segments(prompt, other) for prompts in self._held.values() for other in prompts),
            default=0,
        )
        return sum(num_tokens(segment.text) for segment in prompt[held:])
