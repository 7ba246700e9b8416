"""all-MiniLM-L6-v2 in onnxruntime with 8-bit weights, converted here from the packaged weights."""

from __future__ import annotations

import logging
import multiprocessing
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.engines.batch.local_models import minilm_path

_BATCH = 32
_MAX_TOKENS = 256
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def load_onnx_int8(folder: Path) -> Callable[[Sequence[str]], NDArray[np.float32]]:
    """Return a function that embeds texts.

    The model is written to `folder`, by a process of its own, whose memory is not that of the peer.

    Raises:
        ImportError: onnx or onnxruntime is missing.
    """
    import onnx  # noqa: F401
    import onnxruntime
    from tokenizers import Tokenizer

    path = folder / "int8.onnx"
    converter = multiprocessing.get_context("spawn").Process(target=_convert, args=(path,))
    converter.start()
    converter.join()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(minilm_path() / "tokenizer.json"))
    tokenizer.enable_truncation(_MAX_TOKENS)
    tokenizer.enable_padding()

    def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts in batches: masks and ids are (texts, tokens), hidden (texts, tokens, dimensions)."""
        by_length = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
        vectors: dict[int, NDArray[np.float32]] = {}
        for first in range(0, len(texts), _BATCH):
            places = by_length[first : first + _BATCH]
            encoded = tokenizer.encode_batch([texts[place] for place in places])
            mask = np.array([one.attention_mask for one in encoded], dtype=np.int64)
            ids = np.array([one.ids for one in encoded], dtype=np.int64)
            given = dict(zip(_INPUTS, (ids, mask, np.zeros_like(ids)), strict=True))
            (hidden,) = session.run(None, given)
            sums = (hidden * mask[:, :, None]).sum(axis=1)
            vectors |= zip(places, sums / np.linalg.norm(sums, axis=1, keepdims=True), strict=True)
        return np.stack([vectors[place] for place in range(len(texts))]).astype(np.float32)

    return embed


def _convert(path: Path) -> None:
    """Export the model to ONNX and quantise its weights to 8 bits."""
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from transformers import AutoModel

    logging.disable()
    warnings.simplefilter("ignore")

    class Hidden(torch.nn.Module):
        """The vectors of a text's tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(str(minilm_path()), attn_implementation="eager").eval()

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            found = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)
            hidden: torch.Tensor = found.last_hidden_state
            return hidden

    example = torch.ones(2, 16, dtype=torch.long)
    exact = path.with_name("float32.onnx")
    torch.onnx.export(
        Hidden(),
        (example, example, example),
        str(exact),
        input_names=list(_INPUTS),
        output_names=["hidden"],
        dynamic_axes={name: {0: "texts", 1: "tokens"} for name in (*_INPUTS, "hidden")},
        dynamo=False,
        opset_version=17,
    )
    quantize_dynamic(exact, path, weight_type=QuantType.QInt8)
