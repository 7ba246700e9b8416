"""Sizes from the `config.json` of models of several families, and those that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.costs.shape import model_of
from stretto.model.errors import ConfigError

LLAMA_3_8B: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "quantization_config": None,
}
MIXTRAL_8X7B = LLAMA_3_8B | {
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN3_30B_A3B = LLAMA_3_8B | {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
}
QWEN2_57B_A14B = LLAMA_3_8B | {
    "model_type": "qwen2_moe",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "moe_intermediate_size": 2560,
    "shared_expert_intermediate_size": 20480,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "vocab_size": 151936,
}
OLMOE_1B_7B = LLAMA_3_8B | {
    "model_type": "olmoe",
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 1024,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "vocab_size": 50304,
}
DEEPSEEK_MOE_16B = LLAMA_3_8B | {
    "model_type": "deepseek",
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
}


@pytest.mark.parametrize(
    ("config", "billions", "active_billions"),
    [
        (LLAMA_3_8B, 8.03, 8.03),
        (MIXTRAL_8X7B, 46.7, 12.9),
        (QWEN3_30B_A3B, 30.5, 3.3),
        (QWEN2_57B_A14B, 57.4, 14.2),
        (OLMOE_1B_7B, 6.9, 1.3),
        (DEEPSEEK_MOE_16B | {"first_k_dense_replace": 0}, 0, 0),
    ],
    ids=["llama", "mixtral", "qwen3_moe", "qwen2_moe", "olmoe", "shared experts"],
)
def test_parameters_are_as_many_as_published(
    config: dict[str, Any], billions: float, active_billions: float
) -> None:
    model = model_of("m", config)
    if not billions:
        assert (model.num_experts, model.active_experts, model.intermediate_size) == (66, 8, 1408)
        return
    words = 2 * model.vocab_size * model.hidden_size
    assert model.weight_bytes / 2 / 1e9 == pytest.approx(billions, rel=0.02)
    assert (model.token_params + words) / 1e9 == pytest.approx(active_billions, rel=0.03)


@pytest.mark.parametrize(
    ("changed", "is_gated"),
    [
        ({}, True),
        ({"hidden_act": "relu"}, False),
        ({"hidden_act": None, "activation_function": "relu"}, False),
        ({"model_type": "gemma", "hidden_act": "gelu"}, True),
        ({"model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh"}, True),
        ({"model_type": "starcoder2", "hidden_act": "gelu_pytorch_tanh"}, False),
        ({"model_type": "gpt_neox", "hidden_act": "gelu"}, False),
        ({"gated": False}, False),
    ],
)
def test_matrices_of_a_feed_forward_layer(changed: dict[str, Any], is_gated: bool) -> None:
    assert model_of("m", LLAMA_3_8B | changed).gated is is_gated


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "torch.float16", "float32", None])
def test_weights_are_served_in_16_bits(dtype: str | None) -> None:
    """vLLM reads float32 checkpoints as 16 bits: the KV room that it reported for alpaca-13b has that."""
    assert model_of("m", LLAMA_3_8B | {"torch_dtype": dtype}).dtype_bytes == 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA_3_8B | {"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantized by 'awq'"),
        (LLAMA_3_8B | {"quantization_config": {"quant_method": "fp8"}}, "quantized by 'fp8'"),
        (LLAMA_3_8B | {"torch_dtype": "float8_e4m3fn"}, "torch_dtype must be one of .*'float8_e4m3fn'"),
        (LLAMA_3_8B | {"model_type": "falcon"}, "falcon"),
        (LLAMA_3_8B | {"kv_lora_rank": 512}, "kv_lora_rank"),
        (LLAMA_3_8B | {"mamba_d_state": 16}, "mamba_d_state"),
        (LLAMA_3_8B | {"block_configs": [{"attention": {}}]}, "block_configs"),
        (LLAMA_3_8B | {"layer_types": ["conv", "full_attention"]}, "layer_types.*'conv'"),
        (MIXTRAL_8X7B | {"moe_layer_frequency": 2}, "moe_layer_frequency 2"),
        (LLAMA_3_8B | {"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        (LLAMA_3_8B | {"moe_num_experts": 64}, "moe_num_experts: the number of experts is needed as one of"),
        (DEEPSEEK_MOE_16B, "first_k_dense_replace 1"),
        (QWEN3_30B_A3B | {"decoder_sparse_step": 2}, "decoder_sparse_step 2"),
        (QWEN3_30B_A3B | {"mlp_only_layers": [0]}, "mlp_only_layers"),
        (QWEN2_57B_A14B | {"shared_expert_intermediate_size": 1000}, "must be a multiple .* 2560; got 1000"),
    ],
)
def test_what_cannot_be_described_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_of("m", config)


def test_active_experts_are_needed() -> None:
    with pytest.raises(KeyError, match="num_experts_per_tok"):
        model_of("m", MIXTRAL_8X7B | {"num_experts_per_tok": None})
