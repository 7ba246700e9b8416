"""Loads a checkpoint in Hugging Face layout for the reference engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from stretto.engines.loading import one_load
from stretto.engines.prompt_tokens import PromptTokenizer
from stretto.model.errors import ConfigError


def load_checkpoint(folder: Path, dtype: str, device: str) -> tuple[PromptTokenizer, PreTrainedModel]:
    """Load the tokenizer and the model in `folder`, ready for inference, without network access.

    Raises:
        ConfigError: the checkpoint is missing, incomplete or corrupt, is not a causal language model with
            attention in every layer, or there is no such dtype or device.
    """
    if not (folder / "config.json").is_file():
        raise ConfigError(f"no checkpoint in {folder}: config.json is missing")
    if not isinstance(torch_dtype := getattr(torch, dtype, None), torch.dtype):
        raise ConfigError(f"unknown dtype {dtype!r}: float32, bfloat16 or float16")
    loaded: Any  # the signature does not know what output_loading_info returns
    try:
        tokenizer = PromptTokenizer(folder)
        with one_load(str(folder)):
            loaded = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch_dtype, local_files_only=True, output_loading_info=True
            )
        model, info = loaded
        model.to(device)
    except ConfigError:
        raise
    except Exception as error:  # whatever the loaders raise, it is about these files
        raise ConfigError(f"cannot load the checkpoint in {folder}: {error}") from error
    if info["missing_keys"] or info["mismatched_keys"]:
        wrong = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
        raise ConfigError(f"weights in {folder} are missing or misshapen: {', '.join(wrong)}")
    kinds = {type(layer) for layer in DynamicCache(config=model.config).layers}
    if not kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
        raise ConfigError(f"{folder}: only models that use attention in every layer are supported")
    if not hasattr(model.config.get_text_config(), "max_position_embeddings"):
        raise ConfigError(f"{folder}: config.json does not say how long the context may be")
    checked: PreTrainedModel = model.eval()
    return tokenizer, checked
