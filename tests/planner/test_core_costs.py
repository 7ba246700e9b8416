"""The work with which a model is measured on cores: what a core computes in a few seconds."""

from __future__ import annotations

import random
from dataclasses import replace

from stretto.costs.shape import LLMModel
from stretto.planner.core_costs import _tasks

TINY = LLMModel(
    name="tiny",
    num_layers=2,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    intermediate_size=128,
    vocab_size=1000,
    max_context_tokens=8192,
)


def words_of(model: LLMModel) -> list[int]:
    tasks = _tasks(random.Random(0), model)
    return [len(segment.text.split()) for task in tasks for segment in task.prompt]


def test_prompts_of_a_large_model_are_short_but_for_one() -> None:
    tiny, large = (
        words_of(TINY),
        words_of(replace(TINY, num_layers=30, hidden_size=576, intermediate_size=1536)),
    )
    assert tiny[1] == max(tiny) == 320
    assert sum(tiny) > 5000
    assert large.pop(1) == 248
    assert (min(large), max(large)) == (8, 31)


def test_prompts_fit_into_a_short_context() -> None:
    assert max(words_of(replace(TINY, max_context_tokens=120))) == 20
