"""LlamaIndex workflows: steps exchange typed events; the fan-out sends events and collects them."""

from collections.abc import AsyncIterator  # annotations stay objects here: the step decorator reads them
from contextlib import asynccontextmanager

from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent

from benchmarks.overhead.peers import CHAIN, FAN_OUT, RunOnce


class Next(Event):
    """Event: run node `place` of the chain."""

    place: int
    value: int


class Side(Event):
    """Event: run one of the parallel nodes."""

    value: int


class SideDone(Event):
    """Event: one of the parallel nodes has run."""

    value: int


class PeerWorkload(Workflow):
    """The chain and the fan-out. The chain is one step that runs 10 times, which is the cheapest way."""

    @step
    async def start(self, event: StartEvent) -> Next:
        """Start the chain; not counted as a node."""
        return Next(place=0, value=event.get("value"))

    @step
    async def chain(self, context: Context, event: Next) -> Next | Side | None:
        """Run a node of the chain; the last one sends 10 events."""
        value = event.value + 1
        if event.place + 1 < CHAIN:
            return Next(place=event.place + 1, value=value)
        for _ in range(FAN_OUT):
            context.send_event(Side(value=value))
        return None

    @step(num_workers=FAN_OUT)
    async def side(self, event: Side) -> SideDone:
        """Run one of the parallel nodes."""
        return SideDone(value=event.value + 1)

    @step
    async def collect(self, context: Context, event: SideDone) -> StopEvent | None:
        """Collect the results; not counted as a node."""
        done = context.collect_events(event, [SideDone] * FAN_OUT)
        return None if done is None else StopEvent(result=[one.value for one in done])


@asynccontextmanager
async def open_runner() -> AsyncIterator[RunOnce]:
    """Make the workflow once."""
    workflow = PeerWorkload(timeout=60)

    async def run_once() -> list[int]:
        result: list[int] = await workflow.run(value=0)
        return result

    yield run_once
