"""The model all-MiniLM-L6-v2 on a CPU: vectors as sentence-transformers computes them, bit for bit.

The import of sentence-transformers, with all that it imports, takes more CPU time than loading all other
models of `stretto ask`. So the one model that comes with the package is computed here.

Source: BERT (Devlin et al. 2019, arXiv 1810.04805) §3.1, the encoder; Sentence-BERT (Reimers and Gurevych
2019, arXiv 1908.10084) §3, the mean of the tokens' vectors.
"""

# ruff: noqa: N803, N806  (tensors carry their shape as a suffix: T tokens, E numbers of each)

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from stretto.engines.packed_matrix import packed_if_able

_Layer: TypeAlias = Callable[[Tensor], Tensor]
_ATTENTION = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
_MLP = ("intermediate.dense", "output.dense")


class MiniLM:
    """The encoder of all-MiniLM-L6-v2, in one type of numbers, on a CPU. Several threads may use it at once.

    Args:
        path: folder of the model.
    """

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        """Read the weights and the tokenizer. Raises any error for files that are none of this model."""
        config = json.loads((path / "config.json").read_text("utf-8"))
        self._num_heads: int = config["num_attention_heads"]
        self._epsilon: float = config["layer_norm_eps"]
        self._weights = {
            name: values.to(dtype)
            for name, values in load_file(path / "model.safetensors").items()
            if values.is_floating_point()
        }
        self._layers = [
            {part: self._linear(f"encoder.layer.{number}.{part}") for part in (*_ATTENTION, *_MLP)}
            for number in range(config["num_hidden_layers"])
        ]
        limits = json.loads((path / "sentence_bert_config.json").read_text("utf-8"))
        self.max_tokens: int = limits["max_seq_length"]
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.max_tokens)

    @torch.inference_mode()
    def encode(self, text: str) -> NDArray[np.float32]:
        """Return the vector of a text, of unit length. What is beyond the model's limit is not read."""
        ids_T = torch.tensor([self.tokenizer.encode(text).ids])
        hidden_TE = self._embedded(ids_T)
        for number, layer in enumerate(self._layers):
            at = f"encoder.layer.{number}"
            attended_TE = layer["attention.output.dense"](self._attention(layer, hidden_TE))
            hidden_TE = self._normed(f"{at}.attention.output.LayerNorm", attended_TE + hidden_TE)
            inner = F.gelu(layer["intermediate.dense"](hidden_TE))
            hidden_TE = self._normed(f"{at}.output.LayerNorm", layer["output.dense"](inner) + hidden_TE)
        mean_E = hidden_TE.float().sum(1) / ids_T.shape[1]  # a short type would lose most here
        vector: NDArray[np.float32] = F.normalize(F.normalize(mean_E))[0].numpy()
        return vector

    def _embedded(self, ids_T: Tensor) -> Tensor:
        words, kinds, positions = (
            self._weights[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "token_type", "position")
        )
        hidden_TE = F.embedding(ids_T, words) + kinds[0] + positions[: ids_T.shape[1]]
        return self._normed("embeddings.LayerNorm", hidden_TE)

    def _attention(self, layer: dict[str, _Layer], hidden_TE: Tensor) -> Tensor:
        heads = (1, hidden_TE.shape[1], self._num_heads, -1)
        q, k, v = (layer[name](hidden_TE).view(heads).transpose(1, 2) for name in _ATTENTION[:3])
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)

    def _normed(self, name: str, hidden_TE: Tensor) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return F.layer_norm(hidden_TE, weight.shape, weight, bias, self._epsilon)

    def _linear(self, name: str) -> _Layer:
        matrix, bias = self._weights.pop(f"{name}.weight"), self._weights.pop(f"{name}.bias")
        linear = nn.Linear(matrix.shape[1], matrix.shape[0], device="meta")
        linear.load_state_dict({"weight": matrix, "bias": bias}, assign=True)
        return packed_if_able(linear)
