"""Room for KV on the devices of an LLM instance: memory beside weights, engine and working memory.

What an engine takes of each device besides weights is a fixed part, buffers for each other device of the
instance, the activations of the largest step, and numbers of all words for the sequences that sample at once.
Activations are counted at their widest place, which is the feed-forward layer.

The numbers were fitted to the KV blocks that vLLM 0.3 reported on A100-80G for 13 models on 1, 2 and 4
devices.
"""

from __future__ import annotations

from stretto.costs.shape import Hardware, LLMModel
from stretto.model.errors import ConfigError

_ENGINE_BYTES = 1.32 * 2**30
_PEER_BYTES = 0.695 * 2**30
_ACTIVATIONS = 1.36  # bytes taken for each byte of activations at the widest place
_LOGITS = 7.86  # copies of the numbers of all words, in float32
_LOGIT_BYTES = 4
_MAX_SAMPLING = 512  # sequences


def check_fits(
    model: LLMModel,
    hardware: Hardware,
    tensor_parallel: int,
    memory_share: float = 0.9,
    max_batch_tokens: int = 2048,
) -> int:
    """Return the number of tokens whose KV an instance on `tensor_parallel` devices holds.

    Args:
        memory_share: share of each device's memory that may be used.
        max_batch_tokens: most tokens of a step, whose activations take memory too.

    Raises:
        ConfigError: the model does not fit, or its heads cannot be split over that many devices.
    """
    if tensor_parallel < 1 or model.num_heads % tensor_parallel:
        raise ConfigError(
            f"model {model.name!r}: {model.num_heads} heads cannot be split over {tensor_parallel} devices"
        )
    weights_bytes = model.weight_bytes / tensor_parallel
    room_bytes = memory_share * hardware.memory_bytes
    engine_bytes = engine_device_bytes(model, tensor_parallel, max_batch_tokens)
    num_tokens = int((room_bytes - weights_bytes - engine_bytes) // kv_device_bytes(model, tensor_parallel))
    if num_tokens < 1:
        raise ConfigError(
            f"model {model.name!r} does not fit: its weights take {model.weight_bytes / 2**30:.1f} GiB, "
            f"{memory_share:.0%} of {tensor_parallel} × {hardware.name} is "
            f"{room_bytes * tensor_parallel / 2**30:.1f} GiB, of which the engine takes "
            f"{engine_bytes * tensor_parallel / 2**30:.1f} GiB"
        )
    return num_tokens


def kv_device_bytes(model: LLMModel, tensor_parallel: int) -> float:
    """Return the bytes that the KV of one token takes on each device.

    A model with fewer KV heads than devices has copies of its heads.
    """
    return model.kv_bytes_per_token / min(tensor_parallel, model.num_kv_heads)


def engine_device_bytes(model: LLMModel, tensor_parallel: int, max_batch_tokens: int) -> float:
    """Return the bytes of each device that are neither weights nor KV."""
    width = model.active_experts * model.intermediate_size * (3 if model.gated else 2) / tensor_parallel
    activation_bytes = max_batch_tokens * width * model.dtype_bytes
    logits_bytes = _MAX_SAMPLING * model.vocab_size * _LOGIT_BYTES
    return (
        _ENGINE_BYTES
        + _PEER_BYTES * (tensor_parallel - 1)
        + _ACTIVATIONS * activation_bytes
        + _LOGITS * logits_bytes
    )
