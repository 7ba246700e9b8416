"""The contracts between engines and the rest of Stretto: one for batch engines, one for LLM engines.

A *batch engine* (embedding, reranking, vectors, search, calls) runs a batch and returns. An *LLM
engine* keeps sequences running, admits new ones at any step and answers each with a stream of events.
An LLM engine comes in one of two forms: *stepped* (in-process models; a driver thread calls `step()`)
or *asynchronous* (servers behind HTTP; the driver awaits `generate()`).

Every class named here is constructed by `Replica.executable(Replica.config)`, once per instance, in the
thread or process where it will run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from stretto.cluster.kv_events import KVEvent
from stretto.model.tasks import LLMEvent, LLMTask, Reuse, Task


class BatchEngine(Protocol):
    """The interface of an engine that runs batches, such as an embedding model or a vector store. It lives on
    one thread; calls never overlap.

    An engine that subclasses it need not have `release` and `close`, if it keeps nothing.

    Attributes:
        op_names: names of the ops that it runs; it is measured by the workload of one (`OpSpec.workloads`).
    """

    op_names: Sequence[str] = ()

    def run(self, tasks: Sequence[Task]) -> Sequence[object]:
        """Answer every task of a batch, in order, in one call of the underlying model or store.

        A task's answer is its output value, or a list of `num_items` of them. A `StrettoError` in place of a
        value fails that one alone. Raising an exception fails the whole batch; the scheduler then retries its
        tasks one by one, so that only the faulty task fails.
        """
        ...

    def release(self, query: str) -> None:
        """Drop all data kept for a query that has ended. Called once per query at most."""
        return

    def close(self) -> None:
        """Free the models, files and connections that the engine holds."""
        return


@runtime_checkable
class CheckedConfig(Protocol):
    """The further method of a configuration whose engine does not run every step of its ops, for example
    because it has only some functions.
    """

    def check_step(self, settings: Mapping[str, object]) -> None:
        """Check, before a query begins, that the engine can run a step with these settings. Raises
        ConfigError if it cannot.
        """
        ...


@runtime_checkable
class ProbedEngine(Protocol):
    """The further method of a batch engine whose work is done elsewhere, at a server that may be down.

    An error `EngineUnavailable` or `EngineTimeout` of such an engine makes its instance suspect: it gets no
    work until `probe` succeeds.
    """

    def probe(self) -> None:
        """Check whether the server can take work. Raises EngineFailure if it cannot, or does not answer."""
        ...


@runtime_checkable
class StoppableEngine(Protocol):
    """The further method of a batch engine that can leave tasks out while it runs a batch, because nobody
    wants their answers any more: their query was cancelled, or its client has left.

    Engines whose batches take seconds should have it. Only instances in threads tell of such tasks.
    """

    def heed(self, is_unwanted: Callable[[int], bool]) -> None:
        """Take the function that says of the id of a task whether its answer is unwanted by now.

        Called once, before the first batch. `run` should ask between pieces of work that take a fraction of
        a second, and may put any value or error in place of an unwanted answer.
        """
        ...


class SteppedLLM(Protocol):
    """The interface of an LLM engine that runs in our process and computes one step (engine iteration) per
    call of `step`.

    All calls come from one thread, none while `step` runs.
    """

    def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        """Add a task to the engine's waiting queue; tasks with smaller ranks start first.

        If the task cannot run, a later `step` returns a `Failed` for it. A task with `generated` tokens, made
        by another instance, is continued after them, or starts over. In both cases the pieces make up the
        whole output.
        """
        ...

    def reprioritise(self, task: int, rank: tuple[float, ...]) -> None:
        """Change the rank (priority, smallest first) of a waiting task. Unknown ids are ignored."""
        ...

    def cancel(self, task: int) -> None:
        """Stop a task and free its memory. It sends no further event; unknown ids are ignored."""
        ...

    def suspend(self) -> Sequence[tuple[int, tuple[int, ...]]]:
        """Stop all tasks so that they can go on at another instance, and free their memory.

        Returns the id of each task with the ids of the tokens that it has generated. Another instance of the
        same model gets those as `LLMTask.generated`; a task without ids starts over. No further event is sent
        for them.
        """
        ...

    def has_work(self) -> bool:
        """Return whether `step` has something to do: a task waits or runs, or an event is to be sent."""
        ...

    def step(self) -> list[LLMEvent]:
        """Do one bounded piece of work, and return what happened: tasks that started, gave output or ended.

        A running sequence gets at most one token, or as many as the engine is configured for.
        """
        ...

    def release(self, query: str) -> None:
        """Drop the KV that only a query used, because the query has ended."""
        ...

    def take_kv_events(self) -> Sequence[KVEvent]:
        """Return, and forget, what the prefix cache stored and evicted since the last call.

        Empty if the engine does not record it.
        """
        ...

    def close(self) -> None:
        """Free the model and its memory, as the instance ends."""
        ...


class AsyncLLM(Protocol):
    """The interface of an LLM behind a server. All calls come from one event loop; tasks run concurrently."""

    async def start(self) -> None:
        """Wait until the server can take tasks.

        An engine that has to start its server starts it here; any other server is taken to be ready.

        Raises:
            EngineFailure: the server cannot be started.
        """
        ...

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        """Run one task on the server and emit its events; the last one is `Done` or `Failed`.

        Cancelling the coroutine aborts the request at the server. `rank` is the task's place among others,
        the smaller first, for servers that order requests.
        """
        ...

    def written(self, task: int) -> tuple[int, ...]:
        """Return the ids of the tokens that a running task has generated, so that another instance can
        continue after them.

        Empty if they are unknown, as where a server sends text; the task then starts over.
        """
        ...

    async def watch(self, report: Callable[[Sequence[KVEvent]], None]) -> None:
        """Watch the server until cancelled: call `report` with changes of its prefix cache, if it tells them.

        Raises:
            EngineUnavailable: the server has ended for good.
        """
        ...

    async def probe(self) -> None:
        """Check whether the server can take tasks. Raises EngineFailure if it cannot, or does not answer."""
        ...

    async def aclose(self) -> None:
        """Close the connections to the server, and end the server if the engine started it."""
        ...


@runtime_checkable
class RetainingLLM(Protocol):
    """The further method of a stepped LLM engine that evicts by what will be needed again."""

    def retain(self, reuse: Reuse) -> None:
        """Note when a query will need cached prefixes again. It is a hint for the order
        of evictions: what the engine does not hold, or cannot tokenise, is ignored.
        """
        ...
