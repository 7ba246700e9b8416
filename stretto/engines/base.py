"""What an engine is to the rest of Stretto: two contracts, and no third.

A *batch engine* (embedding, reranking, vectors, search, calls) runs a batch and returns. An *LLM
engine* keeps sequences running, admits new ones at any step and answers each with a stream of events.
An LLM engine comes in one of two forms: *stepped* (in-process models; a driver thread calls `step()`)
or *asynchronous* (servers behind HTTP; the driver awaits `generate()`).

Every class named here is constructed by `Engine.executable(Engine.config)`, once per instance, in the
thread or process where it will run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from stretto.core import Prompt
from stretto.errors import StrettoError


@dataclass(frozen=True, slots=True)
class Task:
    """One primitive's share of a batch.

    With `num_items` None it is a single application and `inputs` maps ports to values. Otherwise the
    ports in `each` hold lists of that length, the other ports hold values that broadcast, and the
    answer is a list of that length.
    """

    id: int
    query: str
    step: str
    op: str
    inputs: Mapping[str, object]
    config: Mapping[str, object]
    num_items: int | None = None
    each: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Decode:
    """How a completion is decoded.

    Attributes:
        max_tokens: upper bound of generated tokens.
        items: None for text; "json_list" for a `splittable` decode, whose value is the parsed list of
            strings and which stops at the end of its JSON.
        max_items: stop after that many items ("json_list" only).
        stop: stop strings; the text ends before the first of them.
        temperature: 0 is greedy.
        seed: of the sampler, when temperature > 0.
    """

    max_tokens: int = 128
    items: str | None = None
    max_items: int | None = None
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LLMTask:
    """A prompt to prefill, and to complete unless `decode` is None.

    The prompt is always the whole prompt so far: what an earlier task left in the cache saves time and
    is never relied on. A task without `decode` answers `Done` with None when its prefix is held.
    """

    id: int
    query: str
    step: str
    prompt: Prompt
    decode: Decode | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one finished LLM task."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """The task has left the instance's queue: its prefill begins."""

    task: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a task's output as soon as it exists: a text delta, or one complete list item."""

    task: int
    value: str


@dataclass(frozen=True, slots=True)
class Done:
    """The task's whole value: str, list[str] with `items`, or None for a prefill."""

    task: int
    value: object
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Failed:
    """The task has ended without a value. The instance goes on with the others."""

    task: int
    error: StrettoError


LLMEvent: TypeAlias = Started | Piece | Done | Failed


class SteppedLLM(Protocol):
    """An in-process LLM engine: `admit` and `cancel` between calls of `step`, all on one thread."""

    def admit(self, task: LLMTask, priority: float) -> None:
        """Queue a task; higher priority goes first. Problems are answered by `Failed` from `step`."""
        ...

    def cancel(self, task: int) -> None:
        """Stop a task and free what it holds. No further event for it; unknown ids are ignored."""
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

    def close(self) -> None:
        """Free the model."""
        ...


class AsyncLLM(Protocol):
    """An LLM behind a server. All calls come from one event loop; tasks run concurrently."""

    async def generate(self, task: LLMTask, emit: Callable[[LLMEvent], None]) -> None:
        """Run one task, emitting its events; the last one is `Done` or `Failed`.

        Cancelling the coroutine aborts the request at the server.
        """
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...
