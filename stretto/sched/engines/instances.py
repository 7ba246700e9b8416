"""The instances of one engine as its scheduler sees them: the fleet, and how long requests wait while none
serves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count

from stretto.cluster.fleet import Fleet
from stretto.cluster.messages import DrainHow, FleetAction, InstanceId
from stretto.model.errors import EngineUnavailable, StrettoError
from stretto.model.replica import Engine, Replica
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.queries.request import QueueEntry
from stretto.sched.queries.results import Completed, failed


class EngineInstances:
    """The running copies (instances) of one engine as its scheduler sees them, and the time since which none
    of them serves. While no instance serves, requests wait, and then fail: after `recover_s` seconds, or more
    if loading takes longer (`Fleet.wait_s`), if an instance is starting or suspect (perhaps down, but it may
    come back), after `no_replica_s` seconds otherwise. A request whose query has a deadline waits until the
    deadline as long as an instance is starting or suspect.

    Attributes:
        fleet: the states of all instances. Callers change it by the methods of this class alone, but for what
            `Fleet.answered` and `Fleet.idle` note.
        may_fail_waiting: whether `fail_waiting` may have something to do, and `next_due_s` something to
            return; False while all is well.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.fleet = Fleet(engine.name, count())
        self._unserved_s: float | None = -math.inf
        self._hopeless_s: float | None = -math.inf
        self._wait_s = engine.recover_s
        self._has_changed = False
        self.may_fail_waiting = True

    def add(self, replica: Replica, now_s: float) -> list[FleetAction]:
        """Start an instance of one more replica; return the action to carry out."""
        actions = self.fleet.add(replica, now_s)
        self._note(now_s)
        return actions

    def ready(self, instance: InstanceId, now_s: float) -> bool:
        """Mark an instance as serving; return whether this is new, that is, whether it did not serve
        before.
        """
        before = self.fleet.state.get(instance)
        self.fleet.ready(instance, now_s)
        self._note(now_s)
        return self.fleet.state[instance] == "serving" and before != "serving"

    def suspected(self, instance: InstanceId, reason: str, now_s: float, rest_s: float = 0.0) -> bool:
        """Mark an instance as suspect, that is, perhaps down, and to be left alone for `rest_s` seconds.
        Returns False, and changes nothing, if the instance was neither serving nor suspect.
        """
        if self.fleet.state.get(instance) not in ("serving", "suspect"):
            return False
        self.fleet.suspected(instance, reason, now_s, rest_s)
        self._note(now_s)
        return True

    def lost(self, instance: InstanceId, error: StrettoError, now_s: float) -> list[FleetAction]:
        """Record that an instance is gone; return the actions that start a new instance in its place, if
        there is to be one.
        """
        actions = self.fleet.lost(instance, error, now_s)
        self._note(now_s)
        return actions

    def give_up(self, instance: InstanceId, error: StrettoError, now_s: float) -> list[FleetAction]:
        """Kill an instance that does not answer, and start a new one in its place; return the actions to
        carry out.
        """
        actions = self.fleet.give_up(instance, error, now_s)
        self._note(now_s)
        return actions

    def drain(self, instance: InstanceId, how: DrainHow, now_s: float) -> list[FleetAction]:
        """Give an instance no more work, and stop it when it is idle (`how` is "finish") or at once
        ("suspend"); return the actions to carry out.

        Nothing happens if the instance is draining or gone already.
        """
        if self.fleet.state.get(instance) in ("draining", "gone"):
            return []
        actions = self.fleet.drain(instance, how, now_s)
        self._note(now_s)
        return actions

    def stopped(self, instance: InstanceId, now_s: float) -> None:
        """Remove an instance that has ended as it was told to, after draining."""
        self.fleet.stopped(instance, now_s)
        self._note(now_s)

    def expire(self, now_s: float) -> list[FleetAction]:
        """Start instances whose waiting time before a restart is over, and give up instances whose start
        takes too long; return the actions to carry out.
        """
        actions = self.fleet.expire(now_s)
        self._note(now_s)
        return actions

    def next_due_s(self, queue: EngineQueue, now_s: float) -> float | None:
        """Return the next time, after now, at which the engine's scheduler must be woken; None if there is
        none.

        That is when an instance is to be started or its start has taken too long, when a suspect instance
        may be tried again, or when a request of `queue` has waited too long for an
        instance.
        """
        if self._unserved_s is None and not self.fleet.is_hopeful:
            return None
        dues = [self.fleet.next_due_s(), *map(self.fleet.probe_s, self.fleet.suspects)]
        if self._unserved_s is not None and (oldest := queue.ages.oldest()) is not None:
            dues.append(self._limit_s(oldest))
        return min((due_s for due_s in dues if due_s is not None and now_s < due_s < math.inf), default=None)

    def fail_waiting(
        self, queue: EngineQueue, now_s: float, has_deadline: Callable[[str], bool]
    ) -> list[Completed]:
        """Remove from `queue` the requests that have waited too long because no instance serves; return
        reports of their failures.

        `has_deadline` says whether a query has a deadline: then its requests wait on, as long
        as an instance is starting or suspect.
        """
        if self._has_changed:
            self._has_changed = False
            queue.ages.forget()
            self._note_trouble()
        if self._unserved_s is None:
            return []
        late: list[Completed] = []
        while (entry := queue.ages.oldest()) is not None and self._limit_s(entry) <= now_s:
            queue.ages.pass_over_oldest()
            if self._hopeless_s is None and has_deadline(entry.query):
                continue
            late.append(failed(entry.request, entry.lo, entry.hi, self._unavailable()))
            queue.remove(entry)
        return late

    def _limit_s(self, entry: QueueEntry) -> float:
        assert self._unserved_s is not None
        if self._hopeless_s is not None:
            return max(entry.arrival_s, self._hopeless_s) + self._engine.no_replica_s
        return max(entry.arrival_s, self._unserved_s) + self._wait_s

    def _unavailable(self) -> StrettoError:
        last = self.fleet.last_error
        why = f"the last one was lost: {last}" if last is not None else "it has no replica"
        error = EngineUnavailable(f"engine {self._engine.name!r} has no instance that serves; {why}")
        error.__cause__ = last
        return error

    def _note(self, now_s: float) -> None:
        """Note since when no instance serves, and since when none can be expected to."""
        before = self._unserved_s, self._hopeless_s
        is_served = bool(self.fleet.serving)
        is_hopeless = not is_served and not self.fleet.is_hopeful
        has_new_hope = self._hopeless_s is not None and not is_hopeless
        if is_served:
            self._unserved_s = None
        elif self._unserved_s is None or has_new_hope:
            self._unserved_s = now_s
        if not is_served:
            self._wait_s = self.fleet.wait_s(self._engine.recover_s)
        if not is_hopeless:
            self._hopeless_s = None
        elif self._hopeless_s is None:
            self._hopeless_s = now_s
        self._has_changed = self._has_changed or before != (self._unserved_s, self._hopeless_s)
        self._note_trouble()

    def _note_trouble(self) -> None:
        is_well = self._unserved_s is None and not self.fleet.is_hopeful
        self.may_fail_waiting = self._has_changed or not is_well
