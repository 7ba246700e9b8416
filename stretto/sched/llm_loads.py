"""What the instances of an LLM engine are busy with, and where the placement policy sends a request.

A running request counts against an instance's budget with its prompt and the output expected of it. It
delays others by its prefill until its first output, and by its part of every step while it decodes: all
sequences of an instance decode side by side.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stretto.cluster.instances import InstanceTable, InstanceView
from stretto.cluster.messages import InstanceId, KVReport, LoadReport
from stretto.cluster.placement import Choice, Dispatched, Left, Placement, PlacementRequest
from stretto.core import Prompt
from stretto.deployment import Engine, Replica
from stretto.sched.expected_outputs import ExpectedOutputs
from stretto.sched.request import Entry

DEFAULT_BUDGET_TOKENS = 8192
"""Tokens in flight on an instance, where neither the engine nor the replica says how many fit."""


@dataclass(slots=True, eq=False)
class Running:
    """One item of an entry, at an instance.

    Attributes:
        num_prompt: tokens of its prompt.
        num_expected: tokens of output that were expected of it.
        num_output: the same, raised when it writes more.
        prefill_s: predicted seconds of its prefill; 0 once it has written something.
        offset: items or characters of its output that have been passed on.
        num_written: estimated tokens of its output so far.
        is_decoding: whether it has written something.
        started_s: when the instance began its prefill, as far as is known.
        is_probe: whether the instance was suspect when it was handed over.
        output_key: that of the instance's replica.
    """

    task: int
    instance: InstanceId
    entry: Entry
    item: int
    prompt: Prompt
    num_prompt: int
    num_expected: int
    prefill_s: float
    num_output: int = field(init=False)
    offset: int = 0
    num_written: int = 0
    is_decoding: bool = False
    started_s: float | None = None
    is_probe: bool = False
    output_key: object = None

    def __post_init__(self) -> None:
        self.num_output = self.num_expected

    @property
    def num_tokens(self) -> int:
        """What it takes of the budget."""
        return self.num_prompt + self.num_output


class InstanceLoads:
    """Requests by instance, and the table from which the placement policy chooses.

    A choice changes nothing.
    """

    def __init__(self, engine: Engine, placement: Placement, outputs: ExpectedOutputs) -> None:
        self._engine = engine
        self._placement = placement
        self._outputs = outputs
        self._table = InstanceTable(placement.load)
        self._output_keys: dict[InstanceId, object] = {}
        self._running: dict[InstanceId, dict[int, Running]] = {}
        self._num_running = 0

    @property
    def roomiest(self) -> int:
        """The most tokens for which an instance has room."""
        return self._table.roomiest

    @property
    def may_place(self) -> bool:
        """Whether some instance may take a request: one that serves has room, or one is suspect."""
        return self._table.roomiest > 0 or self._table.has_suspects

    @property
    def num_running(self) -> int:
        """Requests at all instances."""
        return self._num_running

    def join(self, instance: InstanceId, replica: Replica) -> None:
        """Add an instance that can take work."""
        self._running.setdefault(instance, {})
        if self._table.get(instance) is None:
            self._output_keys[instance] = replica.output_key
            num_slots = replica.num_slots or self._engine.max_running
            self._table.join(InstanceView(instance, replica.profile, self._budget(replica), num_slots))

    def leave(self, instance: InstanceId) -> None:
        """Give an instance no more work; what runs there goes on."""
        if self._table.get(instance) is not None:
            self._placement.observe(Left(instance))
            self._table.leave(instance)
            del self._output_keys[instance]

    def set_suspect(self, instance: InstanceId, *, is_suspect: bool, probe_s: float = 0.0) -> None:
        """Note whether an instance may be down, and when it may take a request if it is."""
        if (view := self._table.get(instance)) is not None:
            view.state = "suspect" if is_suspect else "serving"
            view.probe_s = probe_s
            self._table.changed(instance)

    def observe(self, report: KVReport | LoadReport) -> None:
        """Pass on what an instance reports to the placement policy."""
        view = self._table.get(report.instance)
        if view is None:
            return
        if isinstance(report, LoadReport):
            view.reported = report.load
        self._placement.observe(report)
        self._table.changed(report.instance)

    def of(self, instance: InstanceId) -> dict[int, Running]:
        """Return the requests of an instance by task."""
        return self._running.get(instance, {})

    def add(self, running: Running, request: PlacementRequest) -> None:
        """Note that a request is handed to its instance."""
        self._running.setdefault(running.instance, {})[running.task] = running
        self._num_running += 1
        self._placement.observe(Dispatched(running.instance, request))
        self._change(running.instance, running.num_tokens, running.prefill_s)

    def remove(self, running: Running) -> None:
        """Note that a request has left its instance."""
        del self._running[running.instance][running.task]
        self._num_running -= 1
        if running.is_decoding and (view := self._table.get(running.instance)) is not None:
            view.num_decoding -= 1
        self._change(running.instance, -running.num_tokens, -running.prefill_s)

    def wrote(self, running: Running, num_tokens: int) -> None:
        """Note more output of a request: its prefill is over, and it may exceed what was expected."""
        decode = running.entry.request.decode
        limit = decode.max_tokens if decode else 0
        running.num_written += num_tokens
        num_before = running.num_output
        if running.num_written > num_before:
            running.num_output = max(num_before, min(limit, 2 * running.num_written))
        if not running.is_decoding or running.num_output > num_before:
            prefill_s, running.prefill_s = running.prefill_s, 0.0
            self._set_decoding(running)
            self._change(running.instance, running.num_output - num_before, -prefill_s)

    def choose(self, request: PlacementRequest, now_s: float, like: object = None) -> Choice | None:
        """Return where a request goes; None while no instance has room for it.

        Args:
            like: key of the replicas among which to choose; None for all.
        """
        if like is None or all(key == like for key in self._output_keys.values()):
            return self._placement.choose(request, self._table, now_s)
        table = InstanceTable(self._placement.load)
        for view in self._table:
            if self._output_keys[view.id] == like:
                table.join(view)
        return self._placement.choose(request, table, now_s)

    def output_key(self, instance: InstanceId) -> object:
        """Return the `Replica.output_key` of an instance that may take work."""
        return self._output_keys[instance]

    def output_keys(self) -> list[object]:
        """Return the keys of all instances that may take work."""
        return list(self._output_keys.values())

    def prefill_s(self, num_missing: int, instance: InstanceId) -> float:
        """Return the predicted seconds for so many tokens of a prompt."""
        view = self._table.get(instance)
        return 0.0 if view is None else view.profile.batch_s(max(0, num_missing))

    def check_invariants(self) -> None:
        """Check that sums agree with what runs, and that what was expected of it keeps within the limits."""
        for view in self._table:
            running = self._running[view.id].values()
            assert view.num_running == len(running)
            assert view.num_decoding == sum(one.is_decoding for one in running)
            assert view.running_tokens == sum(one.num_tokens for one in running)
            num_planned = sum(one.num_prompt + one.num_expected for one in running)
            assert num_planned <= view.capacity_tokens or len(running) == 1
            assert len(running) <= view.num_slots
        assert self._num_running == sum(map(len, self._running.values()))

    def views(self) -> Iterable[InstanceView]:
        """Return the instances that may take work, as the placement policy sees them."""
        return iter(self._table)

    def forget(self, instance: InstanceId) -> None:
        """Drop an instance that is gone, with nothing left of it."""
        if not self._running.get(instance):
            self._running.pop(instance, None)

    def _set_decoding(self, running: Running) -> None:
        if not running.is_decoding:
            running.is_decoding = True
            if (view := self._table.get(running.instance)) is not None:
                view.num_decoding += 1

    def _budget(self, replica: Replica) -> int:
        if self._engine.max_batch is not None:
            return self._engine.max_batch
        return replica.kv_tokens or DEFAULT_BUDGET_TOKENS

    def _change(self, instance: InstanceId, num_tokens: int, prefill_s: float) -> None:
        view = self._table.get(instance)
        if view is None:
            return
        running = self._running[instance]
        view.num_running = len(running)
        view.running_tokens += num_tokens
        view.prefill_s = view.prefill_s + prefill_s if running else 0.0
        view.expected_output = self._outputs.typical
        self._table.changed(instance)
