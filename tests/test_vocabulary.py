"""Vocabularies are values: what one runtime calls a thing is no matter of another's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
from support.virtual_loop import in_virtual_time

from stretto import DEFAULT, Component, Input, Runtime, Task, Template, Vocabulary
from stretto.apps.components.builder import Builder
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.graph import Arg, Graph, Ref, config_items
from stretto.graph.op_table import OPS
from stretto.graph.ops import Ops, OpSpec, Port
from stretto.graph.passes.base import Pass, Profiles
from stretto.graph.passes.pipeline import PASSES, optimise
from stretto.graph.text import parse_graph, print_graph
from stretto.graph.verify import verify
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import ConfigError, GraphError, TemplateError, UserError
from stretto.sched.orders import ORDERS
from stretto.sched.orders.arrival import PerInvocation
from stretto.sched.orders.order import Fits, Hold, NewOrder, Take
from stretto.sim.driver import VirtualDriver
from stretto.sim.replay import ReplayChanges, replay_engines
from stretto.trace.drawing import draw_graph
from stretto.trace.html import trace_page
from stretto.trace.recorder import Recorder
from stretto.trace.run_file import RunRecorder
from stretto.trace.run_reading import read_run

WEIGH = OpSpec("weigh", (Port("text", "text"),), "number")
WEIGHED = "graph weighed(%text: text)\n  %weight = weigh(%text) : number @own\n  return %weight\n"


class Saying:
    """A batch engine whose answers name the op, its settings and its inputs."""

    def __init__(self, config: object) -> None: ...

    def run(self, tasks: Sequence[Task]) -> list[object]:
        return [self._said(task) for task in tasks]

    def release(self, query: str) -> None: ...

    def close(self) -> None: ...

    def _said(self, task: Task) -> object:
        if task.num_items is None:
            return f"{task.config.get('by', 'nobody')}({','.join(map(str, task.inputs.values()))})"
        column: Any = task.inputs[task.each[0]]
        return [f"{task.config.get('by', 'nobody')}({item})" for item in column]


class Working(Component):
    """A component of one primitive with an own op, and what it expands to."""

    ports = (Port("text", "text"),)
    outs = {"found": "any"}  # noqa: RUF012

    def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
        worked = build.add("worked", "work", (build.take("text"),), engine="own")
        body = {"body": "grow", "result": "any"}
        return {"found": build.add("grown", "expand", (Arg("worked", worked),), config=body)}


def signing(name: str) -> Pass:
    """A pass that has every `work` say who asked for it."""

    def sign(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
        primitives = tuple(
            replace(p, config=config_items({**dict(p.config), "by": name})) if p.op == "work" else p
            for p in graph
        )
        return graph if primitives == graph.primitives else replace(graph, primitives=primitives)

    return sign


def growing(text: str) -> Callable[[Mapping[str, object]], Graph]:
    return lambda inputs: parse_graph(text, Ops([*OPS.values(), OpSpec("work", (Port("x"),), "any")]))


def vocabulary(name: str, spec: OpSpec, body: str) -> Vocabulary:
    return (
        DEFAULT.with_type("thing")
        .with_op(spec)
        .with_pass("sign", signing(name), before="drop_dead")
        .with_expansion("grow", growing(body))
        .with_policy("own", own_policy(name))
    )


USED: list[str] = []


def own_policy(name: str) -> NewOrder:
    class Own(PerInvocation):
        def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
            USED.append(name)
            return super().take(to_fill, fits, now_s)

    return Own


LEFT = vocabulary(
    "left",
    OpSpec("work", (Port("text", "text"),), "text"),
    'graph g(%worked: text)\n%x = aggregate(%worked) {join=""} : text\nreturn %x',
)
RIGHT = vocabulary(
    "right",
    OpSpec("work", (Port("text"),), "list[thing]", flatten=True),
    "graph g(%worked: any)\n%x = aggregate(%worked) : list[any]\nreturn %x",
)


def app(of: Vocabulary) -> Template:
    working = Working(text=Input("text", "text"))
    return Template("working", working, {"found": working["found"]}, of)


def engine() -> Deployment:
    return deploy("own", Saying, runs_in="loop", policy="own", timeout_s=None)


@in_virtual_time
async def test_two_runtimes_at_once_use_the_same_names_for_different_things() -> None:
    USED.clear()
    async with (
        Runtime([engine()], vocabulary=LEFT) as left,
        Runtime([engine()], vocabulary=RIGHT) as right,
    ):
        running = [
            *(left.run(app(LEFT), {"text": f"l{number}"}) for number in range(3)),
            *(right.run(app(RIGHT), {"text": f"r{number}"}) for number in range(3)),
            left.run(app(RIGHT), {"text": "x"}),  # the runtime's words count, not the template's
            right.run(app(LEFT), {"text": "x"}),
        ]
        found = [outputs["found"] for outputs in await asyncio.gather(*running)]
    assert found[:3] == [f"left(l{number})" for number in range(3)]
    assert found[3:6] == [[f"right(r{number})"] for number in range(3)]
    assert found[6:] == ["left(x)", ["right(x)"]]
    assert set(USED) == {"left", "right"}
    plans = [runtime.plan_cache.plan(app(LEFT), {}, ()) for runtime in (left, right)]
    assert [plan.nodes[0].spec.result for plan in plans] == ["text", "list[thing]"]


def test_what_is_added_is_in_the_new_vocabulary_alone() -> None:
    before = (set(OPS), set(PASSES), set(ORDERS), set(DEFAULT.expansions), OPS.types)
    assert "work" in LEFT.ops
    assert "thing" in LEFT.ops.types
    assert tuple(LEFT.passes) == (*tuple(PASSES)[:-1], "sign", "drop_dead")
    assert LEFT.select_passes("all") == tuple(LEFT.passes)
    assert set(LEFT.policies) == {*ORDERS, "own"}
    assert before == (set(OPS), set(PASSES), set(ORDERS), set(DEFAULT.expansions), OPS.types)
    assert DEFAULT.select_passes("all") == tuple(PASSES)
    with pytest.raises(ConfigError, match="there is no pass 'sign'; there are prune_order"):
        DEFAULT.select_passes("sign")


def test_a_vocabulary_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        LEFT.ops = OPS  # type: ignore[misc]
    for table in (LEFT.passes, LEFT.expansions, LEFT.policies, LEFT.ops, PASSES, OPS):
        with pytest.raises(TypeError, match="does not support item assignment"):
            table["new"] = None  # type: ignore[index]
    passes = dict(PASSES)
    own = Vocabulary(passes=passes)
    passes.clear()
    assert tuple(own.passes) == tuple(PASSES)


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda v: v.with_op(OpSpec("work", (), "any")), "the op 'work' is there already"),
        (lambda v: v.with_op(OpSpec("decode", (), "any")), "the op 'decode' is there already"),
        (lambda v: v.with_op(OpSpec("a b", (), "any")), "op 'a b': a name is letters, digits"),
        (lambda v: v.with_op(OpSpec("new", (), "any|thong")), "its result has the unknown type 'any|thong'"),
        (lambda v: v.with_op(OpSpec("new", (Port("x", "thong"),), "any")), "its port 'x' has the unknown"),
        (lambda v: v.with_type("thing"), "the type 'thing' is there already"),
        (lambda v: v.with_type("text"), "the type 'text' is there already"),
        (lambda v: v.with_type("list[text]"), "type 'list[text]': a name is"),
        (lambda v: v.with_pass("sign", signing("x")), "the pass 'sign' is there already"),
        (lambda v: v.with_pass("split_stages", signing("x")), "the pass 'split_stages' is there already"),
        (lambda v: v.with_pass("a,b", signing("x")), "pass 'a,b': a name is letters"),
        (lambda v: v.with_pass("none", signing("x")), "pass 'none': the name stands for a choice"),
        (lambda v: v.with_pass("new", signing("x"), before="?"), "there is no pass '?'; there are prune_"),
        (lambda v: v.with_expansion("grow", growing("")), "the expansion 'grow' is there already"),
        (lambda v: v.with_policy("least_work", own_policy("")), "the policy 'least_work' is there already"),
        (lambda v: v.with_policy(None, own_policy("")), "policy None: a name is letters"),
    ],
)
def test_a_name_that_is_taken_or_is_none_is_refused(
    add: Callable[[Vocabulary], Vocabulary], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        add(LEFT)
    assert message in str(caught.value)


# --- where a vocabulary is needed


def compiled() -> ExecutionGraph:
    ops = DEFAULT.with_op(WEIGH).ops
    return compile_graph(parse_graph(WEIGHED, ops), {}, ops)


def test_what_reads_a_graph_refuses_ops_that_it_is_not_told_of() -> None:
    egraph = compiled()
    graph, ops = egraph.graph, egraph.ops
    assert verify(graph, ops)["weight", ""] == "number"
    assert print_graph(graph, ops) == WEIGHED
    assert optimise(graph, {}, PASSES, ops) is graph
    with pytest.raises(GraphError, match="there is no op 'weigh'"):
        parse_graph(WEIGHED)
    readers: list[Callable[[], object]] = [
        lambda: verify(graph),
        lambda: print_graph(graph),
        lambda: compile_graph(graph, {}),
    ]
    for reader in readers:
        with pytest.raises(GraphError, match=r"%weight: there is no op 'weigh'; there .* DEFAULT\.with_op"):
            reader()


def test_a_template_is_checked_by_its_vocabulary_and_then_by_the_runtimes() -> None:
    with pytest.raises(TemplateError, match="working: %worked: there is no op 'work'; there are chunk"):
        app(DEFAULT)
    working = app(LEFT)
    with pytest.raises(TemplateError, match="working: %worked: there is no op 'work'"):
        working.lower({}, DEFAULT)
    with pytest.raises(TemplateError, match="input 'text' has the unknown type 'thing'"):
        Template("x", [], {"text": Input("text", "thing")})
    assert Template("x", [], {"text": Input("text", "thing")}, LEFT).inputs == (("text", "thing"),)


@in_virtual_time
async def test_a_runtime_refuses_what_it_has_no_words_for() -> None:
    with pytest.raises(ConfigError, match="there is no policy 'own'; there are"):
        Runtime([engine()])
    with pytest.raises(ConfigError, match="there is no policy 'own'; there are"):
        VirtualDriver([engine()])
    async with Runtime([engine().changed(policy="least_work")]) as runtime:
        with pytest.raises(TemplateError, match="there is no op 'work'"):
            await runtime.run(app(LEFT), {"text": "x"})


def test_an_own_op_is_drawn_recorded_and_read_back(tmp_path: Path) -> None:
    own = DEFAULT.with_op(WEIGH).with_policy("own", own_policy("replay"))
    egraph = compiled()
    assert "weigh" in draw_graph(egraph)
    assert "weigh" in trace_page(Recorder(), [egraph])
    path = tmp_path / "run.jsonl"
    record = RunRecorder(path, [engine()])
    driver = VirtualDriver([engine()], vocabulary=own, observers=[record])
    driver.submit("q", egraph, {"text": "x"})
    assert driver.run()["q"].error is None
    record.close()
    run = read_run(path, own)
    assert run.graphs[0].graph == egraph.graph
    assert replay_engines(run, ReplayChanges(policy="own"), own)[0].engine.policy == "own"
    with pytest.raises(ConfigError, match="there is no policy 'own'"):
        replay_engines(run, ReplayChanges(policy="own"))
    with pytest.raises(UserError, match="line 1: there is no policy 'own'; there are programs_first"):
        read_run(path)
