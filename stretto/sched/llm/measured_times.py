"""How slow instances of an LLM engine are, measured from the times of their answers."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable
from stretto.cluster.messages import InstanceId
from stretto.sched.llm.expected_outputs import ExpectedOutputs
from stretto.sched.llm.running_requests import Running

_SLOWNESS_WEIGHT = 0.3
"""Weight of an answer in the slowness of its instance: a few answers show that it has become slower."""
_PACE_WEIGHT = 0.1
"""Weight of an answer in the seconds that a token in flight adds to a step."""
_LEAST_PACED = 8
"""Number of tokens after the first output from which the time of an answer tells how long steps take."""
_LEAST_SLOWNESS = 1.5
"""Slowness that counts. Less is within the error of predictions."""


class MeasuredTimes:
    """The slowness of each instance: measured over predicted seconds of its answers. It is written to the
    views of the instances.

    Args:
        counts_slowness: whether requests are bound to instances early, so that slowness is to be followed.
    """

    def __init__(self, table: InstanceTable, outputs: ExpectedOutputs, *, counts_slowness: bool) -> None:
        self._table = table
        self._outputs = outputs
        self._counts_slowness = counts_slowness
        self._slowness: dict[InstanceId, float] = {}
        self._sent_prefill_s: dict[InstanceId, float] = {}
        self._in_time_s: dict[InstanceId, float] = {}

    def sent(self, running: Running) -> None:
        """Predict when a request that is sent to an instance has its first output."""
        if not self._counts_slowness or (view := self._table.get(running.instance)) is None:
            return
        running.first_s = view.prefill_left_s(running.handed_s) + running.prefill_s
        if view.num_running == view.num_decoding:
            view.prefill_from_s = running.handed_s
        sent_s = self._sent_prefill_s.get(view.id, 0.0) + running.prefill_s
        self._sent_prefill_s[view.id] = running.sent_prefill_s = sent_s

    def answered(self, running: Running, num_output: int, now_s: float) -> None:
        """Learn from a request that has ended with `num_output` tokens how slow its instance is: seconds
        taken, divided by the seconds predicted for it.
        """
        view = self._table.get(running.instance)
        if view is None or running.is_offline:
            return
        _learn_pace(running, view, num_output, now_s)
        predicted_s = self._predicted_s(running, view, num_output) if self._counts_slowness else 0.0
        if predicted_s > 0:
            before = self._slowness.get(view.id, 1.0)
            ratio = (now_s - running.handed_s) / predicted_s
            if not running.is_decoding:
                view.prefill_from_s = now_s
            if ratio < _LEAST_SLOWNESS:
                self._in_time_s[view.id] = now_s
            self._set_slowness(view, before + _SLOWNESS_WEIGHT * (ratio - before))

    def note_overdue(self, instance: InstanceId, requests: Iterable[Running], now_s: float) -> None:
        """Raise the slowness of an instance with these `requests`, the oldest first, if nothing has ended
        there in time for longer than its oldest request was predicted to take, if its answer were as long as
        the longest so far.

        An instance is not slow because one answer is long.
        """
        view = self._table.get(instance)
        oldest = next((one for one in requests if not one.is_offline), None)
        if view is None or oldest is None:
            return
        num_output = max(oldest.num_output, self._outputs.longest(oldest.entry.request))
        predicted_s = self._predicted_s(oldest, view, num_output)
        silent_s = now_s - max(oldest.handed_s, self._in_time_s.get(instance, oldest.handed_s))
        if predicted_s > 0 and silent_s / predicted_s > self._slowness.get(instance, 1.0):
            self._set_slowness(view, silent_s / predicted_s)
            self._table.changed(instance)

    def forget(self, instance: InstanceId) -> None:
        """Forget what was measured at an instance that gets no more work."""
        self._slowness.pop(instance, None)
        self._sent_prefill_s.pop(instance, None)
        self._in_time_s.pop(instance, None)

    def _predicted_s(self, running: Running, view: InstanceView, num_output: int) -> float:
        """Return how many seconds an answer of `num_output` tokens takes, beside those that run there now and
        the prefills that were sent there since its request was.
        """
        later_s = self._sent_prefill_s.get(view.id, 0.0) - running.sent_prefill_s
        return running.first_s + later_s + num_output * view.profile.decode_s(view.num_running)

    def _set_slowness(self, view: InstanceView, mean: float) -> None:
        self._slowness[view.id] = mean
        view.slowness = mean if mean >= _LEAST_SLOWNESS else 1.0


def _learn_pace(running: Running, view: InstanceView, num_output: int, now_s: float) -> None:
    """Learn from the time of an answer's tokens how many seconds a token in flight adds to a step of its
    instance.
    """
    num_paced = num_output - running.num_first
    if running.decoding_s is None or num_paced < _LEAST_PACED:
        return
    step_s = (now_s - running.decoding_s) / num_paced
    num_resident = (running.num_resident + view.running_tokens) / 2
    per_resident_s = max(0.0, step_s - view.profile.per_output_s) / max(1.0, num_resident)
    before = per_resident_s if view.per_resident_s is None else view.per_resident_s
    view.per_resident_s = before + _PACE_WEIGHT * (per_resident_s - before)
