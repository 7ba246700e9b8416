"""The in-process LLM engine: a Hugging Face checkpoint, paged KV, and continuous batching."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from stretto.cluster.kv_events import KVEvent
from stretto.cluster.prompt_keys import PromptSpace, token_space
from stretto.engines.gguf_file import is_gguf, read_gguf
from stretto.engines.loading import one_load
from stretto.engines.models.store import check_whole
from stretto.engines.prompt_tokens import PromptTokenizer
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.engines.transformer.new_runs import NewRuns, Run
from stretto.engines.transformer.token_choice import TokenChoice
from stretto.llm.local_scheduler import LocalScheduler, SchedulerConfig
from stretto.llm.sequence import TokenSequence
from stretto.model.errors import ConfigError, StrettoError
from stretto.model.tasks import Failed, LLMEvent, LLMTask, Reuse, Started


class TransformerLLM:
    """An LLM engine that runs a checkpoint in our process, with paged KV and continuous batching.

    A step decodes one token of every running sequence, and prefills waiting ones beside it.
    """

    def __init__(self, config: TransformerConfig) -> None:
        """Load the checkpoint. Raises ConfigError if it or a setting cannot be used."""
        for name in ("kv_bytes", "block_tokens", "num_threads"):
            value = getattr(config, name)
            if not (value is None and name == "num_threads") and (type(value) is not int or value < 1):
                raise ConfigError(f"{name} is {value!r}: a number of at least 1")
        with one_load(f"the checkpoint {config.path}"):
            import torch

            from stretto.engines.transformer.runner import Runner
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        folder = Path(config.path)
        check_whole(folder)
        self.runner = Runner(
            folder,
            dtype=config.dtype,
            device=config.device,
            kv_bytes=config.kv_bytes,
            block_tokens=config.block_tokens,
            shares_attention=config.shares_attention,
        )
        self.scheduler = LocalScheduler(
            SchedulerConfig(
                num_blocks=self.runner.num_blocks,
                block_tokens=config.block_tokens,
                max_running=config.max_running,
                max_batch_tokens=config.max_batch_tokens,
                policy=config.policy,
                level_s=config.level_s,
                with_events=config.with_kv_events,
            )
        )
        self.tokenizer = self._tokenizer_of(folder)
        kv_tokens = self.runner.num_blocks * config.block_tokens
        context_tokens = self.runner.config.context_tokens
        self._new_runs = NewRuns(
            folder,
            self.tokenizer,
            frozenset(_eos_tokens(folder, self.tokenizer)),
            vocabulary=self.runner.config.vocabulary,
            context_tokens=context_tokens,
            room_tokens=min(context_tokens, kv_tokens),
        )
        self._config = config
        self._tasks: dict[int, Sequence[Run]] = {}
        self._by_sequence: dict[int, Run] = {}
        self._ended: list[LLMEvent] = []

    @staticmethod
    def prompt_space(config: TransformerConfig) -> PromptSpace | None:
        """Return the rule (`PromptSpace`) by which instances turn prompts into the block hashes that they
        report as cached.

        None if the configuration says that they report nothing.

        Raises:
            ConfigError: the checkpoint's tokenizer cannot be used.
        """
        if not config.with_kv_events:
            return None
        folder = Path(config.path).resolve()
        return token_space(str(folder), config.block_tokens, _shared_tokenizer(folder).encode)

    def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        """Add a task to the engine's waiting queue; tasks with smaller ranks start first.

        A task that cannot run is answered by `Failed` in the next step.
        """
        try:
            tokens = self.tokenizer.encode(task.prompt)
            self.admit_tokens(task, tokens, rank)
        except StrettoError as error:
            self._ended += [Started(task.id), Failed(task.id, error.at(task.step))]

    def admit_tokens(self, task: LLMTask, tokens: list[int], rank: tuple[float, ...] = ()) -> None:
        """Add a task to the waiting queue, with its prompt as token ids instead of text.

        Raises:
            StrettoError: the task cannot run: its prompt, settings or length are unusable.
        """
        assert task.id not in self._tasks, f"task {task.id} is still running"
        runs = self._new_runs.make(task, tokens, rank)
        if runs[0].is_over:
            runs[0].tell([], self._ended)
            return
        for one in runs:  # the longest comes first, and is refused if it does not fit
            self.scheduler.add(one.sequence, self._config.clock())
            self._by_sequence[one.sequence.id] = one
        self._tasks[task.id] = runs

    def reprioritise(self, task: int, rank: tuple[float, ...]) -> None:
        """Change the rank (priority, smallest first) of a waiting or running task. Ignores unknown ids."""
        for one in self._tasks.get(task, ()):
            self.scheduler.reprioritise(one.sequence, rank)

    def cancel(self, task: int) -> None:
        """Stop a waiting or running task; it sends no further event."""
        self._ended = [event for event in self._ended if event.task != task]
        for one in self._tasks.get(task, ()):
            if not one.is_over:
                self.scheduler.abort(one.sequence)
                self._forget(one)
        self._tasks.pop(task, None)

    def suspend(self) -> list[tuple[int, tuple[int, ...]]]:
        """Stop all tasks, so that they can go on at another instance.

        Returns the id of each task with the tokens that it has generated. The other instance delivers the
        output from the first token on again.
        """
        suspended = [(task, runs[0].generated) for task, runs in self._tasks.items()]
        untold = dict.fromkeys(event.task for event in self._ended)
        for task, _ in suspended:
            self.cancel(task)
        self._ended.clear()
        return [*suspended, *((task, ()) for task in untold)]

    def has_work(self) -> bool:
        """Return whether `step` has something to do: a task waits or runs, or an event is still to be
        sent.
        """
        return bool(self._tasks or self._ended)

    def step(self) -> list[LLMEvent]:
        """Schedule and compute one step, and return its events: tasks that started, gave output or ended."""
        events, self._ended = self._ended, []
        if not self._tasks:
            return events
        batch = self.scheduler.schedule()
        chosen = self.runner.run(batch, self._choice_of)
        told: dict[int, list[int]] = {}
        ended: list[Run] = []
        for piece in batch.slices:
            sequence = piece.sequence
            one = self._by_sequence[sequence.id]
            if piece.samples:
                told[sequence.id] = one.tell([chosen[sequence.id]], events)
            else:
                one.tell_prefilled(piece.start + piece.num_tokens, events)
            if one.is_over:
                ended.append(one)
        self.scheduler.complete(batch, told)
        for one in ended:
            self.scheduler.finish(one.sequence)
            self._forget(one)
        return events

    def release(self, query: str) -> None:
        """Drop the KV that only a query used, because the query has ended.

        With `keeps_released` nothing is dropped before its memory is needed; what was noted by `retain` is.
        """
        if self._config.keeps_released:
            self.scheduler.cache.keep_released(query)
        else:
            self.scheduler.cache.forget(query)

    def retain(self, reuse: Reuse) -> None:
        """Note when a query will need cached prefixes again; it orders evictions only.

        Prompts that cannot be tokenised are ignored.
        """
        with suppress(StrettoError):
            self.scheduler.retain(reuse, self.tokenizer.encode, self._config.clock())

    def take_kv_events(self) -> list[KVEvent]:
        """Return, and forget, what the prefix cache stored and evicted since the last call.

        Empty unless `with_kv_events` is set.
        """
        return self.scheduler.cache.take_events()

    def close(self) -> None:
        """Free the model and the KV memory."""
        del self.runner

    def _tokenizer_of(self, folder: Path) -> PromptTokenizer:
        return _load_tokenizer(folder)

    def _choice_of(self, sequence: TokenSequence) -> TokenChoice | None:
        return self._by_sequence[sequence.id].choice()

    def _forget(self, one: Run) -> None:
        del self._by_sequence[one.sequence.id]
        if all(other.is_over for other in self._tasks.get(one.task.id, ())):
            self._tasks.pop(one.task.id, None)  # several may end in one step


@lru_cache(maxsize=8)
def _shared_tokenizer(folder: Path) -> PromptTokenizer:
    """Return the tokenizer with which prompts are placed, apart from those of the engines' own threads."""
    return _load_tokenizer(folder)


def _load_tokenizer(folder: Path) -> PromptTokenizer:
    try:
        return PromptTokenizer(folder)
    except ConfigError:
        raise
    except Exception as error:  # whatever the loaders raise, it is about these files
        raise ConfigError(f"cannot load the tokenizer in {folder}: {error}") from error


def _eos_tokens(folder: Path, tokenizer: PromptTokenizer) -> list[int]:
    """Return the tokens that end an answer: those of the tokenizer and its chat template, of the
    configuration, and of the settings for generation.
    """
    if is_gguf(folder):
        return [*tokenizer.ending, *read_gguf(folder).ending_tokens()]
    found: list[int | None] = [*tokenizer.ending]
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        if path.is_file():
            try:
                eos = json.loads(path.read_text("utf-8")).get("eos_token_id")
            except (OSError, ValueError, AttributeError) as error:
                raise ConfigError(f"{path} cannot be read: {error}") from error
            found += eos if isinstance(eos, list) else [eos]
            if not all(isinstance(token, int | None) for token in found):
                raise ConfigError(f"{path}: eos_token_id is {eos!r}: expected tokens")
    return [token for token in found if token is not None]
