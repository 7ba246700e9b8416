"""The tasks of a simulated LLM instance, and how much of their output has been reported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from stretto.llm.sequence import TokenSequence
from stretto.llm.step_batch import Slice, StepBatch
from stretto.model.tasks import Done, LLMEvent, LLMTask, Piece, Started, Usage
from stretto.sim.synthetic_output import SyntheticOutput


@dataclass(slots=True)
class TaskProgress:
    """The progress of one task of a simulated LLM instance: how much of its output exists and has been
    reported.

    A text is reported when its first token exists, when it ends, and in between whenever asked; an item of a
    list is reported when it is complete.

    Attributes:
        said: the whole output; None for a prefill.
        ids: token ids of the output.
        stop: length of the sequence at which there is something to report.
        told_s: time of the last report; None before the first step.
    """

    task: LLMTask
    sequence: TokenSequence
    said: SyntheticOutput | None
    ids: list[int]
    stop: int = field(init=False)
    told_s: float | None = None
    num_items_told: int = 0
    num_chars_told: int = 0

    def __post_init__(self) -> None:
        sequence, said = self.sequence, self.said
        self.stop = sequence.num_prompt_tokens
        if said is not None:
            first = said.item_ends[0] if said.item_ends else 1
            self.stop += max(first, sequence.num_generated + 1)

    def generated(self, num_ahead: int = 0) -> tuple[int, ...]:
        """Return the ids of the output tokens generated so far, followed by those of the next `num_ahead`
        tokens.
        """
        return tuple(self.ids[: self.sequence.num_generated + num_ahead])

    def tell(self, now_s: float, told: list[LLMEvent]) -> bool:
        """Append events for the output generated since the last report (`Piece`s) to the list `told`; return
        whether the output is complete.

        At least one token must have been generated.
        """
        said, num_output = self.said, self.sequence.num_generated
        assert said is not None
        is_over = num_output >= said.num_tokens
        self.told_s = now_s
        if isinstance(said.value, list):
            while self.num_items_told < len(said.item_ends) and (
                is_over or said.item_ends[self.num_items_told] <= num_output
            ):
                told.append(Piece(self.task.id, said.value[self.num_items_told]))
                self.num_items_told += 1
            is_last = self.num_items_told == len(said.item_ends)
            next_stop = said.num_tokens if is_last else said.item_ends[self.num_items_told]
        else:
            num_chars = len(said.value) if is_over else len(said.value) * num_output // said.num_tokens
            if num_chars > self.num_chars_told:
                told.append(Piece(self.task.id, said.value[self.num_chars_told : num_chars]))
                self.num_chars_told = num_chars
            next_stop = said.num_tokens
        self.stop = self.sequence.num_prompt_tokens + max(next_stop, num_output + 1)
        return is_over


class ProgressTable:
    """The progress of all tasks of a simulated LLM instance, found by task and by sequence.

    A cancelled task is removed at once, its sequence at the end of the step. Each task that writes a text
    reports at least every `beat_s` seconds, from its first step on.
    """

    def __init__(self, beat_s: float) -> None:
        self.beat_due_s = math.inf
        self._beat_s = beat_s
        self._by_task: dict[int, TaskProgress] = {}
        self._by_sequence: dict[int, TaskProgress] = {}
        self._num_unstarted = 0

    def add(self, request: TaskProgress) -> None:
        """Begin to track a task, which waits for its first step."""
        self._by_task[request.task.id] = self._by_sequence[request.sequence.id] = request
        self._num_unstarted += 1

    def find(self, task: int) -> TaskProgress | None:
        """Return the progress of a task by the task's id; None if it is not in the table, or was
        cancelled.
        """
        return self._by_task.get(task)

    def cancel(self, task: int) -> TaskProgress | None:
        """Stop reporting a task; return its progress, or None if it is not in the table.

        Its sequence stays until `drop`.
        """
        return self._by_task.pop(task, None)

    def suspended(self, slices: Sequence[Slice], num_ended: int) -> list[tuple[int, tuple[int, ...]]]:
        """Return the tasks that have neither ended nor been cancelled, as (id, ids of the tokens generated)
        pairs, so that they can go on elsewhere.

        Args:
            slices: the batch that is being computed.
            num_ended: number of its steps that are over.
        """
        num_ahead = {piece.sequence.id: num_ended for piece in slices if piece.samples}
        return [
            (task, one.generated(num_ahead.get(one.sequence.id, 0))) for task, one in self._by_task.items()
        ]

    def clear(self) -> None:
        """Forget all tasks, so that nothing more is reported about them, because their instance has died."""
        self._by_task.clear()

    def drop(self, request: TaskProgress) -> None:
        """Remove the sequence of a cancelled task. (`cancel` removes only the task.)"""
        if self._by_sequence.pop(request.sequence.id, None) is not None and request.told_s is None:
            self._num_unstarted -= 1

    def nearest_stop(self, running: list[TokenSequence]) -> int:
        """Return how many more tokens each running sequence must generate until at least one of them has
        something to report.

        The number is not positive while prompts are computed.
        """
        by_sequence = self._by_sequence
        return min([by_sequence[s.id].stop - len(s.tokens) for s in running])

    def start(self, batch: StepBatch, now_s: float) -> list[LLMEvent]:
        """Record that the engine begins an iteration over a batch; return a `Started` event for each task
        that has had no iteration before.
        """
        started: list[LLMEvent] = []
        for piece in batch.slices if self._num_unstarted else ():
            request = self._by_sequence[piece.sequence.id]
            if request.told_s is None:
                self._num_unstarted -= 1
                request.told_s = now_s
                self.beat_due_s = min(self.beat_due_s, now_s + self._beat_s)
                if request.task.id in self._by_task:
                    started.append(Started(request.task.id))
        return started

    def sample(
        self, batch: StepBatch, num_repeats: int, now_s: float
    ) -> tuple[dict[int, list[int]], list[TaskProgress]]:
        """Return what `num_repeats` steps of a simulated batch generate, without reporting it: the token ids
        by sequence, and the tasks that may have something to report after these steps.
        """
        sampled: dict[int, list[int]] = {}
        to_tell: list[TaskProgress] = []
        is_beat = now_s >= self.beat_due_s
        by_sequence = self._by_sequence
        for sequence, _, _, samples in batch.slices:
            request = by_sequence[sequence.id]
            length = len(sequence.tokens)
            if samples:
                place = length - sequence.num_prompt_tokens
                sampled[sequence.id] = request.ids[place : place + num_repeats]
                length += num_repeats
            if is_beat or length >= request.stop:
                to_tell.append(request)
        return sampled, to_tell

    def tell(self, requests: list[TaskProgress], now_s: float, told: list[LLMEvent]) -> list[TaskProgress]:
        """Append events to the list `told` for those of the tasks `requests` that have something to report
        after a step: pieces of their outputs, and `Done` for those that have ended.

        A task reports when an item or the whole of its output is complete, or when its last report is too
        long ago. Tasks that have ended are removed and returned.
        """
        over = []
        for request in requests:
            sequence, said = request.sequence, request.said
            value: str | list[str] | None = None
            if said is None:
                if sequence.num_missing:
                    continue
            else:
                assert request.told_s is not None
                if len(sequence.tokens) < request.stop and now_s < request.told_s + self._beat_s:
                    continue
                if sequence.num_generated == 0 or request.task.id not in self._by_task:
                    continue
                if not request.tell(now_s, told):
                    continue
                value = said.value
            if self._by_task.pop(request.task.id, None) is None:
                continue  # cancelled: it is dropped between this step and the next
            usage = Usage(sequence.num_prompt_tokens, sequence.num_cached or 0, sequence.num_generated)
            told.append(Done(request.task.id, value, usage))
            del self._by_sequence[sequence.id]
            over.append(request)
        return over

    def note_beat(self, now_s: float) -> None:
        """Update `beat_due_s`, the latest time at which the next task must report again, if it has passed by
        `now_s`.
        """
        if now_s >= self.beat_due_s:
            told_s = (request.told_s for request in self._by_sequence.values())
            dues_s = (at_s + self._beat_s for at_s in told_s if at_s is not None)
            self.beat_due_s = min(dues_s, default=math.inf)
