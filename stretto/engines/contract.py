"""What an engine is to the rest of Stretto: two contracts, and no third.

A *batch engine* (embedding, reranking, vectors, search, calls) runs a batch and returns. An *LLM
engine* keeps sequences running, admits new ones at any step and answers each with a stream of events.
An LLM engine comes in one of two forms: *stepped* (in-process models; a driver thread calls `step()`)
or *asynchronous* (servers behind HTTP; the driver awaits `generate()`).

Every class named here is constructed by `Engine.executable(Engine.config)`, once per instance, in the
thread or process where it will run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from stretto.cluster.kv_events import KVEvent
from stretto.cluster.messages import InstanceLoad
from stretto.tasks import LLMEvent, LLMTask, Task


class BatchEngine(Protocol):
    """Runs batches. Lives on one thread; is never called twice at once."""

    def run(self, tasks: Sequence[Task]) -> Sequence[object]:
        """Answer every task, in order, in one call of the underlying model or store.

        A task's answer is its output value, or a list of `num_items` of them. Raising fails the whole
        batch; the scheduler then retries its tasks one by one, so that only the culprit fails.
        """
        ...

    def release(self, query: str) -> None:
        """Forget whatever was kept for `query`, which has ended. Called at most once per query."""
        ...

    def close(self) -> None:
        """Free models, files and connections."""
        ...


class SteppedLLM(Protocol):
    """An in-process LLM engine. All calls come from one thread, and none while `step` runs."""

    def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        """Queue a task; the smaller rank starts first. Problems are answered by `Failed` from `step`.

        A task that has `generated` tokens goes on behind them, or starts over. Both tell the whole output.
        """
        ...

    def reprioritise(self, task: int, rank: tuple[float, ...]) -> None:
        """Give a task that waits another rank. Unknown ids are ignored."""
        ...

    def cancel(self, task: int) -> None:
        """Stop a task and free what it holds. No further event for it; unknown ids are ignored."""
        ...

    def suspend(self) -> Sequence[tuple[int, tuple[int, ...]]]:
        """Stop all tasks, and free what they hold. No further event for them.

        Returns each with the ids of the tokens that it has generated. Another instance of the same model is
        given these as `LLMTask.generated`. No ids stand for a task that is to start over.
        """
        ...

    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        ...

    def step(self) -> list[LLMEvent]:
        """Do one bounded piece of work (at most one token per running sequence) and report it."""
        ...

    def release(self, query: str) -> None:
        """Forget the KV that only `query` used."""
        ...

    def take_kv_events(self) -> Sequence[KVEvent]:
        """Return what has come into the prefix cache and gone since the last call; nothing if unknown."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...


class AsyncLLM(Protocol):
    """An LLM behind a server. All calls come from one event loop; tasks run concurrently."""

    async def start(self) -> None:
        """Wait until the server can take tasks, as far as that is known without asking it.

        Raises:
            EngineFailure: it will not be able to.
        """
        ...

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        """Run one task, emitting its events; the last one is `Done` or `Failed`.

        Cancelling the coroutine aborts the request at the server. `rank` is its place among others, the
        smaller first, for servers that order requests.
        """
        ...

    def written(self, task: int) -> tuple[int, ...]:
        """Return the ids of the tokens that a running task has generated, for `LLMTask.generated` elsewhere.

        No ids stand for a task that is to start over.
        """
        ...

    async def watch(self, report: Callable[[Sequence[KVEvent] | InstanceLoad], None]) -> None:
        """Report changes of the prefix cache and the load, as far as the server tells, until cancelled.

        Raises:
            EngineUnavailable: the server has ended for good.
        """
        ...

    async def probe(self) -> None:
        """Ask whether the server can take tasks. Raises EngineFailure if it cannot, or does not answer."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...
