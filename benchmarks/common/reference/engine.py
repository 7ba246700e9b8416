"""The reference LLM engine: the model and cache of transformers, one sequence at a time.

The engine is slow and simple on purpose, because faster engines are tested against it: nothing is batched,
paged or fused. In float32 its logits differ by about 1e-5 at most between ways to cut and cache a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.cluster.kv_events import KVEvent
from stretto.engines.decoding import BASIC, max_new_tokens, refuse_others, without_wishes
from stretto.engines.loading import one_load
from stretto.engines.scripted.task_queue import TaskQueue
from stretto.engines.transformer.running_task import as_written
from stretto.llm.output.output import DecodeOutput
from stretto.llm.output.thoughts import Opening
from stretto.model.errors import CapacityError, StrettoError, UserError
from stretto.model.tasks import Done, Failed, Finish, LLMEvent, LLMTask, Piece, Started, Usage
from stretto.model.values import Segment, answer_segment

if TYPE_CHECKING:
    import torch
    from transformers.cache_utils import DynamicCache

_CHUNK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class ReferenceConfig:
    """Configuration of `ReferenceLLM`, the slow engine that faster ones are tested against.

    Attributes:
        path: folder of a checkpoint in Hugging Face layout.
        max_cached_tokens: largest number of tokens in all cached prefixes.
    """

    path: str | Path
    dtype: str = "float32"
    device: str = "cpu"
    max_running: int = 8
    num_threads: int = 1
    max_cached_tokens: int = 32_768

    @property
    def output_key(self) -> tuple[str, str, str]:
        """Key that is equal for engines with equal answers, up to rounding: the checkpoint and the dtype.

        A task that was interrupted may go on at an instance with an equal key.
        """
        return "checkpoint", str(Path(self.path).resolve()), self.dtype


@dataclass(frozen=True, slots=True)
class ReferenceUsage(Usage):
    """The token counts of a finished task, and `min_gap`: the smallest difference of the two best logits in
    any greedy step.
    """

    min_gap: float = math.inf


@dataclass(slots=True)
class _Sequence:
    """A running task. `cache` holds the leading tokens of `tokens`; `logits` follow the last of them. `ends`
    are the characters up to the end of each generated token.
    """

    task: LLMTask
    tokens: list[int]
    num_prompt_tokens: int
    num_cached_tokens: int
    cache: DynamicCache
    output: DecodeOutput | None
    sampler: torch.Generator
    max_tokens: int
    logits: torch.Tensor | None = None
    generated: list[int] = field(default_factory=list)
    num_chars: int = 0
    ends: list[int] = field(default_factory=list)
    min_gap: float = math.inf


class ReferenceLLM:
    """An LLM engine that uses the model and cache of transformers, to test faster engines against.

    Sequences are computed one at a time. A step prefills one chunk of one sequence, or decodes one token of
    each running sequence.
    """

    def __init__(self, config: ReferenceConfig) -> None:
        """Load the model.

        Raises:
            ConfigError: the checkpoint is missing, corrupt or of an unsupported kind.
        """
        with one_load(f"the checkpoint {config.path}"):
            import torch

            from benchmarks.common.reference.checkpoint import load_checkpoint
            from benchmarks.common.reference.prefix_store import PrefixStore
        torch.set_num_threads(config.num_threads)
        self._max_running = config.max_running
        self._tokenizer, self._model = load_checkpoint(Path(config.path), config.dtype, config.device)
        self._context_tokens: int = self._model.config.get_text_config().max_position_embeddings
        eos = self._model.generation_config.eos_token_id
        self._eos = {*self._tokenizer.ending, *(eos if isinstance(eos, list) else [eos])}
        self._prefixes = PrefixStore(config.max_cached_tokens)
        self._waiting = TaskQueue()
        self._prefilling: _Sequence | None = None
        self._decoding: dict[int, _Sequence] = {}

    def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        """Add a task to the engine's waiting queue; tasks with smaller ranks start first."""
        self._waiting.push(task, rank)

    def reprioritise(self, task: int, rank: tuple[float, ...]) -> None:
        """Change the rank (priority, smallest first) of a waiting task."""
        self._waiting.reprioritise(task, rank)

    def cancel(self, task: int) -> None:
        """Stop a waiting or running task; the KV that it has computed is not cached."""
        self._waiting.discard(task)
        self._decoding.pop(task, None)
        if self._prefilling is not None and self._prefilling.task.id == task:
            self._prefilling = None

    def suspend(self) -> list[tuple[int, tuple[int, ...]]]:
        """Stop all tasks, so that they can start over at another instance.

        Returns the id of each task with an empty tuple: this engine does not hand generated tokens on.
        """
        started = [*self._decoding.values(), *([self._prefilling] if self._prefilling else [])]
        tasks = [*(sequence.task for sequence in started), *self._waiting.take_all()]
        self._decoding.clear()
        self._prefilling = None
        return [(task.id, ()) for task in tasks]

    def has_work(self) -> bool:
        """Return whether any task waits or runs, so that `step` has something to do."""
        return bool(self._waiting or self._prefilling or self._decoding)

    def step(self) -> list[LLMEvent]:
        """Compute one chunk of a prefill, or if there is none one token of each decode; return the events
        that tell the progress of tasks.

        A task starts only when the task before it has been prefilled, so that it finds that prefix cached.
        """
        import torch

        with torch.inference_mode():
            return self._step()

    def _step(self) -> list[LLMEvent]:
        if self._prefilling is not None:
            return self._prefill(self._prefilling)
        if self._waiting and len(self._decoding) < self._max_running:
            task = self._waiting.pop()
            try:
                self._prefilling = self._start(task)
            except StrettoError as error:
                return [Started(task.id), Failed(task.id, error.at(task.step))]
            return [Started(task.id), *self._prefill(self._prefilling)]
        return [event for sequence in list(self._decoding.values()) for event in self._decode(sequence)]

    def release(self, query: str) -> None:
        """Drop the prefixes that are cached for a query, which has ended."""
        self._prefixes.release(query)

    def take_kv_events(self) -> Sequence[KVEvent]:
        """Return nothing, because changes of this engine's prefix cache are not recorded."""
        return ()

    def close(self) -> None:
        """Free the model and its memory, as the instance ends."""
        del self._model

    def _start(self, task: LLMTask) -> _Sequence:
        import torch

        tokens = self._tokenizer.encode(task.prompt)
        num_prompt_tokens, max_tokens = len(tokens), 0
        output, sampler = None, torch.Generator()
        if task.decode is not None:
            refuse_others(without_wishes(task.decode), BASIC, "the reference engine")
            opening: Opening = "certain" if self._tokenizer.opens_thoughts(task.prompt) else "none"
            output = DecodeOutput(task.decode, task.prompt, opening)
            sampler.manual_seed(task.decode.seed)
            tokens += self._tokenizer.end_of(task.prompt)
            if not tokens:
                raise UserError("the prompt is empty: there is nothing to complete")
            max_tokens = max_new_tokens(task.decode, len(tokens), self._context_tokens)
        if len(tokens) + max_tokens > self._context_tokens:
            raise CapacityError(
                f"{len(tokens)} prompt tokens and max_tokens {max_tokens} exceed "
                f"the model's context of {self._context_tokens} tokens"
            )
        cache = self._prefixes.fork(task.tenant, tokens)
        return _Sequence(
            task, tokens, num_prompt_tokens, cache.get_seq_length(), cache, output, sampler, max_tokens
        )

    def _prefill(self, sequence: _Sequence) -> list[LLMEvent]:
        position = sequence.cache.get_seq_length()
        chunk = sequence.tokens[position : position + _CHUNK_TOKENS]
        if chunk:
            self._forward(sequence, chunk)
        if position + len(chunk) < len(sequence.tokens):
            return []
        self._prefilling = None
        if sequence.output is None:
            return [self._done(sequence, None)]
        self._decoding[sequence.task.id] = sequence
        return []

    def _decode(self, sequence: _Sequence) -> list[LLMEvent]:
        """Choose a token and, unless it is the last one, compute its KV."""
        task, output = sequence.task, sequence.output
        assert output is not None
        assert task.decode is not None
        token = self._choose(sequence, task.decode.temperature)
        sequence.generated.append(token)
        pieces: list[str] = []
        finished = token in self._eos
        try:
            if not finished:
                pieces, finished = output.feed(self._new_text(sequence))
                sequence.ends.append(sequence.num_chars)
            if not finished and len(sequence.generated) < sequence.max_tokens:
                self._forward(sequence, [token])
                return [Piece(task.id, piece) for piece in pieces]
            last, value = output.finish("stop" if finished else "length")
            ending: LLMEvent = self._done(sequence, value)
        except StrettoError as error:
            last, ending = [], Failed(task.id, error.at(task.step))
        del self._decoding[task.id]
        return [*(Piece(task.id, piece) for piece in pieces + last), ending]

    def _forward(self, sequence: _Sequence, tokens: list[int]) -> None:
        import torch

        input_ids = torch.tensor([tokens], device=self._model.device)
        logits = self._model(input_ids, past_key_values=sequence.cache, logits_to_keep=1).logits
        sequence.logits = logits[0, -1].float().cpu()

    def _choose(self, sequence: _Sequence, temperature: float) -> int:
        import torch

        assert sequence.logits is not None
        if temperature > 0:
            weights = torch.softmax(sequence.logits / temperature, dim=-1)
            return int(torch.multinomial(weights, 1, generator=sequence.sampler))
        best, second = sequence.logits.topk(2).values.tolist()
        sequence.min_gap = min(sequence.min_gap, best - second)
        return int(sequence.logits.argmax())

    def _new_text(self, sequence: _Sequence) -> str:
        """Text that the last token added; empty while the text ends within a character."""
        text = self._tokenizer.decode(sequence.generated)
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        start, sequence.num_chars = sequence.num_chars, len(text)
        return text[start:]

    def _done(self, sequence: _Sequence, value: object) -> Done:
        """End a task with its value; keep the prompt's part of the cache, and all of it if a later
        prompt goes on from the output.
        """
        task, output, kept = sequence.task, sequence.output, sequence.tokens[: sequence.num_prompt_tokens]
        written: Segment | None = None
        if task.is_continued and output is not None and (text := output.written) is not None:
            kept = (sequence.tokens + sequence.generated)[: sequence.cache.get_seq_length()]
            written = (
                answer_segment(text)
                if output.has_thoughts
                else as_written(text, self._tokenizer.name, sequence.generated, sequence.ends)
            )
        self._prefixes.keep(task.tenant, task.query, kept, sequence.cache)
        counts = (len(sequence.tokens), sequence.num_cached_tokens, len(sequence.generated))
        finish: Finish = "stop" if output is None else output.finish_reason
        return Done(task.id, value, ReferenceUsage(*counts, min_gap=sequence.min_gap), written, finish)
