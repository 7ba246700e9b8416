"""The network for training: a Llama with tied embeddings, its parameters named as in `transformers`.

Tensors carry their shape as a suffix:

    B  sequences     T  tokens     E  hidden size     H  heads     D  size of a head
"""

# ruff: noqa: N803, N806  (tensors carry their shape as a suffix)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Sizes of the network. `head_dim` times `heads` may differ from `hidden`."""

    vocabulary: int = 8192
    hidden: int = 320
    intermediate: int = 384
    layers: int = 5
    heads: int = 5
    head_dim: int = 64
    rope_theta: float = 1e10
    norm_eps: float = 1e-5
    context_tokens: int = 4096

    def hugging_face(self, bos: int, eos: int, dtype: str) -> dict[str, Any]:
        """Content of config.json for this network."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "max_position_embeddings": self.context_tokens,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": bos,
            "eos_token_id": eos,
            "dtype": dtype,
        }


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = config.heads, config.head_dim
        inner = config.heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden, inner, bias=False)
        self.k_proj = nn.Linear(config.hidden, inner, bias=False)
        self.v_proj = nn.Linear(config.hidden, inner, bias=False)
        self.o_proj = nn.Linear(inner, config.hidden, bias=False)

    def forward(self, x_BTE: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        B, T, _ = x_BTE.shape
        shape = B, T, self.heads, self.head_dim
        q, k, v = (
            project(x_BTE).view(shape).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = _rotate(q, cos_TD, sin_TD), _rotate(k, cos_TD, sin_TD)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.o_proj(attended.transpose(1, 2).reshape(B, T, -1))
        return out


class Mlp(nn.Module):
    """Feed-forward layer with SwiGLU."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """A layer of the network."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden, config.norm_eps)
        self.mlp = Mlp(config)

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Run the attention half of the layer."""
        out: Tensor = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return out

    def think(self, x: Tensor) -> Tensor:
        """Run the feed-forward half of the layer."""
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Network(nn.Module):
    """The network: computes logits of chosen tokens."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.layers: Sequence[Block]
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))  # type: ignore[assignment]
        self.cos: Tensor
        self.sin: Tensor
        self.norm = nn.RMSNorm(config.hidden, config.norm_eps)
        exponents = torch.arange(0, config.head_dim, 2).double() / config.head_dim
        angles = torch.outer(torch.arange(config.context_tokens).double(), config.rope_theta**-exponents)
        self.register_buffer("cos", angles.cos().float().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().float().repeat(1, 2), persistent=False)

    def forward(self, tokens_BT: Tensor, chosen: Tensor) -> Tensor:
        """Compute the logits after the tokens `chosen`, which are indices in the flattened batch."""
        T = tokens_BT.shape[1]
        cos, sin = self.cos[:T], self.sin[:T]
        x = self.embed_tokens(tokens_BT)
        *layers, last = self.layers
        for layer in layers:
            x = layer.think(layer.attend(x, cos, sin))
        x = last.attend(x, cos, sin).flatten(0, 1)[chosen]
        return F.linear(self.norm(last.think(x)), self.embed_tokens.weight)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)
