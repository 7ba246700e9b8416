"""A tiny Llama with random weights, in Hugging Face layout: a real checkpoint in a second and 2 MB."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from benchmarks.common.mini_model import llama_shapes

BOS, EOS = "<|begin|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TEXT = """
In a fugue, the stretto is the passage where the answer enters before the subject has finished. The voices
overlap, each following the last at a shorter distance, and the listener hears the theme chase itself. Bach
used it to close his fugues; later composers used it wherever they wanted the music to press forward.

A scheduler does the same with work. A step that needs only the question may start while the documents are
still being read, and the first of three queries can be searched while the second is being written. What
limits the whole is the longest chain of steps that really need each other, not the order in which somebody
wrote them down. Is that always worth it? No: "a queue that is never empty is never faster", as they say.

Numbers: 0, 1, 2, 3, 10, 42, 100, 1984, 2026; 3.14159 and 2.71828. Punctuation: (a) [b] {c} <d> - a_b/c\\d, e;
f: g! Quotes: 'single', "double", `code`. JSON: ["first query", "second query", "third query"]. Code:
def answer(question: str, context: list[str]) -> str: return max(context, key=lambda text: score(text))

Französisch, naïve, déjà vu, señor, smörgåsbord, Ελληνικά, русский, emoji 🎼🎹, math ∑ ≤ ∞, “curly”, 20 €,
日本語, 한국어.
Every house has a kitchen; every kitchen has a table; around every table somebody once told a story. The
river runs from the mountains to the sea, through forests and fields, past villages, mills and old bridges.
People who live beside it know its moods: slow in August, brown and loud in March, almost silent under ice.
"""


def build_tokenizer() -> Tokenizer:
    """A byte-level BPE of at most 1,000 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=[BOS, EOS, "<|im_start|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def build_tiny_checkpoint(
    folder: Path, *, seed: int = 0, context_tokens: int = 2048, chat_template: bool = False
) -> Path:
    """Write the checkpoint into `folder` and return it. Equal arguments give equal files."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS}
    if chat_template:
        settings["chat_template"] = CHAT_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "max_position_embeddings": context_tokens,
        "bos_token_id": tokenizer.token_to_id(BOS),
        "eos_token_id": tokenizer.token_to_id(EOS),
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    ends = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(ends))
    rng = np.random.default_rng(seed)
    shapes = {**llama_shapes(config), "lm_head.weight": (tokenizer.get_vocab_size(), 64)}
    weights = {
        name: (np.ones(shape) if len(shape) == 1 else rng.normal(0.0, 0.2, shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder
