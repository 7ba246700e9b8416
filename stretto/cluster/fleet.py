"""The instances of one engine from start to end, as a state machine without IO.

Rules:

- A replica that is added gets a *slot*. A slot has one instance at a time. When that instance is lost
  without having been drained, the slot gets a new one, with a new id, after the delay of its
  `RestartBudget`. A slot is given up when its starts keep failing, or when a `UserError` ended its instance.
- An instance that waits for its delay is `starting` already, so that it can be drained. `StartInstance` is
  returned when the delay is over, once per id.
- A start is measured from `StartInstance` until the instance is ready. One that takes no time is no
  measurement: the first instances of a simulation are ready at once.
- A start that takes longer than `Replica.start_timeout_s` counts as lost, and the driver is told to kill it.
- A suspect instance is to get one request at a time, from its `probe_s` on, which each further suspicion
  moves: so a server that refuses everything does not use up the attempts of every request. `ready` ends
  this. `InstanceTable` keeps to it. Suspicions before `probe_s`, as by requests that ran when it went down,
  are one.
- An instance may be `ready` on trial, where a check alone says that it is up. Its suspicions are forgotten
  when it has answered.
- Draining: "finish" stops the instance when it is told to be `idle`, "suspend" at once. An instance that was
  not up yet is killed, and gone. A draining instance that is lost is not restarted.

Transitions of instances stand in `transitions.py`. Methods take the time and return actions; a driver or a
scheduler calls `expire` when `next_due_s` has come.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count

from stretto.cluster.messages import DrainHow, FleetAction, InstanceId, StartInstance, StopHow, StopInstance
from stretto.cluster.transitions import TRANSITIONS, Event, RestartBudget, State, delay_s, next_state
from stretto.model.errors import (
    ConfigError,
    EngineTimeout,
    EngineUnavailable,
    InternalError,
    StrettoError,
    UserError,
)
from stretto.model.replica import Replica

_HISTORY = 16
_LOADING_TIMES = 2.0
"""Times that a start may take what is known of its length while requests wait for it."""


@dataclass(slots=True)
class _Slot:
    number: int
    replica: Replica
    budget: RestartBudget = field(default_factory=RestartBudget)


@dataclass(slots=True)
class _Member:
    """An instance that is not gone.

    Attributes:
        due_s: when it is to be started, or when its start has taken too long; None afterwards.
        started_s: when the driver was told to start it; None before.
        has_served: whether it was ready at some time.
        num_suspected: number of suspicions since it was last ready.
        probe_s: when it may take a request again, if it is suspect.
        drain: how it drains, if it does.
        stop: how the driver has been told to stop it, if it has been.
    """

    slot: _Slot
    due_s: float | None
    started_s: float | None = None
    has_served: bool = False
    num_suspected: int = 0
    probe_s: float = -math.inf
    drain: DrainHow | None = None
    stop: StopHow | None = None
    history: deque[str] = field(default_factory=lambda: deque(maxlen=_HISTORY))

    @property
    def is_started(self) -> bool:
        """Whether the driver has been told to start the instance."""
        return self.started_s is not None


class Fleet:
    """The instances of one engine: a state machine that starts, restarts, drains and gives up instances.

    Methods return actions for the runtime or the simulator to carry out. (`transitions.py` has the states.)

    Args:
        engine: name of the engine.
        ids: source of instance ids, which are unique within the engine and never used again.

    Attributes:
        state: state of every instance there ever was.
        last_error: error with which the last instance was lost, for messages to callers that wait.
    """

    def __init__(self, engine: str, ids: count[int]) -> None:
        self.engine = engine
        self.state: dict[InstanceId, State] = {}
        self.last_error: StrettoError | None = None
        self._ids = ids
        self._slots = count()
        self._members: dict[InstanceId, _Member] = {}
        self._measured: list[tuple[Replica, float]] = []
        self._in: dict[State, dict[InstanceId, None]] = {state: {} for state in TRANSITIONS}

    def add(self, replica: Replica, now_s: float) -> list[FleetAction]:
        """Add a replica and start its first instance; return a list with the action that starts it."""
        return self._begin(_Slot(next(self._slots), replica), 0.0, now_s)

    def ready(self, instance: InstanceId, now_s: float, *, on_trial: bool = False) -> None:
        """Mark an instance as serving: it has started, or it was suspect and has answered.

        An instance that is draining or gone stays so. `on_trial` says that it has only passed a check, so
        that its suspicions count until it answers a request.
        """
        if self._move(instance, "ready", now_s) == "serving":
            member = self._members[instance]
            if not member.has_served and member.started_s is not None and now_s > member.started_s:
                self._measure(member.slot.replica, now_s - member.started_s)
            member.due_s = None
            member.has_served = True
            if not on_trial:
                member.num_suspected, member.probe_s = 0, -math.inf

    def answered(self, instance: InstanceId) -> None:
        """Reset the failure counts of an instance's replica, which delay its restarts, because the instance
        has answered a request; and what is left of its suspicions, if it serves.
        """
        if (member := self._members.get(instance)) is not None:
            member.slot.budget.answered()
            if member.num_suspected and self.state[instance] == "serving":
                member.num_suspected, member.probe_s = 0, -math.inf

    def suspected(self, instance: InstanceId, reason: str, now_s: float, rest_s: float = 0.0) -> None:
        """Mark an instance as suspect, because it refused a request or did not answer and may be down.

        It may be tried again after a delay, which grows with each suspicion, and not before the `rest_s`
        seconds are over for which it asked to be left alone.
        """
        if self._move(instance, "suspected", now_s, reason) == "suspect":
            self.last_error = EngineUnavailable(reason)
            member = self._members[instance]
            if now_s >= member.probe_s:
                member.num_suspected += 1
                member.probe_s = now_s + delay_s(member.num_suspected)
            member.probe_s = max(now_s + rest_s, member.probe_s)

    def lost(self, instance: InstanceId, error: StrettoError, now_s: float) -> list[FleetAction]:
        """Record that an instance died or could not be started; return the actions that start a new instance
        in its place.

        No instance is started if the lost one was draining, or if its replica is given up: its starts keep
        failing, or the user's mistake (`UserError`) ended it.
        """
        is_draining = self._known(instance) == "draining"
        if self.state[instance] != "gone":
            self.last_error = error
        if self._move(instance, "lost", now_s, str(error)) != "gone" or instance not in self._members:
            return []
        member = self._members.pop(instance)
        if is_draining or isinstance(error, UserError):
            return []
        wait_s = member.slot.budget.take(has_started=member.has_served)
        return [] if wait_s is None else self._begin(member.slot, wait_s, now_s)

    def give_up(self, instance: InstanceId, error: StrettoError, now_s: float) -> list[FleetAction]:
        """Kill an instance that does not answer, and start a new one in its place; return the actions to
        carry out.

        Nothing happens if the instance is gone already.
        """
        if self._known(instance) == "gone":
            return []
        member = self._members[instance]
        stop = self._stop(instance, "kill") if member.is_started and member.stop != "kill" else []
        return [*stop, *self.lost(instance, error, now_s)]

    def drain(self, instance: InstanceId, how: DrainHow, now_s: float) -> list[FleetAction]:
        """Give an instance no more work, and stop it: when it is idle (`how` is "finish") or at once
        ("suspend").

        Returns the actions to carry out.

        Raises:
            ConfigError: there is no such instance, or it is draining or gone.
        """
        self.check_drain(instance)
        state = self.state[instance]
        member = self._members[instance]
        self._move(instance, "drain", now_s, how)
        member.drain = how
        member.due_s = None
        if not member.is_started:
            self._move(instance, "lost", now_s, "not started")
            del self._members[instance]
            return []
        if state == "starting":
            actions = self._stop(instance, "kill")
            self._move(instance, "lost", now_s, "drained before it was ready")
            del self._members[instance]
            return actions
        return self._stop(instance, "suspend") if how == "suspend" else []

    def check_drain(
        self, instance: InstanceId, *, force: bool = True, leaving: Collection[InstanceId] = ()
    ) -> None:
        """Check that an instance can be drained, that is, get no more work and then be stopped.

        Args:
            force: whether the instance may be the last one of its engine.
            leaving: instances that are going to be drained anyway, so that they do not count as others.

        Raises:
            ConfigError: there is no such instance, it is draining or gone, or it is the last one.
        """
        state = self.state.get(instance)
        if state is None or state in ("draining", "gone"):
            known = ", ".join(str(i) for i in self._members if self.state[i] != "draining") or "none"
            what = "unknown" if state is None else f"{state} already"
            raise ConfigError(
                f"engine {self.engine!r}: instance {instance} is {what}; instances to drain: {known}"
            )
        staying = (i for i in self._members if self.state[i] != "draining" and i not in leaving)
        if not force and all(i == instance for i in staying):
            raise ConfigError(
                f"engine {self.engine!r}: instance {instance} is the last one, and nobody would do its work; "
                "add a replica first, or drain it with force"
            )

    def idle(self, instance: InstanceId) -> list[FleetAction]:
        """Handle that nothing runs on an instance any more: stop the instance if it is draining (to be
        stopped after its last work), otherwise do nothing. Returns the actions to carry out.
        """
        member = self._members.get(instance)
        if member is None or member.drain is None or member.stop is not None:
            return []
        return self._stop(instance, "finish")

    def stopped(self, instance: InstanceId, now_s: float) -> None:
        """Remove an instance that has ended as it was told to, after draining."""
        member = self._members.get(instance)
        if member is not None and member.drain is not None and member.stop is None:
            raise InternalError(f"{self.engine}/{instance} says it has stopped; it was not told to stop yet")
        self._move(instance, "stopped", now_s)
        self._members.pop(instance, None)

    def expire(self, now_s: float) -> list[FleetAction]:
        """Start instances whose waiting time before a restart is over, and give up those whose start takes
        too long.

        Returns the actions to carry out. Call it at the time that `next_due_s` returns.
        """
        actions: list[FleetAction] = []
        for instance in list(self._in["starting"]):
            member = self._members[instance]
            if member.due_s is None or member.due_s > now_s:
                continue
            if member.is_started:
                timeout_s = member.slot.replica.start_timeout_s
                error = EngineTimeout(f"{self.engine}/{instance} was not ready in {timeout_s:g} s")
                actions += self.give_up(instance, error, now_s)
            else:
                actions += self._start(instance, now_s)
        return actions

    def next_due_s(self) -> float | None:
        """Return the next time at which an instance is to be started, or its start has taken too long; None
        if there is none.

        `expire` must be called then.
        """
        dues = (self._members[instance].due_s for instance in self._in["starting"])
        return min((due_s for due_s in dues if due_s is not None), default=None)

    def probe_s(self, instance: InstanceId) -> float:
        """Return the time at which a suspect instance may be tried with a request."""
        return self._members[instance].probe_s

    def replica(self, instance: InstanceId) -> Replica:
        """Return the replica (description of model, place and devices) that an instance runs. The instance
        must not be gone.
        """
        return self._members[instance].slot.replica

    def slot(self, instance: InstanceId) -> int:
        """Return the number of the slot that an instance is in, as the instances before it were that it
        replaced. The instance must not be gone.
        """
        return self._members[instance].slot.number

    def loading_s(self, replica: Replica) -> float | None:
        """Return how many seconds the last start of a replica took; before the first
        start, the predicted seconds, or None if there is no prediction.
        """
        return next((seconds for known, seconds in self._measured if known == replica), replica.loading_s)

    def wait_s(self, recover_s: float) -> float:
        """Return how many seconds requests wait for an instance that is starting or suspect: `recover_s`, or
        more if one of these needs longer to load. A start may take twice what was predicted for it, and twice
        what the last one took.
        """
        replicas = (self.replica(instance) for instance in (*self._in["starting"], *self._in["suspect"]))
        known_s = (seconds for one in replicas for seconds in (one.loading_s, self.loading_s(one)))
        return max(recover_s, _LOADING_TIMES * max((one for one in known_s if one is not None), default=0.0))

    @property
    def live(self) -> tuple[InstanceId, ...]:
        """Ids of the instances that are not gone and so still hold their devices, oldest first."""
        return tuple(self._members)

    @property
    def serving(self) -> tuple[InstanceId, ...]:
        """Ids of the instances that are up and take work, in the order in which they came up."""
        return tuple(self._in["serving"])

    @property
    def suspects(self) -> tuple[InstanceId, ...]:
        """Ids of the instances that may be down and get one request at a time to find out, in the order in
        which they were suspected.
        """
        return tuple(self._in["suspect"])

    @property
    def is_hopeful(self) -> bool:
        """Whether some instance that does not serve now may serve later: one that is starting, or suspect."""
        return bool(self._in["starting"] or self._in["suspect"])

    def check_invariants(self) -> None:
        """Check that the tables of instances, states and replicas agree. Tests call it after every event."""
        assert list(self._members) == [i for i, state in self.state.items() if state != "gone"]
        for state, instances in self._in.items():
            assert set(instances) == {i for i in self._members if self.state[i] == state}
        slots = [id(member.slot) for member in self._members.values() if member.drain is None]
        assert len(slots) == len(set(slots)), "a replica has one instance at a time"
        for instance, member in self._members.items():
            state = self.state[instance]
            assert (member.due_s is not None) == (state == "starting")
            assert (member.drain is not None) == (state == "draining")
            assert member.has_served or state not in ("serving", "suspect")
            assert member.is_started or state == "starting"
            assert member.stop is None or state == "draining"

    def _begin(self, slot: _Slot, wait_s: float, now_s: float) -> list[FleetAction]:
        instance = next(self._ids)
        self._enter(instance, "starting")
        self._members[instance] = _Member(slot, now_s + wait_s)
        return [] if wait_s else self._start(instance, now_s)

    def _start(self, instance: InstanceId, now_s: float) -> list[FleetAction]:
        member = self._members[instance]
        member.started_s = now_s
        member.due_s = now_s + member.slot.replica.start_timeout_s
        return [StartInstance(self.engine, instance, member.slot.replica)]

    def _measure(self, replica: Replica, seconds: float) -> None:
        others = [(known, known_s) for known, known_s in self._measured if known != replica]
        self._measured = [*others, (replica, seconds)]

    def _stop(self, instance: InstanceId, how: StopHow) -> list[FleetAction]:
        self._members[instance].stop = how
        return [StopInstance(self.engine, instance, how)]

    def _move(self, instance: InstanceId, event: Event, now_s: float, note: str = "") -> State:
        before = self._known(instance)
        member = self._members.get(instance)
        history = member.history if member is not None else ()
        after = next_state(instance, before, event, tuple(history))
        if member is not None:
            member.history.append(f"{now_s:g} s: {event} ({before} to {after}){note and ': ' + note}")
        if after != before:
            del self._in[before][instance]
            self._enter(instance, after)
        return after

    def _enter(self, instance: InstanceId, state: State) -> None:
        self.state[instance] = state
        if state != "gone":
            self._in[state][instance] = None

    def _known(self, instance: InstanceId) -> State:
        try:
            return self.state[instance]
        except KeyError:
            raise InternalError(f"engine {self.engine!r} has no instance {instance}") from None
