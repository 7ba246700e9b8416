"""A model's work, the stand-in's words.

A small random model writes nonsense, which is no list of queries and no measure of a length. This engine runs
the model over the prompt and over every token it writes, as the reference engine does, and only the choice of
the tokens is made for it: they spell what the stand-in would answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from stretto.core import Segment
from stretto.engines.reference import ReferenceConfig, ReferenceLLM, _Sequence
from stretto.engines.standin import quote, reformulate
from stretto.tasks import LLMTask


@dataclass(slots=True)
class _Script:
    tokens: list[int]
    place: int = 0


class QuotingLLM(ReferenceLLM):
    """A `SteppedLLM` that is told what to write. Costs what `ReferenceLLM` costs."""

    def __init__(self, config: ReferenceConfig) -> None:
        super().__init__(config)
        self._scripts: dict[int, _Script] = {}

    def _choose(self, sequence: _Sequence, temperature: float) -> int:
        """The reference engine's choice is made, for its cost, and passed over."""
        super()._choose(sequence, temperature)
        task = sequence.task
        if len(sequence.generated) == 0:
            self._scripts[task.id] = _Script(self._tokens(_answer(task)))
        script = self._scripts[task.id]
        if script.place == len(script.tokens):
            del self._scripts[task.id]
            assert self._tokenizer.eos_token_id is not None
            return self._tokenizer.eos_token_id
        script.place += 1
        return script.tokens[script.place - 1]

    def _tokens(self, text: str) -> list[int]:
        before = self._tokenizer.encode(())
        return self._tokenizer.encode((Segment(text, "answer"),))[len(before) :]


def _answer(task: LLMTask) -> str:
    assert task.decode is not None
    named: dict[str, str] = {}
    for segment in task.prompt:
        if segment.name is not None:
            named[segment.name] = segment.text
    question = named.get("question", "")
    if task.decode.items is not None:
        return json.dumps(reformulate(question, task.decode.max_items or 3, task.decode.max_tokens))
    return quote(question, named.get("context", named.get("drafts", "")), named.get("draft", ""))
