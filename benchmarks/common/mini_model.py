"""A small Llama in Hugging Face layout, for tests and measurements alone.

Its weights are random, and written beside its tokenizer when this module is first imported: 13 MB that need
not lie in the repository.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

EOS = "<|end|>"
"""Text of its token that ends an answer."""


def llama_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the named weights of a Llama; a head of its own is not among them."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"] * config["head_dim"]
    kv_heads = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv_heads, hidden),
        "self_attn.v_proj": (kv_heads, hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    named = {
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(config["num_hidden_layers"])
        for name, shape in shapes.items()
    }
    embedding = (config["vocab_size"], hidden)
    return {**named, "model.embed_tokens.weight": embedding, "model.norm.weight": (hidden,)}


def _weights(config: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the named weights, always the same ones."""
    rng = np.random.default_rng(0)
    for name, shape in llama_shapes(config).items():
        values = np.ones(shape) if len(shape) == 1 else rng.normal(0.0, 0.1, shape)
        yield name, values.astype(np.float16)


def _with_weights(folder: Path) -> Path:
    """Write the weights into the folder of the checkpoint, unless they are there; return the folder."""
    target = folder / "model.safetensors"
    if not target.exists():
        config = json.loads((folder / "config.json").read_text("utf-8"))
        part = target.with_suffix(f".{os.getpid()}")
        save_file(dict(_weights(config)), part, {"format": "pt"})
        part.replace(target)  # at once: tests of several processes come here
    return folder


MINI = _with_weights(Path(__file__).parent / "mini")
