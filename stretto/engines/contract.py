"""The contracts between engines and the rest of Stretto: one for batch engines, one for LLM engines.

A *batch engine* (embedding, reranking, vectors, search, calls) runs a batch and returns. An *LLM
engine* keeps sequences running, admits new ones at any step and answers each with a stream of events.
An LLM engine comes in one of two forms: *stepped* (in-process models; a driver thread calls `step()`)
or *asynchronous* (servers behind HTTP; the driver awaits `generate()`).

Every class named here is constructed by `Replica.executable(Replica.config)`, once per instance, in the
thread or process where it will run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from stretto.cluster.kv_events import KVEvent
from stretto.cluster.messages import InstanceLoad
from stretto.tasks import LLMEvent, LLMTask, Task


class BatchEngine(Protocol):
    """The interface of an engine that runs batches. It lives on one thread; calls never overlap."""

    def run(self, tasks: Sequence[Task]) -> Sequence[object]:
        """Answer every task, in order, in one call of the underlying model or store.

        A task's answer is its output value, or a list of `num_items` of them. Raising fails the whole
        batch; the scheduler then retries its tasks one by one, so that only the faulty task fails.
        """
        ...

    def release(self, query: str) -> None:
        """Forget whatever was kept for `query`, which has ended. Called at most once per query."""
        ...

    def close(self) -> None:
        """Free models, files and connections."""
        ...


class SteppedLLM(Protocol):
    """The interface of an in-process LLM engine. All calls come from one thread, none while `step` runs."""

    def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        """Queue a task; the smaller rank starts first. A task that cannot run is answered by `Failed` from
        `step`.

        A task that has `generated` tokens is continued after them, or starts over. In both cases the pieces
        make up the whole output.
        """
        ...

    def reprioritise(self, task: int, rank: tuple[float, ...]) -> None:
        """Change the rank of a waiting task. Unknown ids are ignored."""
        ...

    def cancel(self, task: int) -> None:
        """Stop a task and free what it holds. It sends no further event; unknown ids are ignored."""
        ...

    def suspend(self) -> Sequence[tuple[int, tuple[int, ...]]]:
        """Stop all tasks and free what they hold; return each with the ids of the tokens it has generated.

        The tasks send no further event. Another instance of the same model gets the ids as
        `LLMTask.generated`; a task without ids starts over.
        """
        ...

    def has_work(self) -> bool:
        """Return whether `step` has something to do."""
        ...

    def step(self) -> list[LLMEvent]:
        """Do one bounded piece of work (at most one token per running sequence) and return its events."""
        ...

    def release(self, query: str) -> None:
        """Forget the KV that only `query` used."""
        ...

    def take_kv_events(self) -> Sequence[KVEvent]:
        """Return changes of the prefix cache since the last call; nothing if they are unknown."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...


class AsyncLLM(Protocol):
    """The interface of an LLM behind a server. All calls come from one event loop; tasks run concurrently."""

    async def start(self) -> None:
        """Wait until the server can take tasks, as far as that is known without asking it.

        Raises:
            EngineFailure: the server will not be able to.
        """
        ...

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        """Run one task and emit its events; the last one is `Done` or `Failed`.

        Cancelling the coroutine aborts the request at the server. `rank` is the task's place among
        others, the smaller first, for servers that order requests.
        """
        ...

    def written(self, task: int) -> tuple[int, ...]:
        """Return the ids of the tokens that a running task has generated, for `LLMTask.generated` elsewhere.

        No ids stand for a task that is to start over.
        """
        ...

    async def watch(self, report: Callable[[Sequence[KVEvent] | InstanceLoad], None]) -> None:
        """Report changes of the prefix cache and the load until cancelled, as far as the server tells them.

        Raises:
            EngineUnavailable: the server has ended for good.
        """
        ...

    async def probe(self) -> None:
        """Check whether the server can take tasks. Raises EngineFailure if it cannot, or does not answer."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...
