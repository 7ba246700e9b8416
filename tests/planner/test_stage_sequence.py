"""What each stage of a plan runs, whatever carries it out."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from stretto.planner.application import Application, ModelNode
from stretto.planner.plan import Plan, PlannedReplica, Stage
from stretto.planner.stage_sequence import PresentStage, StageSequence


def app_of(**inputs: str) -> Application:
    """Return an application whose nodes have these inputs, one letter each."""
    return Application(
        "app", [ModelNode(name, name, 9, inputs=tuple(given)) for name, given in inputs.items()]
    )


def replicas(names: str) -> tuple[PlannedReplica, ...]:
    """Return a replica of each of these nodes, on devices of their own."""
    return tuple(PlannedReplica(name, (at,)) for at, name in enumerate(names))


class Carried:
    """Stages that are begun by hand. Capital letters name stages that end at their first node."""

    def __init__(self, app: Application, *stages: str) -> None:
        plan = Plan("test", tuple(Stage(replicas(names.lower()), names.isupper()) for names in stages))
        self.done = set[str]()
        self._sequence = StageSequence(app, plan)
        self._present: PresentStage | None = None

    def next(self, *, done: str = "") -> str | None:
        """Let these nodes be done, and begin the next stage; return the nodes of its replicas."""
        self.done |= set(done)
        running = [one for one in self.running if one.model not in self.done]
        self._present = self._sequence.next(running, self.done.__contains__)
        if self._present is None:
            return None
        names = "".join(one.model for one in self._present.replicas)
        return names.upper() if self._present.ends_at_first else names

    @property
    def running(self) -> Sequence[PlannedReplica]:
        return self._present.replicas if self._present else ()

    @property
    def roots(self) -> str:
        return "".join(self._present.roots) if self._present else ""

    def rest(self) -> list[str]:
        stages = self._sequence.rest(self.running, self.done.__contains__)
        return ["".join(one.model for one in stage.replicas) for stage in stages]


def test_a_stage_runs_nodes_whose_inputs_are_done_or_run_too() -> None:
    run = Carried(app_of(a="", b="a", c="b", d=""), "CBD", "AC")
    assert run.next() == "D"
    assert run.next(done="d") == "a"
    assert run.rest() == ["a", "cb"]
    assert run.next(done="a") == "bc"
    assert run.next(done="bc") is None
    assert run.next() is None


def test_replicas_come_after_those_of_their_inputs() -> None:
    run = Carried(app_of(a="", b="a", c=""), "bcaa")
    assert run.next() == "caab"
    assert run.roots == "ac"


def test_a_node_that_no_later_stage_has_keeps_its_replicas() -> None:
    run = Carried(app_of(a="", b="", c="", d=""), "ABC", "DA")
    assert run.next() == "ABC"
    assert run.next(done="c") == "bda"


def test_a_stage_without_a_node_that_can_run_is_left_out() -> None:
    """While `c` waits for `d`, `b` goes on, and the next stage follows at once."""
    run = Carried(app_of(a="", b="", d="", c="d"), "AB", "C", "DB")
    assert run.next() == "AB"
    assert run.rest() == ["ab", "c", "db"]
    assert run.next(done="a") == "db"


def test_the_last_stage_lasts_until_all_its_nodes_are_done() -> None:
    run = Carried(app_of(a="", b=""), "AB", "BA")
    assert run.next() == "AB"
    assert run.next(done="a") == "b"


def test_what_a_plan_leaves_undone_gets_the_replicas_of_its_last_stage() -> None:
    run = Carried(app_of(a="", b="a", c=""), "BC", "AC")
    assert run.next() == "C"
    assert run.next() == "ac"
    assert run.rest() == ["ac", "b"]
    assert run.next(done="a") == "bc"


STAGES = st.lists(st.text("abcd", min_size=1, max_size=6), min_size=1, max_size=5)


@given(STAGES, st.lists(st.booleans(), min_size=6, max_size=6), st.data())
def test_every_node_of_a_plan_runs_until_it_is_done(
    stages: list[str], edges: list[bool], data: st.DataObject
) -> None:
    """Whatever is done in each stage, at least what ends it, nothing is left at the end."""
    pairs = [(one, other) for at, other in enumerate("abcd") for one in "abcd"[:at]]
    inputs = dict.fromkeys("abcd", "")
    for (one, other), is_edge in zip(pairs, edges, strict=True):
        inputs[other] += one * is_edge
    run = Carried(app_of(**inputs), *stages[:-1], "abcd", stages[-1].upper())
    while names := run.next():
        nodes = set(names.lower())
        for name in nodes:
            assert name not in run.done
            assert set(inputs[name]) <= nodes | run.done
        ended = set(data.draw(st.sampled_from(run.roots))) if names.isupper() else nodes
        run.done |= ended
    assert run.done == set("abcd")
