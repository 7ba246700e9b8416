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


def _weights(config: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the named weights, always the same ones."""
    rng = np.random.default_rng(0)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"] * config["head_dim"]
    shapes = {
        **{f"self_attn.{name}_proj": (heads, hidden) for name in "qkv"},
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    named = {
        f"model.layers.{layer}.{name}": shape
        for layer in range(config["num_hidden_layers"])
        for name, shape in shapes.items()
    }
    named |= {"model.embed_tokens": (config["vocab_size"], hidden), "model.norm": (hidden,)}
    for name, shape in named.items():
        values = np.ones(shape) if len(shape) == 1 else rng.normal(0.0, 0.1, shape)
        yield f"{name}.weight", values.astype(np.float16)


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
