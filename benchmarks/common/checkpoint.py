"""Builds a small Llama with random weights, in Hugging Face layout: a real model's work without a
download."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

BOS, EOS = "<|begin|>", "<|end|>"


@dataclass(frozen=True, slots=True)
class Shape:
    """The model's size. The default has 8 million parameters."""

    hidden: int = 256
    intermediate: int = 768
    layers: int = 9
    heads: int = 8
    kv_heads: int = 4
    vocabulary: int = 2048
    context_tokens: int = 4096


TINY = Shape(hidden=64, intermediate=192, layers=3, heads=4, kv_heads=2, vocabulary=1024)


def build_checkpoint(
    folder: Path,
    texts: Iterable[str],
    *,
    shape: Shape | None = None,
    seed: int = 0,
    has_all_bytes: bool = True,
) -> Path:
    """Write the checkpoint into `folder` and return it; the byte-level BPE is trained on `texts`.

    Equal arguments give equal files.

    Args:
        has_all_bytes: whether there is a token for each byte; if not, answers have characters of `texts`
            only, so they have about as many tokens when another model reads them.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    shape = shape or Shape()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocabulary,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()) if has_all_bytes else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    bos, eos = tokenizer.token_to_id(BOS), tokenizer.token_to_id(EOS)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context_tokens,
        bos_token_id=bos,
        eos_token_id=eos,
        initializer_range=0.1,
    )
    show_progress = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    if show_progress:
        logging.enable_progress_bar()
    return folder
