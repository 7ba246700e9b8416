"""Parrot's interface to the engine: contexts that are filled, generated from, forked and freed.

A context is a list of tokens. The engine's cache keeps its KV while the context lives, if there is room; a
fork copies the tokens and shares the KV. A context whose KV were evicted, or that is filled only when needed,
costs time and nothing else.

Source: Parrot §7. Differs: fill takes segments, and generate may run on several contexts at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace

from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.running_task import TransformerUsage
from stretto.model.errors import ConfigError, QueryCancelled, StrettoError, UserError
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask, Piece
from stretto.model.values import Prompt


@dataclass(slots=True)
class _Context:
    id: int
    tokens: list[int]
    tenant: str
    generation: RunningGeneration | None = None
    fills: set[int] = field(default_factory=set)

    @property
    def query(self) -> str:
        """Query id under which the context's prefixes are cached."""
        return f"context {self.id}"


@dataclass(slots=True, eq=False)
class RunningGeneration:
    """A running generation on a context. Iterate over it, with `for` or `async for`, to get
    its pieces.

    `value` and `usage` are set at the end of the iteration. If the generation fails, iterating raises its
    error.
    """

    contexts: Contexts
    context: int
    task: int
    value: object = None
    usage: TransformerUsage | None = None
    error: StrettoError | None = None
    _pieces: deque[str] = field(default_factory=deque)

    @property
    def is_over(self) -> bool:
        """Whether the generation has ended, with a value or with an error."""
        return self.usage is not None or self.error is not None

    def __iter__(self) -> Iterator[str]:
        while self._pieces or not self.is_over:
            if self._pieces:
                yield self._pieces.popleft()
            else:
                self.contexts.step()
        if self.error is not None:
            raise self.error

    async def __aiter__(self) -> AsyncIterator[str]:
        while self._pieces or not self.is_over:
            if self._pieces:
                yield self._pieces.popleft()
            else:
                await self.contexts.step_for(self)
        if self.error is not None:
            raise self.error

    def result(self) -> object:
        """Wait for the end of the generation, and return its whole value: text, or a list of items."""
        for _ in self:
            pass
        return self.value


class Contexts:
    """A low-level interface to an in-process LLM: contexts are lists of tokens that can be extended,
    completed, copied and freed.

    This is Parrot's interface to an engine. The object runs the engine's steps itself. All methods except the
    steps are quick, but wait for a step that runs in another thread.
    """

    def __init__(self, llm: TransformerLLM) -> None:
        self._llm = llm
        self._contexts: dict[int, _Context] = {}
        self._generations: dict[int, RunningGeneration] = {}
        self._fills: dict[int, _Context] = {}
        self._num_contexts = 0
        self._num_tasks = 0
        self._turn = asyncio.Lock()  # held by the coroutine that steps
        self._engine = threading.RLock()  # held by the thread that uses the engine

    def fill(
        self, prompt: Prompt, *, context: int | None = None, lazily: bool = False, tenant: str = ""
    ) -> int:
        """Append text segments to a context, or to a new one if `context` is None; return
        its number.

        Args:
            lazily: whether to compute the KV only when something is generated, instead of in the next steps.

        Raises:
            StrettoError: the context is unknown, busy or would be too long, or a segment is not text. Nothing
                has changed then.
        """
        before = None if context is None else self._idle(context)
        tokens = self._llm.tokenizer.encode(prompt)
        if before is not None:
            tokens = before.tokens + tokens[len(self._llm.tokenizer.encode(())) :]
        found = before or self._open([], tenant)
        if not lazily:
            task = self._task(found, "fill", None)
            with self._engine:
                try:
                    self._llm.admit_tokens(task, tokens)
                except StrettoError:
                    if before is None:
                        del self._contexts[found.id]
                    raise
                found.fills.add(task.id)
                self._fills[task.id] = found
        found.tokens = tokens
        return found.id

    def generate(self, context: int, decode: Decode, rank: tuple[float, ...] = ()) -> RunningGeneration:
        """Start to generate a continuation of a context, which is appended to it at the end.

        Iterate over the result to get the output's pieces. Smaller ranks start first.

        Raises:
            StrettoError: the context is unknown, busy or too long, or `decode` is invalid.
        """
        found = self._idle(context)
        task = self._task(found, "generate", decode)
        with self._engine:
            self._llm.admit_tokens(task, found.tokens, rank)
            found.generation = self._generations[task.id] = RunningGeneration(self, context, task.id)
        return found.generation

    def generate_several(self, context: int, decode: Decode, n: int) -> list[RunningGeneration]:
        """Start `n` generations, each on its own copy of a context (token list) and with a different seed.

        Raises:
            ConfigError: `n` is less than 1.
            StrettoError: the context is unknown, busy or too long, or `decode` is invalid.
        """
        if n < 1:
            raise ConfigError(f"n must be at least 1, got {n}")
        return [self.generate(self.fork(context), replace(decode, seed=decode.seed + i)) for i in range(n)]

    def fork(self, context: int) -> int:
        """Copy a context to a new one, which shares its KV; return the new one's number."""
        found = self._idle(context)
        return self._open(list(found.tokens), found.tenant).id

    def abort(self, generation: RunningGeneration) -> None:
        """Stop a running generation; its context stays as it was before. Does nothing after its end."""
        with self._engine:
            if not generation.is_over:
                self._llm.cancel(generation.task)
                self._end(generation, QueryCancelled("the generation was aborted"))

    def free(self, context: int) -> None:
        """Delete a context, stop what runs on it, and drop the cached KV that only it used.

        Raises:
            UserError: the context is unknown, perhaps because it was freed before.
        """
        found = self._known(context)
        with self._engine:
            if found.generation is not None:
                self.abort(found.generation)
            for task in found.fills:
                self._llm.cancel(task)
                del self._fills[task]
            del self._contexts[context]
            self._llm.release(found.query)

    def tokens(self, context: int) -> tuple[int, ...]:
        """Return the token ids of a context: those of the texts appended to it and of generated outputs."""
        return tuple(self._known(context).tokens)

    def step(self) -> None:
        """Run one step of the engine: compute a batch for all tasks that run on contexts."""
        with self._engine:
            for event in self._llm.step():
                if event.task in self._generations:
                    self._tell(self._generations[event.task], event)
                elif isinstance(event, Done | Failed):
                    self._fills.pop(event.task).fills.remove(event.task)

    async def step_for(self, generation: RunningGeneration) -> None:
        """Run a step of the engine in another thread, to get the next piece of `generation`.

        No step is run if a step of another coroutine has brought the next piece, or the end, meanwhile.
        """
        async with self._turn:
            if not generation.is_over and not generation._pieces:
                await asyncio.to_thread(self.step)

    def _tell(self, generation: RunningGeneration, event: LLMEvent) -> None:
        match event:
            case Piece(value=piece):
                generation._pieces.append(piece)
            case Failed(error=error):
                self._end(generation, error)
            case Done(value=value, usage=TransformerUsage() as usage):
                found = self._contexts[generation.context]
                found.tokens = found.tokens + self._llm.tokenizer.suffix + list(usage.tokens)
                self._end(generation, None)
                generation.value, generation.usage = value, usage

    def _open(self, tokens: list[int], tenant: str) -> _Context:
        context = self._contexts[self._num_contexts] = _Context(self._num_contexts, tokens, tenant)
        self._num_contexts += 1
        return context

    def _known(self, context: int) -> _Context:
        if context not in self._contexts:
            raise UserError(f"there is no context {context}; it was never made, or was freed")
        return self._contexts[context]

    def _idle(self, context: int) -> _Context:
        found = self._known(context)
        if found.generation is not None:
            raise UserError(f"context {context} is being generated from; fork it before")
        return found

    def _task(self, context: _Context, step: str, decode: Decode | None) -> LLMTask:
        self._num_tasks += 1
        return LLMTask(self._num_tasks - 1, context.query, step, (), decode, context.tenant)

    def _end(self, generation: RunningGeneration, error: StrettoError | None) -> None:
        del self._generations[generation.task]
        self._contexts[generation.context].generation = None
        generation.error = error  # set last, because another thread may wait for it
