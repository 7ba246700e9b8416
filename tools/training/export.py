"""Exports a trained network as a checkpoint in Hugging Face layout."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from stretto.model.errors import ConfigError
from tools.training.network import Network
from tools.training.tokenizer import BOS, EOS, save_tokenizer, token_id


def export(network: Network, tokenizer: Tokenizer, folder: Path, dtype: str = "bfloat16") -> None:
    """Write config.json, model.safetensors and the tokenizer's files into `folder`.

    Raises:
        ConfigError: there is no such dtype.
    """
    if not isinstance(torch_dtype := getattr(torch, dtype, None), torch.dtype):
        raise ConfigError(f"unknown dtype {dtype!r}: float32, bfloat16 or float16")
    save_tokenizer(tokenizer, folder)
    bos, eos = token_id(tokenizer, BOS), token_id(tokenizer, EOS)
    config = network.config.hugging_face(bos, eos, dtype)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    weights = {
        f"model.{name}": tensor.detach().cpu().to(torch_dtype).contiguous()
        for name, tensor in network.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
