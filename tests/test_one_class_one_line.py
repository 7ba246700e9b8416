"""What somebody adds to Stretto is one class, or one function, and one line in a table.

Each kind is added here as a user would, and used by a runtime and by the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from support.own_engines import Backwards, BackwardsConfig, Loud, Shouting, ShoutingConfig
from support.runtime_engines import COMPLETE, AtOnce
from support.virtual_loop import in_virtual_time

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto import DEFAULT, Component, Input, Runtime, Template
from stretto.apps.components.builder import Builder
from stretto.apps.plan_cache import PlanCache
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable, Load
from stretto.cluster.placement import Choice, Placement, PlacementEvent
from stretto.cluster.placement_request import PlacementRequest
from stretto.engines.executables import EXECUTABLES, Executable
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.graph import Arg, Graph, Ref, config_items
from stretto.graph.ops import Ops, OpSpec, Port
from stretto.graph.passes.base import Profiles, with_primitives
from stretto.graph.text import parse_graph
from stretto.model.deployment import Deployment, deploy
from stretto.model.replica import Replica, RunsIn
from stretto.runtime.instances.loop import LoopInstance
from stretto.runtime.instances.start import PLACES
from stretto.runtime.worker import Command, InstanceJob, RunBatch
from stretto.sched.actions import Action, Admit, StartBatch
from stretto.sched.observer import Observer
from stretto.sched.orders.order import Fits, OrderConfig, Take
from stretto.sched.queries.request import QueueEntry
from stretto.schema.deployments import read_deployments
from stretto.schema.reading import read_tables
from stretto.sim.driver import VirtualDriver

# --- what is added


class NewestFirst:
    """An order: the last to come is the first to be served."""

    def __init__(self, config: OrderConfig) -> None:
        self._waiting: list[QueueEntry] = []

    def add(self, entry: QueueEntry) -> None:
        self._waiting.append(entry)

    def remove(self, entry: QueueEntry) -> None:
        self.taken(entry, entry.hi - entry.lo)

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | None:
        if not self._waiting or not (num_items := fits(self._waiting[-1])):
            return None
        return Take(self._waiting[-1], num_items, ends_batch=True)

    def taken(self, entry: QueueEntry, num_items: int) -> None:
        entry.lo += num_items
        if entry.lo == entry.hi:
            self._waiting.remove(entry)

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None: ...

    def rank(self, entry: QueueEntry) -> tuple[float, ...]:
        return (-entry.arrival_s,)


class LastInstance(Placement):
    """A placement policy: always the instance that joined last."""

    def load(self, instance: InstanceView) -> Load:
        return (-instance.id,)

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        found = instances.candidates(instances.room_for(request.all_tokens), now_s)
        last = max(found, key=lambda view: view.id, default=None)
        return None if last is None else Choice(last.id, reason="it is the last one")

    def observe(self, event: PlacementEvent) -> None: ...


def signed(graph: Graph, profiles: Profiles, ops: Ops) -> Graph:
    """A pass: who asked for a `shout` stands in its settings."""
    marked = [
        replace(p, config=config_items({**dict(p.config), "by": "a pass"})) if p.op == "shout" else p
        for p in graph
    ]
    return with_primitives(graph, marked)


def twice(inputs: Mapping[str, object]) -> Graph:
    """An expansion: a text becomes a list of it and of its copy."""
    return parse_graph(
        """
        graph twice(%text: text)
          %copy = aggregate(%text) {join=""} : text
          %both = aggregate(%text, %copy) : list[text]
          return %both
        """,
        VOCABULARY.ops,
    )


SHOUT = OpSpec("shout", (Port("texts", "text"),), "loud")
VOCABULARY = (
    DEFAULT.with_type("loud")
    .with_op(SHOUT)
    .with_pass("signed", signed)
    .with_expansion("twice", twice)
    .with_policy("newest_first", NewestFirst)
    .with_placement("last_instance", LastInstance)
)
OWN = {
    "shouting": Executable("batch", "shouting", "support.own_engines", "Shouting", "ShoutingConfig"),
    "backwards": Executable("llm", "llm", "support.own_engines", "Backwards", "BackwardsConfig"),
}

# --- how it is used


class Doubled(Component):
    """A text, twice, and both of them loud."""

    ports = (Port("text", "text"),)
    outs = {"loud": "list[loud]"}  # noqa: RUF012

    def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
        body = {"body": "twice", "result": "list[text]"}
        both = build.add("both", "expand", (build.take("text"),), config=body)
        return {"loud": build.add("loud", "shout", (Arg("texts", both, each=True),), engine="shouting")}


_DOUBLED = Doubled(text=Input("text", "text"))
APP = Template("loud", _DOUBLED, {"loud": _DOUBLED["loud"]}, VOCABULARY)


@dataclass
class Seen(Observer):
    """Work that engines were given."""

    batches: list[str] = field(default_factory=list)
    settings: list[object] = field(default_factory=list)
    instances: list[int] = field(default_factory=list)

    def on_action(self, action: Action, now_s: float) -> None:
        match action:
            case StartBatch(tasks=tasks):
                self.batches += [str(task.inputs["texts"]) for task in tasks]
                self.settings += [task.config.get("by") for task in tasks]
            case Admit(_, instance, task) if task.decode is not None:
                self.instances.append(instance)


def shouting(**settings: Any) -> Deployment:
    return deploy("shouting", Shouting, ShoutingConfig(), runs_in="loop", **settings)


def run_for_real(
    deployment: Deployment, app: Template | ExecutionGraph, texts: Sequence[str]
) -> tuple[list[Mapping[str, object]], Seen]:
    """Outputs of a query for each text, all submitted at once."""
    seen = Seen()

    async def main() -> list[Mapping[str, object]]:
        async with Runtime([deployment], vocabulary=VOCABULARY, observers=[seen]) as runtime:
            queries = [await runtime.submit(app, {"text": text}) for text in texts]
            return [await query for query in queries]

    return in_virtual_time(main)(), seen


def simulate(
    deployment: Deployment, app: Template | ExecutionGraph, texts: Sequence[str]
) -> tuple[list[Mapping[str, object]], Seen]:
    """The same in the simulator."""
    seen = Seen()
    plans = PlanCache({}, VOCABULARY)
    passes = VOCABULARY.select_passes("all")
    egraph = app if isinstance(app, ExecutionGraph) else plans.plan(app, {}, passes)
    driver = VirtualDriver([deployment], expand=plans.expand, vocabulary=VOCABULARY, observers=[seen])
    for number, text in enumerate(texts):
        driver.submit(f"q{number}", egraph, {"text": text}, passes=passes)
    outputs = [reply.outputs for _, reply in sorted(driver.run().items())]
    assert not driver.observers.dropped
    return [output for output in outputs if output is not None], seen


DRIVERS = pytest.mark.parametrize("run", [run_for_real, simulate])


@DRIVERS
def test_an_op_with_its_own_type_a_pass_and_an_expansion(run: Any) -> None:
    outputs, seen = run(shouting(), APP, ["hello"])
    assert outputs == [{"loud": [Loud("HELLO!"), Loud("HELLO!")]}]
    assert set(seen.settings) == {"a pass"}


@DRIVERS
def test_an_order(run: Any) -> None:
    outputs, seen = run(shouting(policy="newest_first", max_batch=2), APP, ["a", "b", "c", "d"])
    assert [output["loud"][0].text for output in outputs] == ["A!", "B!", "C!", "D!"]
    assert seen.batches == [str([text, text]) for text in "dcba"]


@DRIVERS
def test_a_placement_policy(run: Any) -> None:
    llm = deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm", instances=3, placement="last_instance")
    if run is run_for_real:
        llm = llm.changed(runs_in="loop", executable=lambda config: AtOnce(FakeLLM(config)))
    outputs, seen = run(llm, COMPLETE, ["a", "b", "c"])
    assert len(outputs) == 3
    assert seen.instances == [2, 2, 2]


# The contract suites in tests/engines have a case for each of the two.


@pytest.mark.parametrize("name", OWN)
def test_a_kind_of_engine(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXECUTABLES, name, OWN[name])
    own = OWN[name]
    file = tmp_path / "engines.toml"
    file.write_text(
        f'[[engine]]\nname = "{own.role}"\ncontract = "{own.contract}"\n'
        f'[[replica]]\nengine = "{own.role}"\nexecutable = "{name}"\n'
    )
    (deployment,) = read_deployments(read_tables(file))
    assert deployment.replicas[0].config == (ShoutingConfig() if name == "shouting" else BackwardsConfig())
    app = APP if name == "shouting" else COMPLETE
    simulated, _ = simulate(deployment, app, ["not in vain"])
    if name == "backwards":
        deployment = deployment.changed(executable=lambda config: AtOnce(Backwards(config)))
    real, _ = run_for_real(deployment.changed(runs_in="loop"), app, ["not in vain"])
    expected = [Loud("NOT IN VAIN!")] * 2 if name == "shouting" else "vain in not Say:"
    assert real == simulated == [{"loud" if name == "shouting" else "answer": expected}]


class CountingInstance(LoopInstance):
    """A place to run: the event loop, where somebody counts."""

    num_batches = 0

    def send(self, command: Command) -> None:
        CountingInstance.num_batches += isinstance(command, RunBatch)
        super().send(command)


def _where_somebody_counts(
    job: InstanceJob, replica: Replica, post: Any, cluster: object
) -> CountingInstance:
    return CountingInstance(job, post)


def test_a_place_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its name has to stand among the others, too: `RunsIn` lists them for files and messages."""
    assert set(PLACES) == set(get_args(RunsIn))
    monkeypatch.setitem(PLACES, "loop", _where_somebody_counts)
    outputs, _ = run_for_real(shouting(), APP, ["hello"])
    assert outputs == [{"loud": [Loud("HELLO!"), Loud("HELLO!")]}]
    assert CountingInstance.num_batches == 1
