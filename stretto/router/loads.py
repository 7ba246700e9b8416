"""The loads of the workers as placement policies see them: a table of views, kept in step with every
request's start, first byte and end.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from heapq import heappop, heappush

from stretto.cluster.held_blocks import loading_shares
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable
from stretto.cluster.placement import Choice, Dispatched, Emptied, Ended, Joined, Left, Placement
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.prompt_keys import BYTES
from stretto.router.expected_answers import ExpectedAnswers
from stretto.router.hit_correction import HitCorrection, ReportedHits
from stretto.router.messages import Ticket, WorkerId, WorkerUsage
from stretto.router.offline_at_workers import (
    USUAL_RULES,
    OfflineAtWorkers,
    OfflineRules,
    OfflineWhenAsked,
    is_offline_request,
)
from stretto.router.workers import Worker

_NO_LIMIT = 2**22
"""Tokens that may be in flight at a worker whose memory is not known."""
_SLOWNESS = (1 / 16, 16.0)
"""Range of the measured over the predicted seconds of one answer."""
_SLOWNESS_WEIGHT = 0.1


@dataclass(slots=True, eq=False)
class RunningAtWorker:
    """A request that runs at a worker.

    Attributes:
        held_tokens: tokens of its prompt that the worker is expected to report as found in its cache.
        prefill_s: predicted seconds of its prefill.
        first_s: predicted seconds until its first byte, when it was sent.
        model: name of the model that it asks for, if a worker lists it; else "".
        is_offline: whether it gives way to all that are not offline.
        is_decoding: whether its prefill is over, as far as is known.
    """

    ticket: Ticket
    worker: WorkerId
    placed: PlacementRequest
    sent_s: float
    held_tokens: int
    prefill_s: float
    first_s: float
    model: str = ""
    is_offline: bool = False
    is_decoding: bool = False


class WorkerLoads:
    """The table of workers that a placement policy reads, and the events that it observes.

    Attributes:
        table: views of the workers that the policy may choose.
        uses_keys: whether the policy reads keys of prompts, where workers report nothing of their caches.
        outputs: how long answers are expected to be.
    """

    def __init__(self, placement: Placement, offline: OfflineRules = USUAL_RULES) -> None:
        self._placement = placement
        self._is_early = placement.binds != "late"
        self.table = InstanceTable(placement.load, with_full=self._is_early)
        self._offline = OfflineWhenAsked(OfflineAtWorkers(self.table, offline))
        self._prefill_ends: list[tuple[float, Ticket]] = []
        self._running: dict[Ticket, RunningAtWorker] = {}
        self.uses_keys = placement.uses_keys == "always"
        self.outputs = ExpectedAnswers()
        self._correction = HitCorrection(BYTES.block_tokens)
        self._reports = ReportedHits()

    @property
    def offline(self) -> OfflineAtWorkers:
        """The offline requests at workers, with all that has happened there."""
        return self._offline.catch_up()

    @property
    def has_offline(self) -> bool:
        """Whether offline requests run at workers."""
        return self._offline.machine.num_running > 0

    def join(self, worker: Worker) -> None:
        """Let the policy choose a worker. If it may already, only a new size of its KV memory counts: that is
        of a new process, whose cache is empty.
        """
        view, capacity = self.table.get(worker.id), worker.kv_tokens or _NO_LIMIT
        if view is None or view.capacity_tokens != capacity:
            self._leave_table(worker.id)
            space = BYTES.name if self.uses_keys else ""
            loading = loading_shares(worker.config.profile)
            self._placement.observe(Joined(worker.id, space, worker.kv_tokens, loading))
            if view is None:
                profile, num_slots = worker.config.profile, worker.config.num_slots
                view = InstanceView(worker.id, profile, capacity, num_slots, space)
            view.capacity_tokens = capacity
            self.table.join(view)
            self._offline.machine.join(view)
        self.refresh(worker)

    def leave(self, worker: WorkerId) -> None:
        """Let the policy choose a worker no more; what runs there goes on."""
        self._leave_table(worker)
        self._offline.machine.leave(worker)

    def _leave_table(self, worker: WorkerId) -> None:
        self._reports.forget(worker)
        if self.table.get(worker) is not None:
            self._placement.observe(Left(worker))
            self.table.leave(worker)

    def forget(self, worker: Worker) -> None:
        """Forget what a worker was believed to hold in its cache, because that is empty."""
        if self.uses_keys and self.table.get(worker.id) is not None:
            self._placement.observe(Emptied(worker.id))

    def refresh(self, worker: Worker) -> None:
        """Bring the view of a worker in step with its state and its trial."""
        num_slots = worker.num_slots
        if (view := self.table.get(worker.id)) is not None:
            view.probe_s = worker.probe_s
            if (view.state, view.num_slots) != (worker.state, num_slots):
                view.state, view.num_slots = worker.state, num_slots
                self.table.changed(worker.id)

    def choose(
        self, request: PlacementRequest, now_s: float, among: Collection[WorkerId] | None = None
    ) -> Choice | None:
        """Return the worker that the policy chooses for a request, among some or all; None if it has to
        wait.
        """
        if request.purpose.preference == "offline":
            return self.offline.choose(request, among, now_s)
        while self._prefill_ends and self._prefill_ends[0][0] <= now_s:  # whole answers do not tell theirs
            _, ticket = heappop(self._prefill_ends)
            running = self._running.get(ticket)
            if running is not None and running.sent_s + running.first_s <= now_s:
                self.first_byte(running, now_s)
        table = self.table
        if among is not None:
            table = InstanceTable(self._placement.load, with_full=self._is_early)
            for view in self.table:
                if view.id in among:
                    table.join(view)
        choice = self._placement.choose(request, table, now_s)
        if choice is None or not choice.held_tokens:
            return choice
        if choice.held_tokens == request.hints.get(choice.instance):
            return choice  # reported by the worker itself
        held_tokens = self._correction.of(choice.held_tokens, request.num_tokens)
        return Choice(choice.instance, held_tokens, choice.terms, choice.reason)

    def start(
        self, ticket: Ticket, request: PlacementRequest, choice: Choice, now_s: float, model: str = ""
    ) -> RunningAtWorker:
        """Count a request for a model as running at the worker of `choice`."""
        view = self.table.get(choice.instance)
        assert view is not None, "requests are sent to workers in the table"
        self._offline.started(ticket, request, choice, now_s)
        if is_offline_request(request):
            running = RunningAtWorker(ticket, view.id, request, now_s, 0, 0.0, 0.0, model, is_offline=True)
            self._running[ticket] = running
            return running
        self._placement.observe(Dispatched(choice.instance, request, now_s))
        prefill_s = view.profile.batch_s(max(0, request.num_tokens - choice.held_tokens))
        first_s = view.prefill_left_s(now_s) + prefill_s
        if view.num_running == view.num_decoding:
            view.prefill_from_s = now_s
        running = RunningAtWorker(
            ticket, view.id, request, now_s, choice.held_tokens, prefill_s, first_s, model
        )
        self._running[ticket] = running
        heappush(self._prefill_ends, (now_s + running.first_s, ticket))
        self._change(view, 1, request.all_tokens, prefill_s)
        return running

    def first_byte(self, running: RunningAtWorker, now_s: float) -> None:
        """Note that an answer has begun: its prefill is over."""
        if running.is_decoding or running.is_offline:
            return
        running.is_decoding = True
        if (view := self.table.get(running.worker)) is not None:
            view.num_decoding += 1
            view.prefill_from_s = now_s
            self._change(view, 0, 0, -running.prefill_s)

    def end(
        self,
        running: RunningAtWorker,
        usage: WorkerUsage,
        now_s: float,
        *,
        is_timed: bool,
        was_refused: bool = False,
    ) -> None:
        """Take a request off the load of its worker, and learn from what was reported of it.

        Args:
            usage: believable counts, or none.
            is_timed: whether its time tells how fast the worker is.
            was_refused: whether the worker has answered with an error.
        """
        del self._running[running.ticket]
        num_timed = usage.num_output if is_timed else None
        ticket, worker = running.ticket, running.worker
        self._offline.ended(ticket, worker, running.placed, num_timed, now_s)
        num_cached = self._reports.num_cached(running.worker, usage)
        if usage.num_output is not None:
            self.outputs.learn(running.model, usage.num_output)
        if running.is_offline:
            return
        self._placement.observe(Ended(running.worker, running.placed, num_cached, was_refused))
        if num_cached is not None:
            self._correction.learn(running.held_tokens, num_cached)
        if (view := self.table.get(running.worker)) is None:
            return
        if self._is_early and is_timed and usage.num_output is not None:
            _learn_slowness(view, running, usage.num_output, now_s)
        view.num_decoding -= running.is_decoding
        prefill_s = 0.0 if running.is_decoding else running.prefill_s
        self._change(view, -1, -running.placed.all_tokens, -prefill_s)

    def wait(self, worker: WorkerId, request: PlacementRequest, seconds: float, num: int) -> None:
        """Add a request to those that wait for a worker (`num` is 1), or take it off them (-1).

        `seconds` is the predicted time by which it delays the next one.
        """
        if (view := self.table.get(worker)) is not None:
            view.num_waiting += num
            view.waiting_tokens += num * request.all_tokens
            view.waiting_s = max(0.0, view.waiting_s + num * seconds) if view.num_waiting else 0.0
            self.table.changed(worker)

    def check_invariants(self) -> None:
        """Check that the loads are the sums of what runs. For tests."""
        self.offline.check_invariants()
        for view in self.table:
            all_running = [one for one in self._running.values() if one.worker == view.id]
            running = [one for one in all_running if not one.is_offline]
            offline_tokens = sum(one.placed.all_tokens for one in all_running if one not in running)
            assert view.offline_tokens == offline_tokens
            assert view.num_running == len(running)
            assert view.num_decoding == sum(one.is_decoding for one in running)
            assert view.running_tokens == sum(one.placed.all_tokens for one in running)
            predicted_s = sum(one.prefill_s for one in running if not one.is_decoding)
            assert abs(view.prefill_s - predicted_s) < 1e-6

    def _change(self, view: InstanceView, num: int, num_tokens: int, prefill_s: float) -> None:
        view.num_running += num
        view.running_tokens += num_tokens
        view.prefill_s = max(0.0, view.prefill_s + prefill_s) if view.num_running else 0.0
        view.expected_output = self.outputs.of_all.expected
        self.table.changed(view.id)


def has_room(view: InstanceView | None, request: PlacementRequest) -> bool:
    """Return whether a request fits at a worker now; not if the policy may not choose it."""
    if view is None:
        return False
    if view.state == "suspect":
        return not view.num_running
    return view.state == "serving" and view.room_tokens >= max(
        1, min(request.all_tokens, view.capacity_tokens)
    )


def _learn_slowness(view: InstanceView, running: RunningAtWorker, num_output: int, now_s: float) -> None:
    predicted_s = running.first_s + num_output * view.profile.decode_s(view.num_running)
    if predicted_s > 0:
        least, most = _SLOWNESS
        ratio = min(most, max(least, (now_s - running.sent_s) / predicted_s))
        view.slowness += _SLOWNESS_WEIGHT * (ratio - view.slowness)
