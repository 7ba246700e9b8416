"""The in-process LLM engine with a scripted output: the work of a small model, the words of the stand-in.

A small model writes nonsense, and not always the same. With a scripted output every scheme has the same work
and the same answers, and so has the simulation. A scripted token is the only one allowed, as in structured
output; prompts and steps are computed in full.
"""

from __future__ import annotations

import json
from dataclasses import replace

import torch

from benchmarks.common.simulated_answers import output_as_of
from stretto.engines.prompt_tokens import PromptTokenizer
from stretto.engines.scripted.standin import StandIn, StandInConfig
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.engines.transformer.new_runs import Run
from stretto.engines.transformer.running_task import TextStream
from stretto.engines.transformer.token_choice import TokenChoice
from stretto.llm.output.output import DecodeOutput
from stretto.llm.sequence import TokenSequence
from stretto.model.tasks import Decode, LLMTask
from stretto.model.values import Prompt, Segment
from stretto.sim.synthetic_output import SyntheticOutput


class Script:
    """The scripted outputs: the words of the stand-in, as tokens of a checkpoint."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self._tokenizer = tokenizer
        self._stand_in = output_as_of(StandIn(StandInConfig()))
        self._num_before = len(tokenizer.encode(()))
        self._known: dict[int, str] = {}

    def tokens(self, task: LLMTask, decode: Decode) -> list[int]:
        """All tokens of a task's output, the end of sequence included."""
        value = self._stand_in(task, decode).value
        text = value if isinstance(value, str) else json.dumps(value)
        assert self._tokenizer.eos_token_id is not None
        words = self._tokenizer.encode((Segment(text, "answer"),))[self._num_before :]
        return [*words, self._tokenizer.eos_token_id]

    def output(self, task: LLMTask, decode: Decode) -> SyntheticOutput:
        """The pieces and the value of a task's output: an `OutputSource` for simulation."""
        output, text = DecodeOutput(decode), TextStream(self._tokenizer, self._known)
        tokens = self.tokens(task, decode)
        ends: list[int] = []
        for number, token in enumerate(tokens[: decode.max_tokens], 1):
            is_last = token == tokens[-1]
            if not is_last:
                pieces, is_last = output.feed(text.feed(token))
                ends += [number] * len(pieces)
            if is_last or number == decode.max_tokens:
                break
        pieces, value = output.finish()
        ends += [number] * len(pieces)
        assert isinstance(value, str | list)
        return SyntheticOutput(value, number, tuple(ends) if isinstance(value, list) else ())

    def prompt(self, prompt: Prompt) -> list[int]:
        """Tokens of a prompt."""
        return self._tokenizer.encode(prompt)


class ScriptedTransformer(TransformerLLM):
    """A `SteppedLLM` with the outputs of `Script`, at the speed of `TransformerLLM`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self._script = Script(self.tokenizer)
        self._told: dict[int, list[int]] = {}

    def _choice_of(self, sequence: TokenSequence) -> TokenChoice | None:
        task = self._by_sequence[sequence.id].task
        decode = task.decode
        assert decode is not None
        if task.id not in self._told:
            self._told[task.id] = self._script.tokens(task, decode)
        prompt, generated = sequence.tokens[: sequence.num_prompt_tokens], len(sequence.tokens)
        allowed_V = torch.zeros(self.runner.config.vocabulary, dtype=torch.bool)  # noqa: N806
        allowed_V[self._told[task.id][generated - len(prompt)]] = True
        return TokenChoice(decode, prompt, [], frozenset(), allowed_V)

    def _forget(self, one: Run) -> None:
        self._told.pop(one.task.id, None)
        super()._forget(one)


class ForgetfulLLM(ScriptedTransformer):
    """A scripted LLM without prefix caching, for schemes that do not cache: each request has its own
    tenant."""

    def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        """Queue a task."""
        super().admit(replace(task, tenant=f"{task.tenant}/{task.id}"), rank)
