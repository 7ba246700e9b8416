"""Writes small GGUF files from checkpoints in Hugging Face layout, in any of the types that Stretto reads.

The package `gguf` writes F32, F16, BF16, Q8_0, Q4_0 and Q4_1. It cannot write the K types: their blocks are
random bytes with small scales, so that the model is another one, and as good for a comparison of two readers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

K_SCALES = {
    "Q4_K": {0: 0.0006, 1: 0.0045},
    "Q5_K": {0: 0.0003, 1: 0.0045},
    "Q6_K": {104: 0.00015},
}
"""Scales in the blocks of the types that are written as random bytes, by their place in 16-bit numbers."""
_NORMAL, _CONTROL = 1, 3


def write_gguf(
    checkpoint: Path,
    path: Path,
    quantisation: str,
    *,
    architecture: str | None = None,
    seed: int = 0,
    edit: Callable[[Any], None] = lambda writer: None,
) -> Path:
    """Write the checkpoint in a folder, with a byte-level BPE tokenizer, as the GGUF file `path`; return it.

    Args:
        quantisation: type of all matrices; vectors are F32.
        architecture: what the file calls the model; None for what llama.cpp calls it.
        seed: seed of the random blocks.
        edit: function that adds fields or tensors to the package's writer.
    """
    from gguf import GGMLQuantizationType, GGUFWriter
    from safetensors.numpy import load_file

    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    family = config["model_type"]
    name = architecture or ("llama" if family == "mistral" else family)
    writer = GGUFWriter(path, name)
    _write_config(writer, config)
    _write_tokenizer(writer, checkpoint)
    kind = GGMLQuantizationType[quantisation]
    rng = np.random.default_rng(seed)
    for tensor, values in load_file(checkpoint / "model.safetensors").items():
        if tensor == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        written = _ordered(tensor, values, config) if name == "llama" else values
        _write_tensor(writer, _gguf_name(tensor), written.astype(np.float32), kind, rng)
    edit(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_config(writer: Any, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    writer.add_name("tiny")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(config["vocab_size"])


def _write_tokenizer(writer: Any, checkpoint: Path) -> None:
    spec = json.loads((checkpoint / "tokenizer.json").read_text("utf-8"))
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text("utf-8"))
    ids = spec["model"]["vocab"] | {token["content"]: token["id"] for token in spec["added_tokens"]}
    special = {token["content"] for token in spec["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([_CONTROL if token in special else _NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in spec["model"]["merges"]])
    writer.add_bos_token_id(ids[settings["bos_token"]])
    writer.add_eos_token_id(ids[settings["eos_token"]])
    writer.add_add_bos_token(True)
    if template := settings.get("chat_template"):
        writer.add_chat_template(template)


def _write_tensor(writer: Any, name: str, values: NDArray[np.float32], kind: Any, rng: Any) -> None:
    from gguf import GGMLQuantizationType, quantize
    from gguf.constants import GGML_QUANT_SIZES

    if values.ndim == 1 or kind == GGMLQuantizationType.F32:
        writer.add_tensor(name, values)
    elif kind == GGMLQuantizationType.F16:
        writer.add_tensor(name, values.astype(np.float16))
    elif kind.name not in K_SCALES:
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    else:
        per_block, block_bytes = GGML_QUANT_SIZES[kind]
        rows, columns = values.shape
        blocks = rng.integers(0, 256, (rows, columns // per_block, block_bytes), np.uint8)
        halves = blocks.view(np.float16)
        for place, scale in K_SCALES[kind.name].items():
            halves[..., place] = scale
        writer.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=kind)


def _ordered(name: str, values: NDArray[Any], config: dict[str, Any]) -> NDArray[Any]:
    """Return the rows of queries and keys in the order of the kind "llama", where neighbours are rotated."""
    if not any(f".{projection}_proj." in name for projection in "qk"):
        return values
    heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
    halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def _gguf_name(name: str) -> str:
    parts = name.split(".")
    if parts[:2] != ["model", "layers"]:
        return {
            "model.embed_tokens.weight": "token_embd.weight",
            "model.norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight",
        }[name]
    part = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }[".".join(parts[3:-1])]
    return f"blk.{parts[2]}.{part}.{parts[-1]}"
