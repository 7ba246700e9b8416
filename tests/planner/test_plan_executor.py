"""Plans are carried out: replicas come and go in their order, and every plan ends."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from stretto.planner.application import Application, ModelNode
from stretto.planner.plan import Plan, PlannedReplica, Stage
from stretto.planner.running.plan_executor import (
    Abandon,
    Add,
    DrainReplica,
    ExecutorAction,
    Lost,
    PlacedReplica,
    PlanExecutor,
)

NAMES = "abcd"


def app_of(**inputs: str) -> Application:
    """Return an application whose nodes have these inputs, one letter each."""
    return Application(
        "app", [ModelNode(name, name, 9, inputs=tuple(given)) for name, given in inputs.items()]
    )


def replica(node: str, *devices: int, weight: float = 1.0) -> PlannedReplica:
    return PlannedReplica(node, devices, weight)


class Carried:
    """A plan that is carried out by hand."""

    def __init__(self, app: Application, stages: Sequence[Stage], **num_left: int) -> None:
        self.num_left = num_left
        self.executor = PlanExecutor(app, Plan("test", tuple(stages)), num_left)
        self.placed: dict[str, PlacedReplica] = {}

    def advance(self, **num_left: int) -> list[str]:
        self.num_left.update(num_left)
        return self.shown(self.executor.advance())

    def gone(self, name: str) -> list[str]:
        return self.shown(self.executor.gone(self.placed.pop(name)))

    def shown(self, actions: Sequence[ExecutorAction]) -> list[str]:
        return [self._shown(action) for action in actions]

    def _shown(self, action: ExecutorAction) -> str:
        match action:
            case Abandon(node):
                return f"abandon {node}"
            case Lost(placed):
                return f"lost {self._name(placed)}"
            case Add(placed):
                name = self._name(placed)
                self.placed[name] = placed
                return f"add {name}"
            case DrainReplica(placed, how):
                return f"{how} {self._name(placed)}"

    def _name(self, placed: PlacedReplica) -> str:
        return placed.model + "".join(map(str, placed.replica.devices))


def test_a_replica_waits_for_its_devices() -> None:
    stage = Stage((replica("a", 0), replica("b", 1), replica("c", 0, 1)))
    run = Carried(app_of(a="", b="", c=""), [stage], a=5, b=5, c=5)
    assert run.advance() == ["add a0", "add b1"]
    assert run.advance(a=0, b=1) == ["finish a0"]
    assert run.gone("a0") == []
    assert run.advance(b=0) == ["finish b1"]
    assert run.gone("b1") == ["add c01"]
    assert run.advance(c=0) == ["finish c01"]
    assert run.gone("c01") == []
    assert run.executor.running == []


def test_a_stage_ends_at_its_first_node_and_suspends_what_the_next_has_not() -> None:
    """M2's calls go on at its new replica; M1 keeps its place; then M3 gets the devices of M1."""
    first = Stage((replica("a", 0), replica("b", 1), replica("c", 2)), ends_at_first=True)
    second = Stage((replica("b", 1), replica("c", 0, 2)))
    run = Carried(app_of(a="", b="", c=""), [first, second], a=5, b=5, c=5)
    assert run.advance() == ["add a0", "add b1", "add c2"]
    assert run.advance(a=0) == ["finish a0", "suspend c2"]
    assert run.gone("c2") == []
    assert run.gone("a0") == ["add c02"]
    assert run.advance(b=0, c=0) == ["finish b1", "finish c02"]


def test_only_nodes_that_wait_for_no_other_end_a_stage() -> None:
    stages = [Stage((replica("a", 0), replica("b", 1)), ends_at_first=True), Stage((replica("a", 0, 1),))]
    run = Carried(app_of(a="", b="a"), stages, a=5, b=0)
    assert run.advance() == ["add a0"]
    run = Carried(app_of(a="", b="a"), stages, a=5, b=5)
    assert run.advance() == ["add a0", "add b1"]
    assert run.advance(a=0) == ["finish a0"]
    assert run.advance(b=0) == ["finish b1"]


def test_a_replica_leaves_when_its_share_is_done_and_another_waits() -> None:
    stage = Stage((replica("a", 0, weight=1), replica("a", 1, weight=3), replica("b", 0)))
    run = Carried(app_of(a="", b=""), [stage], a=100, b=5)
    assert run.advance() == ["add a0", "add a1"]
    assert run.advance(a=51) == []
    assert run.advance(a=50) == ["finish a0"]
    assert run.gone("a0") == ["add b0"]
    assert run.advance(a=1) == []


def test_replicas_come_after_those_of_their_inputs() -> None:
    run = Carried(app_of(a="", b="a"), [Stage((replica("b", 0), replica("a", 0)))], a=5, b=5)
    assert run.advance() == ["add a0"]
    run.advance(a=0)
    assert run.gone("a0") == ["add b0"]


def test_a_node_that_no_later_stage_has_keeps_its_replica() -> None:
    stages = [Stage((replica("a", 0), replica("b", 1)), ends_at_first=True), Stage((replica("c", 0),))]
    run = Carried(app_of(a="", b="", c=""), stages, a=5, b=5, c=5)
    run.advance()
    assert run.advance(a=0) == ["finish a0"]
    assert run.gone("a0") == ["add c0"]


def test_a_replica_stays_while_a_stage_that_cannot_run_is_left_out() -> None:
    """The stage of c waits for d. The one of d and b follows at once, and b is not loaded again."""
    stages = [
        Stage((replica("a", 0), replica("b", 1)), ends_at_first=True),
        Stage((replica("c", 0),)),
        Stage((replica("d", 0), replica("b", 1))),
    ]
    run = Carried(app_of(a="", b="", d="", c="d"), stages, a=5, b=5, c=5, d=5)
    run.advance()
    assert run.advance(a=0) == ["finish a0"]
    assert run.gone("a0") == ["add d0"]
    assert run.advance(d=0, b=0) == ["finish d0", "finish b1"]
    assert run.gone("d0") == ["add c0"]


def test_what_a_plan_leaves_is_done_after_it() -> None:
    """The plan has b before its input a; b's replica is added once more at the end."""
    run = Carried(app_of(a="", b="a"), [Stage((replica("b", 0),)), Stage((replica("a", 1),))], a=5, b=5)
    assert run.advance() == ["add a1"]
    assert run.advance(a=0) == ["finish a1", "add b0"]


def test_a_node_without_replicas_is_abandoned() -> None:
    run = Carried(app_of(a="", b=""), [Stage((replica("a", 0), replica("a", 1), replica("b", 0)))], a=5, b=5)
    run.advance()
    assert run.gone("a1") == ["lost a1"]
    assert run.executor.weights("a")
    assert run.gone("a0") == ["lost a0"]
    assert not run.executor.weights("a")
    assert run.shown(run.executor.abandon("a")) == ["abandon a", "add b0"]
    assert run.executor.abandon("a") == []
    assert run.advance(b=0) == ["finish b0"]


def test_another_plan_keeps_replicas_that_it_begins_with_and_suspends_the_rest() -> None:
    stage = Stage((replica("a", 0, weight=1), replica("a", 1, weight=3), replica("b", 2), replica("b", 0)))
    run = Carried(app_of(a="", b=""), [stage], a=8, b=8)
    assert run.advance() == ["add a0", "add a1", "add b2"]
    assert [one.devices for one in run.executor.rest.stages[0].replicas] == [(0,), (1,), (2,), (0,)]
    other = Stage((replica("a", 0, weight=9), replica("b", 1), replica("b", 2), replica("a", 2)))
    run.num_left.update(a=6)
    assert run.shown(run.executor.switch(Plan("other", (other,)))) == ["suspend a1"]
    assert [one.weight for one in run.executor.rest.stages[0].replicas] == [9, 1, 1, 1]
    assert [one.model for one in run.executor.staying] == ["a", "b"]
    assert run.gone("a1") == ["add b1"]
    assert run.advance(b=0) == ["finish b1", "finish b2"]
    assert run.gone("b2") == ["add a2"]


def test_a_plan_after_a_loss_is_carried_out_by_what_is_left() -> None:
    run = Carried(app_of(a="", b=""), [Stage((replica("a", 0), replica("b", 1)))], a=5, b=5)
    run.advance()
    assert run.gone("a0") == ["lost a0"]
    assert run.shown(run.executor.switch(Plan("rest", (Stage((replica("b", 1), replica("a", 1))),)))) == []
    assert run.advance(b=0) == ["finish b1"]
    assert run.gone("b1") == ["add a1"]


@st.composite
def plans(draw: st.DrawFn) -> tuple[Application, list[Stage]]:
    """Draw an application of four nodes and a plan in which each node is somewhere."""
    nodes = [
        ModelNode(name, name, 9, inputs=tuple(draw(st.sets(st.sampled_from(NAMES[:at]))) if at else ()))
        for at, name in enumerate(NAMES)
    ]
    groups = st.sampled_from([(0,), (1,), (2,), (3,), (0, 1), (2, 3), (0, 1, 2, 3)])
    weights = st.sampled_from([0.5, 1.0, 2.0])
    replicas = st.builds(PlannedReplica, st.sampled_from(NAMES), groups, weights)
    stages = draw(st.lists(st.builds(Stage, st.lists(replicas).map(tuple), st.booleans()), max_size=4))
    rest = Stage(tuple(replica(name, 0) for name in NAMES), draw(st.booleans()))
    stages.insert(draw(st.integers(0, len(stages))), rest)
    return Application("app", nodes), stages


@given(plans(), st.fixed_dictionaries(dict.fromkeys(NAMES, st.integers(0, 6))), st.randoms())
def test_every_plan_ends_and_shares_no_device(
    planned: tuple[Application, list[Stage]], num_left: dict[str, int], random: Random
) -> None:
    """Calls end at replicas that take them and whose inputs are done; drained replicas stop some time."""
    app, stages = planned
    run = Carried(app, stages, **num_left)
    serving, leaving = list[PlacedReplica](), list[PlacedReplica]()

    def obey(actions: list[ExecutorAction]) -> None:
        for action in actions:
            match action:
                case Add(placed):
                    serving.append(placed)
                case DrainReplica(placed, _):
                    serving.remove(placed)
                    leaving.append(placed)
                case Abandon(node):
                    raise AssertionError(node)
        held = [device for one in serving + leaving for device in one.replica.devices]
        assert len(held) == len(set(held))
        assert set(run.executor.running) == {*serving, *leaving}

    obey(run.executor.advance())
    while any(run.num_left.values()) or leaving:
        able = [
            one.model
            for one in serving
            if run.num_left[one.model] and not any(run.num_left[name] for name in app.node(one.model).inputs)
        ]
        assert able or leaving, (run.num_left, serving)
        if leaving and (not able or random.random() < 0.5):
            placed = leaving.pop(random.randrange(len(leaving)))
            obey(run.executor.gone(placed))
        else:
            run.num_left[random.choice(able)] -= 1
            obey(run.executor.advance())
    assert not serving
