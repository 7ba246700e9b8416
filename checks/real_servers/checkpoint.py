"""Writes the model of a GGUF file as a folder in Hugging Face layout, which vLLM reads."""

from __future__ import annotations

import json
from pathlib import Path

from stretto.engines.gguf_file import GGUFFile, read_gguf
from stretto.engines.prompt_tokens import load_tokenizer

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_OF_LAYER = (
    *(f"self_attn.{name}_proj.{kind}" for name in "qkvo" for kind in ("weight", "bias")),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    *("self_attn.q_norm.weight", "self_attn.k_norm.weight"),
    *("input_layernorm.weight", "post_attention_layernorm.weight"),
)


def write_checkpoint(source: Path, folder: Path) -> Path:
    """Write `config.json`, the weights in bfloat16, and the tokenizer with its chat template."""
    import torch
    from safetensors.torch import save_file

    file = read_gguf(source)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        **file.raw_config(),
        "architectures": [_ARCHITECTURES[file.kind]],
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.ending_tokens(),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tensors = {name: torch.from_numpy(file.tensor(name)).bfloat16().contiguous() for name in _names(file)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    load_tokenizer(source).save_pretrained(folder)
    return folder


def _names(file: GGUFFile) -> list[str]:
    layers = range(int(file.metadata[f"{file.kind}.block_count"]))
    names = [f"model.layers.{layer}.{name}" for layer in layers for name in _OF_LAYER]
    names += ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    return [name for name in names if file.has(name)]
