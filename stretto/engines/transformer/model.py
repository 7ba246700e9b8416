"""The forward pass of Llama, Mistral, Qwen2 and Qwen3: a step's tokens in, their last hidden states out.

Tensors carry their shape as a suffix:

    T  tokens of the step, of all its sequences, one behind the other
    E  hidden size              F  intermediate size        V  vocabulary
    H  query heads              K  key-value heads          R  all heads of a token: H + K + K
    D  size of a head           S  tokens for which a next one is chosen

There is no batch dimension, because only attention needs to know the sequence of a token.
"""

# ruff: noqa: N803, N806  (tensors carry their shape as a suffix)

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from stretto.engines.transformer import elementwise as torch_elementwise
from stretto.engines.transformer.attention import StepAttention
from stretto.engines.transformer.config import Llama3Scaling, ModelConfig
from stretto.engines.transformer.elementwise import Elementwise
from stretto.engines.transformer.kv_cache import KVCache
from stretto.engines.transformer.weights import LayerWeights, Weights


class Transformer:
    """A decoder-only transformer model: its weights, and the tables of its rotary position embedding."""

    def __init__(self, config: ModelConfig, weights: Weights, with_kernels: bool) -> None:
        """Prepare the model; `with_kernels` uses Triton kernels instead of torch's operations."""
        self.config = config
        self._elementwise = _triton_elementwise() if with_kernels else torch_elementwise
        self.weights = weights
        device = weights.embedding.device
        angles = torch.outer(torch.arange(config.context_tokens).float(), _frequencies(config))
        self._cos = angles.cos().repeat(1, 2).unsqueeze(1).to(device, weights.embedding.dtype)
        # The sines of the first half are negated here, once.
        self._sin = torch.cat((-angles.sin(), angles.sin()), 1).unsqueeze(1).to(self._cos)

    def forward(self, tokens_T: Tensor, positions_T: Tensor, attention: StepAttention, kv: KVCache) -> Tensor:
        """Run a step's tokens through all layers, and return their normalised last hidden states.

        They are (tokens, hidden size). The keys and values of the tokens are written to `kv`.
        """
        rotation = self._cos[positions_T], self._sin[positions_T]
        x_TE = F.embedding(tokens_T, self.weights.embedding)
        layers, eps, elementwise = self.weights.layers, self.config.norm_eps, self._elementwise
        norms = [*(layer.attention_norm for layer in layers), self.weights.norm]
        h_TE = self._norm(x_TE, norms[0])
        for number, layer in enumerate(layers):
            qkv_TRD = self._project(h_TE, layer, *rotation)
            attended_THD = attention.attend(qkv_TRD, kv, number)
            out_TE = layer.output(attended_THD.flatten(1))
            x_TE, h_TE = elementwise.add_and_norm(x_TE, out_TE, layer.mlp_norm, eps)
            out_TE = layer.down(elementwise.gate(layer.gate_up(h_TE)))
            x_TE, h_TE = elementwise.add_and_norm(x_TE, out_TE, norms[number + 1], eps)
        return h_TE

    def logits(self, h_SE: Tensor) -> Tensor:
        """Return the logits of the next tokens, from the last hidden states of the tokens before them.

        They are a tensor (sequences, vocabulary) in float32.
        """
        return self.weights.vocabulary(h_SE).float()

    def _project(self, h_TE: Tensor, layer: LayerWeights, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
        """Compute queries, keys and values, (T, R, D); queries and keys are rotated, and normalised if
        needed."""
        heads, turned = self.config.heads, self.config.heads + self.config.kv_heads
        qkv_TRD = layer.qkv(h_TE).view(len(h_TE), -1, self.config.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            qkv_TRD[:, :heads] = self._norm(qkv_TRD[:, :heads], layer.q_norm)
            qkv_TRD[:, heads:turned] = self._norm(qkv_TRD[:, heads:turned], layer.k_norm)
        self._elementwise.rotate(qkv_TRD, turned, cos_T1D, sin_T1D)
        return qkv_TRD

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.norm_eps)


def _triton_elementwise() -> Elementwise:
    from stretto.engines.transformer import triton_elementwise

    return triton_elementwise


def _frequencies(config: ModelConfig) -> Tensor:
    """Rotation of each pair of a head's dimensions, in radians per token, (D / 2,)."""
    exponents = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    if config.rope_divisors is not None:
        frequencies = frequencies / torch.tensor(config.rope_divisors)
    return frequencies if config.rope_scaling is None else _stretch(frequencies, config.rope_scaling)


def _stretch(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Scale the frequencies of a rotation. Source: Llama 3.1's reference code."""
    turns = scaling.original_context_tokens * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share_kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (share_kept + (1 - share_kept) / scaling.factor)
