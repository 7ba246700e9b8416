"""Stretto: a template of components on an engine that runs on the event loop.

A run is `Runtime.run(template, inputs)`, which finds the plan in the cache and runs schedulers and driver.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from benchmarks.overhead.peers import CHAIN, FAN_OUT, RunOnce
from stretto.apps.components.builder import Builder
from stretto.apps.components.component import Component, Input, Source
from stretto.apps.template import Template
from stretto.graph.graph import Ref
from stretto.graph.ops import Port
from stretto.model.deployment import deploy
from stretto.model.replica import RunsIn
from stretto.model.tasks import Task
from stretto.runtime.runtime import Runtime
from stretto.sched.observer import Observer


class AddOne(Component):
    """A component with one primitive."""

    ports = (Port("value", "number"),)
    outs = {"value": "number"}  # noqa: RUF012

    def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
        """Lower to one `call`."""
        call = build.add("add", "call", (build.take("value"),), engine="noop", config={"result": "number"})
        return {"value": call}


class Noop:
    """A `BatchEngine` that adds 1."""

    def __init__(self, config: object) -> None:
        pass

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Add 1 to the value of each task."""
        return [task.inputs["value"] + 1 for task in tasks]  # type: ignore[operator]

    def release(self, query: str) -> None:
        """Do nothing: no state is kept."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def template() -> Template:
    """Build the chain and the fan-out."""
    value: Source = Input("value", "number")
    for place in range(CHAIN):
        value = AddOne(name=f"chain{place}", value=value)["value"]
    last = [AddOne(name=f"side{place}", value=value) for place in range(FAN_OUT)]
    return Template("workload", last, {node.name: node["value"] for node in last})


@asynccontextmanager
async def open_runner(*observers: Observer, runs_in: RunsIn = "loop") -> AsyncIterator[RunOnce]:
    """A runtime with one engine, which runs on the event loop or elsewhere."""
    app = template()
    names = list(app.outputs)
    engine = deploy("noop", Noop, runs_in=runs_in, max_batch=1024)
    async with Runtime([engine], observers=observers) as runtime:

        async def run_once() -> list[int]:
            outputs = await runtime.run(app, {"value": 0})
            return [outputs[name] for name in names]

        yield run_once
