"""Checks that GGUF files give the tokens that `transformers` gives with them: greedy, float32.

    python -m checks.gguf_equality [--prompts 20] [--seed 0] [--families llama,qwen3] [--types Q8_0,Q4_K]
    python -m checks.gguf_equality --file model.gguf --documents examples/documents --prompts 200

The first form writes small random checkpoints of each family in each type. The second takes a file and makes
chats about passages of documents; it also counts the prompts whose tokens are those of the whole text. Both
need the packages `gguf` and `accelerate`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from checks.gguf_files import write_gguf
from checks.llm_equality import EqualityOutcome, build_family, compare, generate, random_prompts
from stretto.engines.gguf_file import QUANTISATIONS
from stretto.engines.prompt_tokens import PromptTokenizer
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.model.values import Prompt, Segment

FAMILIES = ("llama", "llama-tied", "mistral", "qwen2", "qwen3")
_SHAPE = {
    "initializer_range": 0.1,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_MAX_TOKENS = 400
_PASSAGE_CHARS = 700
_TOKENIZER_TEXT = "the theme enters before the subject has finished and the voices overlap in the stretto"
_QUESTIONS = ("What is this about?", "What is the rule?", "Which example is given?", "Who should do what?")


def build_checkpoint(folder: Path, family: str, seed: int = 0) -> Path:
    """Write a small random checkpoint whose tokenizer a GGUF file can hold: a byte-level BPE."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    head_dim = 128 if family == "qwen3" else 64  # `transformers` takes no other for this family
    build_family(folder, family, seed, {**_SHAPE, "head_dim": head_dim})
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TOKENIZER_TEXT], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    turns = "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    settings["chat_template"] = turns + "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def check_file(
    path: Path, prompts: Sequence[list[int]], new_tokens: int, rng: random.Random
) -> EqualityOutcome:
    """Generate tokens for each prompt with the engine, and compare them with those of `transformers`.

    The engine adds the end of the chat template to each prompt.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config = TransformerConfig(path, dtype="float32", block_tokens=16, max_batch_tokens=128)
    generated, ran = generate(config, prompts, new_tokens, rng)
    model: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    end = PromptTokenizer(path).end_of(())
    return ran + compare(model.eval(), [[*prompt, *end] for prompt in prompts], generated)


def check_types(
    families: Sequence[str], types: Sequence[str], num_prompts: int, seed: int
) -> Iterator[tuple[str, EqualityOutcome]]:
    """Yield the outcome of each family in each type, with its name."""
    for family in families:
        with tempfile.TemporaryDirectory() as name:
            checkpoint = build_checkpoint(Path(name) / "checkpoint", family, seed)
            for quantisation in types:
                path = write_gguf(checkpoint, Path(name) / f"{quantisation}.gguf", quantisation, seed=seed)
                rng = random.Random(f"{family}-{quantisation}-{seed}")
                prompts = random_prompts(rng, num_prompts, _MAX_TOKENS)
                yield f"{family} {quantisation}", check_file(path, prompts, 24, rng)


def chats(documents: Path, number: int, rng: random.Random) -> list[Prompt]:
    """Make prompts of a system and a user message about random passages of text files."""
    files = (file.read_text("utf-8", "replace") for file in sorted(documents.rglob("*")) if file.is_file())
    texts = [text for text in files if len(text) > 2 * _PASSAGE_CHARS]
    made: list[Prompt] = []
    for _ in range(number):
        text = rng.choice(texts)
        start = rng.randrange(len(text) - _PASSAGE_CHARS)
        made.append(
            (
                Segment("Answer the question from the context in one sentence.", role="system"),
                Segment("Context:\n", role="user"),
                Segment(text[start : start + rng.randint(50, _PASSAGE_CHARS)].strip(), "context"),
                Segment("\n\nQuestion:\n"),
                Segment(rng.choice(_QUESTIONS), "question"),
            )
        )
    return made


def check_chats(path: Path, documents: Path, number: int, seed: int) -> tuple[EqualityOutcome, int]:
    """Return the outcome for chats with a file's model, and how many have the tokens of the whole text."""
    from transformers import AutoTokenizer

    rng = random.Random(seed)
    ours, theirs = PromptTokenizer(path), AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    made = chats(documents, number, rng)
    prompts = [ours.encode(prompt) for prompt in made]
    num_whole = 0
    for prompt, tokens in zip(made, prompts, strict=True):
        messages = [
            {"role": "system", "content": prompt[0].text},
            {"role": "user", "content": "".join(segment.text for segment in prompt[1:])},
        ]
        text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        whole = theirs(text, add_special_tokens=False).input_ids
        num_whole += whole == tokens + ours.end_of(prompt)
    return check_file(path, prompts, 32, rng), num_whole


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m checks.gguf_equality", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--prompts", type=int, default=20, help="number of prompts of each file")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices")
    parser.add_argument("--families", default=",".join(FAMILIES), help="names joined by commas")
    parser.add_argument("--types", default=",".join(QUANTISATIONS), help="types of tensors joined by commas")
    parser.add_argument("--file", type=Path, help="a GGUF file to check instead")
    parser.add_argument("--documents", type=Path, default=Path("examples/documents"), help="for --file")
    options = parser.parse_args()
    failed, start = False, time.perf_counter()
    if options.file is not None:
        outcome, num_whole = check_chats(options.file, options.documents, options.prompts, options.seed)
        outcomes = iter([(options.file.name, outcome)])
        print(f"{num_whole} of {options.prompts} prompts have the tokens of the whole text")
    else:
        families, types = options.families.split(","), options.types.split(",")
        outcomes = check_types(families, types, options.prompts, options.seed)
    for name, outcome in outcomes:
        failed = failed or bool(outcome.wrong)
        print(
            f"{name}: {outcome.num_prompts} prompts, {outcome.num_tokens} tokens, "
            f"{len(outcome.wrong)} wrong, {outcome.num_near_ties} near ties, "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
