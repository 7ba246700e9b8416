"""Checks that the in-process LLM engine generates the tokens of `transformers`: greedy, float32, all
families.

    python -m checks.llm_equality [--prompts 1000] [--seed 0] [--families llama,qwen3]

Prompts of 1 to several thousand tokens, many with common prefixes, run on engines that chunk, batch, share,
evict and preempt differently, next to tasks that are cancelled. Then `transformers` reads each output in one
pass: each token must be the most likely one after those before it. At a near tie, where the two best logits
differ by less than 1e-4, the engine may choose the other one; such cases are counted, and the rest of the
output is compared too.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.engines.transformer.running_task import TransformerUsage
from stretto.model.errors import InternalError
from stretto.model.tasks import Decode, Done, LLMTask

NEAR_TIE = 1e-4
CONTEXT_TOKENS = 4096
_VOCABULARY = 512

_SHAPE: Mapping[str, Any] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT_TOKENS,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "initializer_range": 0.2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
# Family or variant: name of its configuration class, and its additions to the shape.
FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama-tied": ("LlamaConfig", {"tie_word_embeddings": True, "num_key_value_heads": 6}),
    "llama3": ("LlamaConfig", {"rope_parameters": _LLAMA3, "attention_bias": True}),
    "mistral": ("MistralConfig", {"head_dim": 32, "sliding_window": None}),
    "mistral-window": ("MistralConfig", {"sliding_window": 100}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen2-window": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 80, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "qwen3-bias": ("Qwen3Config", {"attention_bias": True, "tie_word_embeddings": True}),
}


@dataclass(frozen=True, slots=True)
class EqualityOutcome:
    """Result of a comparison. `wrong` has (prompt, position) of tokens that differ without a tie."""

    num_prompts: int = 0
    num_tokens: int = 0
    num_near_ties: int = 0
    wrong: tuple[tuple[int, int], ...] = ()
    num_cached_tokens: int = 0
    num_preemptions: int = 0

    def __add__(self, other: EqualityOutcome) -> EqualityOutcome:
        return EqualityOutcome(
            self.num_prompts + other.num_prompts,
            self.num_tokens + other.num_tokens,
            self.num_near_ties + other.num_near_ties,
            self.wrong + other.wrong,
            self.num_cached_tokens + other.num_cached_tokens,
            self.num_preemptions + other.num_preemptions,
        )


def build_family(
    folder: Path, family: str, seed: int = 0, shape: Mapping[str, Any] = MappingProxyType({})
) -> Path:
    """Write a checkpoint of about a million random parameters; `shape` changes the family's settings."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models

    folder.mkdir(parents=True, exist_ok=True)
    words = {"<s>": 0, "</s>": 1} | {f"w{number}": number for number in range(2, _VOCABULARY)}
    Tokenizer(models.WordLevel(words, unk_token="<s>")).save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    class_name, extra = FAMILIES[family]
    config = getattr(transformers, class_name)(**{**_SHAPE, **extra, **shape})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        auto: Any = transformers.AutoModelForCausalLM
        model = auto.from_config(config)
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "norm.weight")):  # otherwise zeros and ones, which hide mistakes
                torch.nn.init.normal_(parameter, float(name.endswith("norm.weight")), 0.3)
    model.save_pretrained(folder)
    return folder


def random_prompts(rng: random.Random, count: int, max_tokens: int) -> list[list[int]]:
    """Make prompts of lengths spread evenly over orders of magnitude; half of them share a prefix with
    another."""
    prompts: list[list[int]] = []
    for _ in range(count):
        length = round(math.exp(rng.uniform(0, math.log(max_tokens))))
        start = rng.choice(prompts) if prompts and rng.random() < 0.5 else []
        kept = start[: rng.randint(0, min(len(start), length))]
        prompts.append(kept + rng.choices(range(2, _VOCABULARY), k=length - len(kept)))
    return prompts


def random_config(rng: random.Random, folder: Path, max_tokens: int) -> TransformerConfig:
    """Make a random configuration with little KV memory: at most twice what the longest prompt takes."""
    block_tokens = rng.choice([4, 16, 32])
    raw = json.loads((folder / "config.json").read_text("utf-8"))
    head_dim = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
    token_bytes = 2 * raw["num_hidden_layers"] * raw["num_key_value_heads"] * head_dim * 4
    return TransformerConfig(
        folder,
        max_running=rng.choice([1, 4, 16]),
        max_batch_tokens=rng.choice([17, 64, 512]),
        block_tokens=block_tokens,
        kv_bytes=int((max_tokens + block_tokens) * rng.choice([1, 1, 2])) * token_bytes,
        policy=rng.choice(["chunked", "prefill_first"]),
        num_threads=1,
    )


def generate(
    config: TransformerConfig,
    prompts: Sequence[list[int]],
    new_tokens: int,
    rng: random.Random,
    after_step: Callable[[TransformerLLM], None] = lambda _: None,
) -> tuple[list[tuple[int, ...]], EqualityOutcome]:
    """Generate tokens for each prompt, with prefills and cancelled tasks among them."""
    llm = TransformerLLM(config)
    decode = Decode(max_tokens=new_tokens, ignore_eos=True)
    generated: dict[int, tuple[int, ...]] = {}
    num_cached = 0
    todo = list(enumerate(prompts))
    doomed: list[int] = []
    while todo or llm.has_work():
        for _ in range(min(len(todo), rng.randint(0, 4))):
            number, tokens = todo.pop(0)
            llm.admit_tokens(
                LLMTask(number, f"q{number % 3}", "", (), decode), tokens, rng.choice([(0.0,), (1.0,)])
            )
            if rng.random() < 0.3:
                cut = tokens[: rng.randint(1, len(tokens))]
                llm.admit_tokens(LLMTask(-1 - number, f"q{number % 3}", "", (), None), cut, (-1.0,))
            if rng.random() < 0.2:
                extra = len(prompts) + number
                llm.admit_tokens(LLMTask(extra, "cancelled", "", (), decode), tokens)
                doomed.append(extra)
        for event in llm.step():
            if isinstance(event, Done) and isinstance(event.usage, TransformerUsage) and event.task >= 0:
                generated[event.task] = event.usage.tokens
                num_cached += event.usage.num_cached_tokens
        if doomed and rng.random() < 0.2:
            llm.cancel(doomed.pop(0))
        after_step(llm)
    for query in ("q0", "q1", "q2", "cancelled"):
        llm.release(query)
    if llm.scheduler.pool.num_free != llm.scheduler.pool.num_blocks:
        raise InternalError("KV blocks are missing after the run")
    outcome = EqualityOutcome(num_cached_tokens=num_cached, num_preemptions=llm.scheduler.num_preemptions)
    return [generated[number] for number in range(len(prompts))], outcome


def compare(
    model: Any, prompts: Sequence[list[int]], generated: Sequence[tuple[int, ...]]
) -> EqualityOutcome:
    """Read prompts and outputs with `transformers`, and check that each token is the most likely one."""
    import torch

    num_near_ties, wrong = 0, []
    for number, (prompt, output) in enumerate(zip(prompts, generated, strict=True)):
        with torch.inference_mode():
            ids = torch.tensor([[*prompt, *output[:-1]]])
            logits = model(ids, logits_to_keep=len(output), use_cache=False).logits[0]
        best, gaps = logits.argmax(1).tolist(), (logits.max(1, keepdim=True).values - logits)
        for position, token in enumerate(output):
            if token != best[position]:
                if float(gaps[position, token]) < NEAR_TIE:
                    num_near_ties += 1
                else:
                    wrong.append((number, position))
    return EqualityOutcome(len(prompts), sum(map(len, generated)), num_near_ties, tuple(wrong))


def check_family(
    family: str, num_prompts: int, max_tokens: int, new_tokens: int, seed: int, batch: int = 50
) -> Iterator[EqualityOutcome]:
    """Yield outcomes batch by batch, each with a new configuration of the engine."""
    import torch
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as name:
        folder = build_family(Path(name), family, seed)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for start in range(0, num_prompts, batch):
            rng = random.Random(f"{family}-{seed}-{start}")
            prompts = random_prompts(rng, min(batch, num_prompts - start), max_tokens)
            config = random_config(rng, folder, max_tokens + new_tokens)
            generated, ran = generate(config, prompts, new_tokens, rng)
            yield ran + compare(model, prompts, generated)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m checks.llm_equality", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--prompts", type=int, default=1000, help="number of prompts of each family")
    parser.add_argument("--max-tokens", type=int, default=4000, help="longest prompt, in tokens")
    parser.add_argument("--new-tokens", type=int, default=24, help="tokens generated for each prompt")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices")
    parser.add_argument("--families", default=",".join(FAMILIES), help="names joined by commas")
    options = parser.parse_args()
    failed = False
    for family in options.families.split(","):
        start, total = time.perf_counter(), EqualityOutcome()
        for outcome in check_family(
            family, options.prompts, options.max_tokens, options.new_tokens, options.seed
        ):
            total += outcome
        failed = failed or bool(total.wrong)
        print(
            f"{family}: {total.num_prompts} prompts, {total.num_tokens} tokens, {len(total.wrong)} wrong, "
            f"{total.num_near_ties} near ties; {total.num_cached_tokens} tokens cached, "
            f"{total.num_preemptions} preemptions, {time.perf_counter() - start:.0f} s",
            flush=True,
        )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
