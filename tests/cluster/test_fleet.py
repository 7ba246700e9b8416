"""The life of instances: each event gives exactly these actions, and random events keep the rules."""

from __future__ import annotations

import pickle
import random
from itertools import count

import pytest
from support.replicas import replica

from stretto.cluster.fleet import Fleet
from stretto.cluster.messages import FleetAction, StartInstance, StopInstance
from stretto.cluster.transitions import MAX_FAILED_STARTS, delay_s
from stretto.model.errors import (
    ConfigError,
    EngineTimeout,
    EngineUnavailable,
    IllegalTransition,
    InternalError,
)

DIED = EngineUnavailable("it died")
ONE = replica(start_timeout_s=5)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet("llm", count())


def started(fleet: Fleet) -> int:
    """Add a replica whose instance is ready at time 0."""
    (start,) = fleet.add(ONE, 0.0)
    fleet.ready(start.instance, 0.0)
    return start.instance


def test_suspicions_during_a_delay_are_one(fleet: Fleet) -> None:
    instance = started(fleet)
    for _ in range(3):
        fleet.suspected(instance, "refused", 1.0)
    for _ in range(20):
        fleet.suspected(instance, "refused", 1.15)
    assert fleet.probe_s(instance) == pytest.approx(1.1 + 0.05 + 0.2 - 0.05, abs=0.2)
    fleet.suspected(instance, "wait", 1.15, rest_s=9.0)
    assert fleet.probe_s(instance) == 10.15


def test_an_instance_on_trial_is_suspected_for_longer_until_it_answers(fleet: Fleet) -> None:
    instance, now_s, delays = started(fleet), 0.0, []
    for _ in range(4):
        now_s += 50.0
        fleet.suspected(instance, "refused", now_s)
        delays.append(fleet.probe_s(instance) - now_s)
        fleet.ready(instance, now_s + 40.0, on_trial=True)
    assert delays == pytest.approx([delay_s(number) for number in (1, 2, 3, 4)])
    fleet.answered(instance)
    fleet.suspected(instance, "refused", now_s + 41.0)
    assert fleet.probe_s(instance) == now_s + 41.0


def test_an_added_replica_starts_and_serves(fleet: Fleet) -> None:
    assert fleet.add(ONE, 0.0) == [StartInstance("llm", 0, ONE)]
    assert fleet.state == {0: "starting"}
    assert fleet.is_hopeful
    assert list(fleet.serving) == []
    assert fleet.next_due_s() == 5
    fleet.ready(0, 1.0)
    assert fleet.serving == (0,)
    assert not fleet.is_hopeful
    assert fleet.next_due_s() is None
    assert fleet.replica(0) is ONE


def test_a_start_is_predicted_and_then_measured(fleet: Fleet) -> None:
    two = replica(loading_s=7.0)
    fleet.add(ONE, 0.0)
    fleet.add(two, 0.0)
    assert (fleet.loading_s(ONE), fleet.loading_s(two)) == (None, 7.0)
    fleet.ready(0, 3.0)
    fleet.ready(1, 4.0)
    fleet.suspected(0, "silent", 10.0)
    fleet.ready(0, 20.0)
    assert (fleet.loading_s(ONE), fleet.loading_s(two)) == (3.0, 4.0), "an answer to a probe is no start"
    fleet.lost(0, DIED, 20.0)
    assert fleet.loading_s(ONE) == 3.0
    fleet.ready(2, 22.0)
    assert fleet.loading_s(ONE) == 2.0
    fleet.lost(2, DIED, 30.0)
    fleet.ready(3, 30.0)
    assert fleet.loading_s(replica(start_timeout_s=5)) == 2.0, "of an equal replica, and not of no time"


def test_the_delay_before_a_start_is_not_measured(fleet: Fleet) -> None:
    started(fleet)
    instance = 0
    for _ in range(2):
        (start,) = fleet.lost(instance, DIED, 1.0) or fleet.expire(fleet.next_due_s() or 0.0)
        instance = start.instance
    begun_s = 1.0 + delay_s(2)
    fleet.ready(instance, begun_s + 2.0)
    assert fleet.loading_s(ONE) == pytest.approx(2.0)


def test_a_lost_instance_is_restarted_at_once_under_a_new_id(fleet: Fleet) -> None:
    assert fleet.lost(started(fleet), DIED, 1.0) == [StartInstance("llm", 1, ONE)]
    assert fleet.state == {0: "gone", 1: "starting"}
    assert fleet.last_error is DIED


def test_starts_that_fail_are_repeated_ever_later_and_not_for_ever(fleet: Fleet) -> None:
    actions = fleet.add(ONE, 0.0)
    now_s, waits = 0.0, []
    while actions:
        (start,) = actions
        assert isinstance(start, StartInstance)
        actions = fleet.lost(start.instance, DIED, now_s)
        if not actions and (due_s := fleet.next_due_s()) is not None:
            assert fleet.is_hopeful
            waits.append(due_s - now_s)
            assert fleet.expire(due_s - 0.01) == []
            now_s = due_s
            actions = fleet.expire(now_s)
        fleet.check_invariants()
    assert waits == pytest.approx([0.1 * 2**n for n in range(MAX_FAILED_STARTS - 1)])
    assert set(fleet.state.values()) == {"gone"}
    assert len(fleet.state) == 1 + MAX_FAILED_STARTS
    assert not fleet.is_hopeful


def test_the_delay_is_bounded() -> None:
    assert [delay_s(n) for n in (0, 1, 2, 3)] == [0, 0, 0.1, 0.2]
    assert delay_s(60) == 30


def test_an_instance_that_dies_while_it_serves_is_always_started_again(fleet: Fleet) -> None:
    """What killed it may be a request; failed starts in between count from the last one that served."""
    now_s, instance = 0.0, started(fleet)
    for _ in range(3):
        for is_ready in (True, *[False] * (MAX_FAILED_STARTS - 1)):
            if is_ready:
                fleet.ready(instance, now_s)
            actions = fleet.lost(instance, DIED, now_s)
            now_s = now_s if actions else fleet.next_due_s() or now_s
            (start,) = actions or fleet.expire(now_s)
            instance = start.instance
    assert fleet.state[instance] == "starting"


def test_restarts_without_an_answer_come_ever_later(fleet: Fleet) -> None:
    instance = started(fleet)
    assert fleet.lost(instance, DIED, 1.0)
    fleet.ready(1, 1.0)
    assert fleet.lost(1, DIED, 70.0) == []
    assert fleet.next_due_s() == pytest.approx(70.1)
    (start,) = fleet.expire(71.0)
    fleet.ready(start.instance, 71.0)
    assert fleet.lost(start.instance, DIED, 200.0) == []
    assert fleet.next_due_s() == pytest.approx(200.2)


def test_an_answer_forgets_earlier_failures(fleet: Fleet) -> None:
    instance = started(fleet)
    assert fleet.lost(instance, DIED, 1.0)
    fleet.ready(1, 1.0)
    fleet.answered(1)
    assert fleet.lost(1, DIED, 2.0) == [StartInstance("llm", 2, ONE)]
    fleet.answered(1)  # too late
    fleet.ready(2, 2.0)
    assert fleet.lost(2, DIED, 3.0) == []


def test_an_error_of_the_user_is_not_tried_again(fleet: Fleet) -> None:
    (start,) = fleet.add(ONE, 0.0)
    assert fleet.lost(start.instance, ConfigError("there is no such model"), 1.0) == []
    assert not fleet.is_hopeful


def test_a_start_that_takes_too_long_is_killed_and_repeated(fleet: Fleet) -> None:
    fleet.add(ONE, 0.0)
    assert fleet.expire(4.9) == []
    assert fleet.expire(5.0) == [StopInstance("llm", 0, "kill"), StartInstance("llm", 1, ONE)]
    assert isinstance(fleet.last_error, EngineTimeout)
    assert "5 s" in str(fleet.last_error)
    fleet.ready(0, 5.1)  # too late
    assert fleet.state[0] == "gone"


def test_a_suspect_may_take_a_request_ever_later(fleet: Fleet) -> None:
    instance = started(fleet)
    fleet.suspected(instance, "refused", 1.0)
    assert fleet.suspects == (instance,)
    assert fleet.is_hopeful
    assert fleet.probe_s(instance) == 1.0
    fleet.suspected(instance, "refused", 1.0)
    assert fleet.probe_s(instance) == pytest.approx(1.1)
    fleet.ready(instance, 2.0)
    assert fleet.serving == (instance,)
    fleet.suspected(instance, "refused", 3.0)
    assert fleet.probe_s(instance) == 3.0


def test_draining_finishes_first(fleet: Fleet) -> None:
    instance = started(fleet)
    assert fleet.drain(instance, "finish", 1.0) == []
    assert fleet.serving == fleet.suspects == ()
    assert fleet.idle(instance) == [StopInstance("llm", instance, "finish")]
    assert fleet.idle(instance) == []
    fleet.stopped(instance, 2.0)
    assert fleet.state == {instance: "gone"}
    assert fleet.live == ()


def test_draining_suspends_at_once(fleet: Fleet) -> None:
    instance = started(fleet)
    assert fleet.drain(instance, "suspend", 1.0) == [StopInstance("llm", instance, "suspend")]
    assert fleet.idle(instance) == []


def test_an_instance_that_starts_is_drained_without_waiting(fleet: Fleet) -> None:
    (start,) = fleet.add(ONE, 0.0)
    assert fleet.drain(start.instance, "finish", 1.0) == [StopInstance("llm", start.instance, "kill")]
    fleet.ready(start.instance, 1.1)  # it crossed the drain
    assert fleet.state[start.instance] == "gone"
    assert fleet.live == (), "it holds no devices"


def test_an_instance_that_waits_for_its_restart_can_be_drained(fleet: Fleet) -> None:
    fleet.lost(started(fleet), DIED, 0.0)
    fleet.lost(1, DIED, 0.0)
    assert fleet.drain(2, "finish", 0.0) == []
    assert fleet.state[2] == "gone"
    assert fleet.next_due_s() is None


def test_a_draining_instance_that_dies_is_not_restarted(fleet: Fleet) -> None:
    instance = started(fleet)
    fleet.drain(instance, "finish", 1.0)
    assert fleet.lost(instance, DIED, 2.0) == []
    assert not fleet.is_hopeful


def test_an_instance_that_is_given_up_is_killed(fleet: Fleet) -> None:
    instance = started(fleet)
    actions = fleet.give_up(instance, DIED, 1.0)
    assert actions == [StopInstance("llm", instance, "kill"), StartInstance("llm", 1, ONE)]
    assert fleet.give_up(instance, DIED, 1.0) == []


def test_what_cannot_be_drained_is_refused(fleet: Fleet) -> None:
    first, second = started(fleet), started(fleet)
    with pytest.raises(ConfigError, match="instance 7 is unknown; instances to drain: 0, 1"):
        fleet.drain(7, "finish", 0.0)
    fleet.drain(first, "finish", 0.0)
    with pytest.raises(ConfigError, match=f"is draining already; instances to drain: {second}$"):
        fleet.drain(first, "suspend", 0.0)
    fleet.lost(first, DIED, 0.0)
    with pytest.raises(ConfigError, match="is gone already"):
        fleet.drain(first, "finish", 0.0)


def test_the_last_instance_is_drained_with_force_alone(fleet: Fleet) -> None:
    first, second = started(fleet), started(fleet)
    fleet.check_drain(first, force=False)
    fleet.drain(second, "finish", 0.0)
    with pytest.raises(
        ConfigError, match=r"instance 0 is the last one, .*; add a replica first, or drain it w"
    ):
        fleet.check_drain(first, force=False)
    fleet.check_drain(first)
    fleet.add(ONE, 0.0)
    fleet.check_drain(first, force=False)


def test_an_illegal_transition_tells_its_story(fleet: Fleet) -> None:
    instance = started(fleet)
    fleet.suspected(instance, "refused", 1.0)
    with pytest.raises(IllegalTransition) as raised:
        fleet.stopped(instance, 2.0)
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.instance, error.state, error.event) == (instance, "suspect", "stopped")
    assert error.history == (
        "0 s: ready (starting to serving)",
        "1 s: suspected (serving to suspect): refused",
    )
    assert "legal are ready, suspected, drain, lost" in str(error)
    with pytest.raises(InternalError, match="has no instance 9"):
        fleet.ready(9, 0.0)
    fleet.drain(instance, "finish", 3.0)
    with pytest.raises(InternalError, match="not told to stop"):
        fleet.stopped(instance, 3.0)


def test_late_messages_of_a_dead_instance_change_nothing(fleet: Fleet) -> None:
    instance = started(fleet)
    fleet.lost(instance, DIED, 0.0)
    before = dict(fleet.state)
    fleet.ready(instance, 1.0)
    fleet.suspected(instance, "refused", 1.0)
    fleet.stopped(instance, 1.0)
    assert fleet.lost(instance, EngineUnavailable("again"), 1.0) == []
    assert fleet.idle(instance) == []
    assert fleet.state == before
    assert fleet.last_error is DIED


class World:
    """Random events at two fleets that share their ids, with the driver's side of every start and stop."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        ids = count()
        self.fleets = [Fleet("a", ids), Fleet("b", ids)]
        self.now_s = 0.0
        self.running: dict[int, tuple[Fleet, bool]] = {}  # what the driver has started, and whether it is up
        self.stopping: dict[int, tuple[Fleet, str]] = {}
        self.started: list[int] = []
        self.ended: set[int] = set()
        self.trace: list[list[FleetAction]] = []

    def do(self, fleet: Fleet, actions: list[FleetAction]) -> None:
        self.trace.append(actions)
        for action in actions:
            assert action.engine == fleet.engine
            match action:
                case StartInstance(instance=instance):
                    assert instance not in self.started, "an id was reused"
                    self.started.append(instance)
                    self.running[instance] = fleet, False
                case StopInstance(instance=instance, how=how):
                    assert instance in self.running, "what does not run cannot be stopped"
                    _, before = self.stopping.get(instance, (fleet, ""))
                    assert not before or (how == "kill" and before != "kill"), "it was told to stop already"
                    self.stopping[instance] = fleet, how
                    assert how == "kill" or self.running[instance][1]

    def end(self, instance: int) -> None:
        self.running.pop(instance)
        self.stopping.pop(instance, None)
        self.ended.add(instance)

    def step(self, *, may_add: bool) -> None:
        draw = self.random
        self.now_s += draw.choice((0.0, 0.05, 1.0, 20.0))
        fleet = draw.choice(self.fleets)
        kind = draw.choice(
            ("add", "ready", "lost", "suspected", "drain", "stopped", "idle", "late", "give_up")
        )
        mine = [i for i, (of, _) in self.running.items() if of is fleet]
        up = [i for i in mine if self.running[i][1]]
        match kind:
            case "add" if may_add and len(fleet.live) < 4:
                self.do(fleet, fleet.add(replica(start_timeout_s=draw.choice((1, 50))), self.now_s))
            case "ready" if mine:
                instance = draw.choice(mine)
                self.running[instance] = fleet, True
                fleet.ready(instance, self.now_s)
            case "lost" if mine:
                instance = draw.choice(mine)
                self.end(instance)
                self.do(fleet, fleet.lost(instance, DIED, self.now_s))
            case "suspected" if up:
                fleet.suspected(draw.choice(up), "refused", self.now_s)
            case "drain" if fleet.live:
                instance = draw.choice(fleet.live)
                if fleet.state[instance] != "draining":
                    self.do(fleet, fleet.drain(instance, draw.choice(("finish", "suspend")), self.now_s))
            case "stopped" if stopping := [i for i in self.stopping if self.stopping[i][0] is fleet]:
                instance = draw.choice(stopping)
                self.end(instance)
                fleet.stopped(instance, self.now_s)
            case "idle" if mine:
                self.do(fleet, fleet.idle(draw.choice(mine)))
            case "give_up" if up:
                self.do(fleet, fleet.give_up(draw.choice(up), DIED, self.now_s))
            case "late" if late := sorted(self.ended & set(fleet.state)):
                draw.choice((fleet.ready, fleet.stopped))(draw.choice(late), self.now_s)
        for each in self.fleets:
            if (due_s := each.next_due_s()) is not None and due_s <= self.now_s:
                self.do(each, each.expire(self.now_s))
            each.check_invariants()

    def finish(self) -> None:
        """Drain everything; the driver then ends all that it was told to."""
        for fleet in self.fleets:
            for instance in fleet.live:
                if fleet.state[instance] != "draining":
                    self.do(fleet, fleet.drain(instance, "finish", self.now_s))
                self.do(fleet, fleet.idle(instance))
        for instance, (fleet, _) in list(self.stopping.items()):
            self.end(instance)
            fleet.stopped(instance, self.now_s)
            fleet.check_invariants()
        assert self.running == {}
        assert set(self.started) == self.ended, "a start that never ended"
        assert all(set(fleet.state.values()) <= {"gone"} for fleet in self.fleets)


@pytest.mark.parametrize("block", range(10))
def test_random_lives_end_and_reuse_no_id(block: int) -> None:
    for seed in range(50 * block, 50 * (block + 1)):
        world = World(seed)
        for step in range(120):
            world.step(may_add=step < 90)
        world.finish()
        ids = [set(fleet.state) for fleet in world.fleets]
        assert not ids[0] & ids[1], f"seed {seed}"


def test_the_same_events_give_the_same_actions() -> None:
    traces = []
    for _ in range(2):
        world = World(3)
        for _ in range(200):
            world.step(may_add=True)
        traces.append([[(type(a), a.instance) for a in actions] for actions in world.trace])
    assert traces[0] == traces[1]
