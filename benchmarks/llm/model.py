"""The small model that every part of the LLM benchmark runs, and how it is run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from benchmarks.common.checkpoint import Shape, build_checkpoint
from stretto.engines.transformer.engine import TransformerConfig, TransformerLLM
from stretto.errors import InternalError
from stretto.tasks import Decode, Done, LLMTask

PROMPT_TOKENS = 64
NEW_TOKENS = 64
THREADS = 2
SHAPE = Shape(context_tokens=8192)


def build_model(folder: Path, seed: int) -> Path:
    """The checkpoint. Its tokenizer is trained on made-up words, as many as fill the vocabulary."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(4000)]
    text = [" ".join(rng.choices(words, k=200)) for _ in range(100)]
    return build_checkpoint(folder / "model", text, shape=SHAPE, seed=seed)


def make_engine(checkpoint: Path, **settings: Any) -> TransformerLLM:
    """The in-process engine."""
    common = {"dtype": "bfloat16", "num_threads": THREADS, "max_running": 32}
    return TransformerLLM(TransformerConfig(checkpoint, **{**common, **settings}))


def random_prompts(rng: random.Random, count: int, length: int) -> list[list[int]]:
    """As tokens, none of them special."""
    return [rng.choices(range(300, 2000), k=length) for _ in range(count)]


def complete(llm: TransformerLLM, prompts: list[list[int]], new_tokens: int = NEW_TOKENS) -> int:
    """All prompts through the engine at once; answers the number of new tokens. Nothing stays cached."""
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
