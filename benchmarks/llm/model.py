"""The small model of the LLM benchmark, and functions that run it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from benchmarks.common.checkpoint import Shape, build_checkpoint
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.model.errors import InternalError
from stretto.model.tasks import Decode, Done, LLMTask

PROMPT_TOKENS = 64
NEW_TOKENS = 64
THREADS = 2
SHAPE = Shape(context_tokens=8192)


def build_model(folder: Path, seed: int) -> Path:
    """Build the checkpoint. Its tokenizer is trained on enough made-up words to fill the vocabulary."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(4000)]
    text = [" ".join(rng.choices(words, k=200)) for _ in range(100)]
    return build_checkpoint(folder / "model", text, shape=SHAPE, seed=seed)


def make_engine(checkpoint: Path, **settings: Any) -> TransformerLLM:
    """Make the in-process engine."""
    common = {"dtype": "bfloat16", "num_threads": THREADS, "max_running": 32}
    return TransformerLLM(TransformerConfig(checkpoint, **{**common, **settings}))


def random_prompts(rng: random.Random, count: int, length: int) -> list[list[int]]:
    """Make random prompts of tokens that are not special."""
    return [rng.choices(range(300, 2000), k=length) for _ in range(count)]


def complete(llm: TransformerLLM, prompts: list[list[int]], new_tokens: int = NEW_TOKENS) -> int:
    """Complete all prompts at once; returns the number of new tokens. Nothing stays in the cache."""
    decode = Decode(max_tokens=new_tokens, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        llm.admit_tokens(LLMTask(number, "bench", "", (), decode), prompt)
    num_tokens = 0
    while llm.has_work():
        for event in llm.step():
            if isinstance(event, Done):
                num_tokens += event.usage.num_output_tokens
    llm.release("bench")
    if num_tokens != new_tokens * len(prompts):
        raise InternalError(f"{num_tokens} tokens for {len(prompts)} prompts")
    return num_tokens


def prefill(llm: TransformerLLM, prompt: list[int]) -> None:
    """Leave the prompt in the engine's cache, until `complete` has run."""
    llm.admit_tokens(LLMTask(0, "bench", "", (), None), prompt)
    while llm.has_work():
        llm.step()
