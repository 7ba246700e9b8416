"""The sequences of a new task of the in-process engine, after checks that the model can run it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from stretto.engines.decoding import max_new_tokens
from stretto.engines.prompt_tokens import PromptTokenizer
from stretto.engines.transformer.options import Comparison, OptionPath, compares_options
from stretto.engines.transformer.running_task import RunningTask, TextStream
from stretto.engines.transformer.structured import Structures
from stretto.llm.output.output import DecodeOutput
from stretto.llm.output.sampling import check_sampling, ending_tokens
from stretto.llm.output.thoughts import Opening
from stretto.llm.sequence import TokenSequence
from stretto.model.errors import CapacityError, UserError
from stretto.model.tasks import Decode, LLMTask

Run: TypeAlias = RunningTask | OptionPath
"""One sequence of a task, and what becomes of its tokens."""


class NewRuns:
    """A maker of the sequences that a task needs: one, or one for each fork of the options to compare.

    Args:
        path: checkpoint.
        eos: tokens that end an answer.
        vocabulary: number of the model's tokens.
        context_tokens: number of tokens of the model's context.
        room_tokens: the smaller of that and of the tokens that the KV memory holds.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: PromptTokenizer,
        eos: frozenset[int],
        *,
        vocabulary: int,
        context_tokens: int,
        room_tokens: int,
    ) -> None:
        self._tokenizer, self.eos = tokenizer, eos
        self._vocabulary, self._context_tokens, self._room_tokens = vocabulary, context_tokens, room_tokens
        self._token_texts: dict[int, str] = {}
        self._structures = Structures(path, vocabulary)
        self._num_made = 0

    def make(self, task: LLMTask, tokens: list[int], rank: tuple[float, ...]) -> Sequence[Run]:
        """Return the sequences of a task with the tokens of its prompt.

        Raises:
            StrettoError: the task cannot run: its prompt, settings or length are unusable.
        """
        if task.decode is None:
            self._check(task, tokens, 0)
            return [self._plain(task, None, self._sequence(task, tokens, 0, rank))]
        decode = task.decode
        check_sampling(decode, self._vocabulary)
        tokens = tokens + self._tokenizer.end_of(task.prompt)
        if not tokens:
            raise UserError("the prompt is empty: there is nothing to complete")
        if compares_options(decode):
            comparison = Comparison(task, decode, self._tokenizer.data_tokens)
            self._check(task, tokens, 1 + max(map(len, comparison.forks)))
            return [
                OptionPath(comparison, fork, self._sequence(task, tokens, 1 + len(fork), rank))
                for fork in comparison.forks
            ]
        num_new_tokens = max_new_tokens(decode, len(tokens), self._room_tokens)
        run = self._plain(task, decode, self._sequence(task, tokens, num_new_tokens, rank))
        self._check(task, tokens, num_new_tokens)
        run.resume(task.generated)
        return [run]

    def _plain(self, task: LLMTask, decode: Decode | None, sequence: TokenSequence) -> RunningTask:
        output, structure, ending = None, None, frozenset[int]()
        if decode is not None:
            opening: Opening = "certain" if self._tokenizer.opens_thoughts(task.prompt) else "none"
            output = DecodeOutput(decode, task.prompt, opening)
            ending, structure = ending_tokens(decode, self.eos), self._structures.make(decode)
        text = TextStream(self._tokenizer, self._token_texts)
        return RunningTask(task, sequence, output, text, ending, structure, self._tokenizer.name)

    def _check(self, task: LLMTask, tokens: list[int], num_new_tokens: int) -> None:
        """Raise an error if the model has no such tokens, or not so many."""
        for part, ids in (("the prompt", tokens), ("what was generated elsewhere", task.generated)):
            if ids and not 0 <= min(ids) <= max(ids) < self._vocabulary:
                raise UserError(f"{part} has tokens outside the vocabulary of the model, {self._vocabulary}")
        if len(tokens) + num_new_tokens > self._context_tokens:
            raise CapacityError(
                f"{len(tokens)} prompt tokens and max_tokens {num_new_tokens} exceed "
                f"the model's context of {self._context_tokens} tokens"
            )

    def _sequence(
        self, task: LLMTask, tokens: list[int], num_new_tokens: int, rank: tuple[float, ...]
    ) -> TokenSequence:
        self._num_made += 1
        return TokenSequence(
            self._num_made - 1,
            [*tokens],
            num_new_tokens,
            rank=rank,
            query=task.query,
            salt=task.tenant,
            is_offline=task.objective == "offline",
        )
