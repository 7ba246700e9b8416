"""Demands and cancelled work of sessions, which follow each change, against a search of the whole graph."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

import pytest
from support.line_counts import num_lines
from support.machines import compiled

from stretto.graph.execution_graph import Node
from stretto.model.profile import Profile
from stretto.model.tasks import Objective
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.live_graph import LiveGraph
from stretto.sched.queries.session import SessionMachine

COSTS = {"e": Profile(base_s=1.0)}
STEP = compiled('graph s(%x: text)\n%y = call(%x) {result="text"} : text @e\nreturn %y', COSTS)
FORK = compiled(
    """
    graph fork(%x: text, %z: text)
      %a = call(%x) {result="text"} : text @e
      %b = call(%a, %z) {result="text"} : text @e
      %c = call(%a) {result="text"} : text @e
      return %b, %c
    """,
    COSTS,
)
ITEMS = compiled(
    """
    graph items(%x: text)
      %all = call(%x) {result="list[text]"} : list[text] @e
      %each = call(each %all) {result="text"} : list[text] @e
      return %all[0], %all[1], %each
    """,
    COSTS,
)
SAVE = compiled(
    """
    graph save(%x: text)
      %a = call(%x) {result="text"} : text @e
      !s = call(%a) {result="effect"} : effect @e
      return %s
    """,
    COSTS,
)
GROW = compiled(
    """
    graph grow(%x: text)
      %a = call(%x) {result="text"} : text @e
      %y = expand(%a) {body="b", result="text"} : text
      return %y
    """,
    COSTS,
)
BODY = compiled(
    """
    graph b(%a: text)
      %k = call(%a) {result="text"} : text @e
      %y = call(%k) {result="text"} : text @e
      return %y
    """,
    COSTS,
)
GRAPHS = (STEP, FORK, ITEMS, SAVE, GROW)
CRITERIA: tuple[Objective | None, ...] = ("latency", "throughput", None)


def needed(live: LiveGraph, values: Iterable[int]) -> set[int]:
    """Return the ids of the nodes behind some values and behind the effects that have still to happen."""
    ends = [node.id for node in map(live.dependencies.producer, values) if node is not None]
    found, open_nodes = set[int](), [*live.effects, *ends]
    while open_nodes:
        node_id = open_nodes.pop()
        if node_id not in found:
            found.add(node_id)
            open_nodes += [source.id for source in live.dependencies.sources(live.nodes[node_id])]
    return found


def demands_of(live: LiveGraph, asked: Mapping[int, Demand], of_effects: Demand) -> dict[int, Demand]:
    """Return the demands on all nodes, by walking every way from each end to what it comes of."""
    found: dict[int, Demand] = {}

    def ask(node: Node, demand: Demand) -> None:
        demand = demand.before(node.own_s)
        found[node.id] = demand if node.id not in found else found[node.id].joined(demand)
        for source in {source.id: source for source in live.dependencies.sources(node)}.values():
            ask(source, demand)

    for effect in live.effects:
        ask(live.nodes[effect], of_effects)
    for value_id, demand in asked.items():
        if (node := live.dependencies.producer(value_id)) is not None:
            ask(node, demand)
    return found


class Walk:
    """Random changes of one session."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.session = SessionMachine("q", expand=lambda body, inputs: BODY)
        self.names = ["x0"]
        self.wants: list[tuple[str, Objective | None, float | None]] = []
        self.work: list[tuple[int, int, int, bool]] = []

    def name(self) -> str:
        return self.draw.choice(self.names[-12:])

    def new_name(self) -> str:
        self.names.append(f"x{len(self.names)}")
        return self.names[-1]

    def change(self) -> None:
        session, draw = self.session, self.draw
        match draw.choice(("extend", "extend", "want", "want", "unwant", "drop", "provide", "complete")):
            case "extend":
                graph = draw.choice(GRAPHS)
                bind = {name: self.name() for name in graph.inputs}
                bind |= {name: self.new_name() for name, _, _ in graph.outputs}
                outcome = session.extend(graph, bind)
            case "want":
                want = self.name(), draw.choice(CRITERIA), draw.choice((None, 5.0, 9.0))
                self.wants.append(want)
                outcome = session.want(*want)
            case "unwant" if self.wants:
                outcome = session.unwant(*self.wants.pop(draw.randrange(len(self.wants))))
            case "drop":
                outcome = session.drop(name := self.name())
                self.names.remove(name)
                self.names.append(f"{name} again")
                self.wants = [want for want in self.wants if want[0] != name]
                session.graph.take_outcome()
                assert needed(session.graph.live, session._variables.values()) == set(session.graph.nodes)
            case "complete" if self.work:
                node, lo, hi, is_list = self.work.pop(draw.randrange(len(self.work)))
                result = ["1", "2", "3"] if is_list else "text"
                outcome = session.complete(node, lo, [result] * (hi - lo))
            case _:
                outcome = session.provide(self.name(), "x")
        for request in outcome.work:
            is_list = request.node.config.get("result") == "list[text]"
            self.work.append((request.node.id, request.lo, request.hi, is_list))

    def check(self) -> None:
        session = self.session
        session.check_invariants()
        session._deduce()
        of_effects = session._demand(None, None)
        assert session.graph.demands == demands_of(session.graph.live, session._asked, of_effects)


@pytest.mark.parametrize("seed", range(30))
def test_demands_and_cancelled_nodes_are_those_of_a_search(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(150):
        walk.change()
        walk.check()


def session_of(num_open: int) -> SessionMachine:
    session = SessionMachine("q")
    for number in range(num_open):
        session.extend(STEP, {"y": f"y{number}"})
        session.want(f"y{number}")
    session.provide("x", "x")
    return session


@pytest.mark.parametrize("change", ["want", "unwant", "drop", "extend"])
def test_a_change_of_one_variable_costs_as_much_whether_few_or_many_are_open(change: str) -> None:
    def work(num_open: int) -> int:
        session = session_of(num_open)
        calls = {
            "want": lambda: session.want("y5", "latency"),
            "unwant": lambda: session.unwant("y5"),
            "drop": lambda: session.drop("y5"),
            "extend": lambda: session.extend(STEP, {"x": "y5", "y": "z"}),
        }
        return num_lines(calls[change])

    assert work(400) <= 1.1 * work(20)
