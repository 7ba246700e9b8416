"""Haystack: a `Pipeline` of components, joined with `connect`, run with `run_async`."""

from collections.abc import AsyncIterator  # annotations stay objects here: Haystack reads them
from contextlib import asynccontextmanager

from haystack import Pipeline, component

from benchmarks.overhead.peers import CHAIN, FAN_OUT, RunOnce


@component
class AddOne:
    """A node of the workload."""

    @component.output_types(value=int)
    def run(self, value: int) -> dict[str, int]:
        """Run synchronously."""
        return {"value": value + 1}

    @component.output_types(value=int)
    async def run_async(self, value: int) -> dict[str, int]:
        """Run asynchronously, without a thread."""
        return {"value": value + 1}


def pipeline() -> Pipeline:
    """Build the chain and the fan-out."""
    made = Pipeline()
    for place in range(CHAIN):
        made.add_component(f"chain{place}", AddOne())
        if place:
            made.connect(f"chain{place - 1}.value", f"chain{place}.value")
    for place in range(FAN_OUT):
        made.add_component(f"side{place}", AddOne())
        made.connect(f"chain{CHAIN - 1}.value", f"side{place}.value")
    return made


@asynccontextmanager
async def open_runner() -> AsyncIterator[RunOnce]:
    """Build the pipeline once."""
    made = pipeline()

    async def run_once() -> list[int]:
        result = await made.run_async({"chain0": {"value": 0}}, concurrency_limit=FAN_OUT)
        return [result[f"side{place}"]["value"] for place in range(FAN_OUT)]

    yield run_once
