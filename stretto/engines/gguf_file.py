"""Reads GGUF files: the configuration of the model in them, and its tensors in the shapes of a checkpoint.

Quantised tensors are dequantised one by one, when they are asked for. Files of the kind "llama" have the rows
of queries and keys in another order, for a rotation of neighbours; they get the order of a checkpoint.

The head of a file is read here: the package `gguf` makes arrays of each of some 100,000 strings of the
tokenizer there, which takes seconds, and nobody looks at them.

Source: the package `gguf` of llama.cpp for the format and the types of tensors, its `convert_hf_to_gguf.py`
for names and orders.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.model.errors import ConfigError
from stretto.model.extras import imports_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

QUANTISATIONS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K")
"""Types of tensors that are read."""
_KINDS = ("llama", "qwen2", "qwen3")
_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_MAX_DIMENSIONS, _MAX_TENSORS = 2, 100_000
_FORMATS = dict(zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""Formats of single numbers in the head, by the numbers of their types."""
_TEXT, _LIST = 8, 9
_JOINED_ROWS = 16
"""Most rows of a matrix that are dequantised as one. The package takes 16 rows at a time, which are few."""
_NAMES = (
    (re.compile(r"^model\.embed_tokens\."), "token_embd."),
    (re.compile(r"^model\.norm\."), "output_norm."),
    (re.compile(r"^lm_head\."), "output."),
    (re.compile(r"^model\.layers\.(\d+)\."), r"blk.\1."),
    (re.compile(r"\.self_attn\.o_proj\."), ".attn_output."),
    (re.compile(r"\.self_attn\.([qkv])_proj\."), r".attn_\1."),
    (re.compile(r"\.self_attn\.([qk])_norm\."), r".attn_\1_norm."),
    (re.compile(r"\.mlp\.(\w+)_proj\."), r".ffn_\1."),
    (re.compile(r"\.input_layernorm\."), ".attn_norm."),
    (re.compile(r"\.post_attention_layernorm\."), ".ffn_norm."),
)
"""How a GGUF file calls what a checkpoint calls otherwise, in the order in which names are rewritten."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where a tensor lies in the file, and how it is written."""

    kind: int
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class GGUFFile:
    """What a GGUF file says of its model, and where its tensors are.

    Attributes:
        metadata: single values by their names in the file, such as "llama.block_count".
        num_of: lengths of the lists, by name.
    """

    path: Path
    metadata: Mapping[str, Any]
    num_of: Mapping[str, int]
    _tensors: Mapping[str, _Stored]

    @property
    def kind(self) -> str:
        """Kind of the model: "llama" (Mistral's too), "qwen2" or "qwen3"."""
        return str(self.metadata.get("general.architecture"))

    def has(self, name: str) -> bool:
        """Return whether the file has a tensor, by its name in a checkpoint."""
        return _renamed(name) in self._tensors

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Return a tensor in float32, by its name in a checkpoint, dequantised and in its order.

        Raises:
            ConfigError: the file lacks it.
        """
        import numpy as np
        from gguf import GGMLQuantizationType, dequantize

        stored = self._tensors.get(_renamed(name))
        if stored is None:
            raise ConfigError(f"{self.path} lacks the tensor {_renamed(name)} ({name})")
        kind = GGMLQuantizationType(stored.kind)
        raw = np.asarray(np.memmap(self.path, np.uint8, "r", stored.start, (stored.num_bytes,)))
        rows = stored.shape[0] if len(stored.shape) > 1 else 1
        rows //= math.gcd(rows, _JOINED_ROWS)
        values: NDArray[np.float32]
        if kind.name == "F32":
            values = raw.view(np.float32).copy()
        elif kind.name == "F16":
            values = raw.view(np.float16).astype(np.float32)
        else:
            values = dequantize(raw.reshape(rows, -1), kind)
        return self._ordered(name, values.reshape(stored.shape))

    def raw_config(self) -> dict[str, object]:
        """Return the configuration as the config.json of a checkpoint would have it.

        Raises:
            ConfigError: the model is of another kind, or has a part that is not supported.
        """
        if self.kind not in _KINDS:
            raise ConfigError(f"architecture {self.kind!r} is not supported; {', '.join(_KINDS)} are")
        of = {
            name.removeprefix(f"{self.kind}."): value
            for name, value in self.metadata.items()
            if name.startswith(f"{self.kind}.")
        }
        if of.get("expert_count"):
            raise ConfigError("mixtures of experts are not supported")
        if (scaling := of.get("rope.scaling.type", "none")) != "none" and of.get("rope.scaling.factor") != 1:
            raise ConfigError(f"rope scaling {scaling!r} is not supported")
        heads, hidden = of["attention.head_count"], of["embedding_length"]
        if not isinstance(heads, int) or heads < 1:
            raise ConfigError(f"attention.head_count is {heads!r}")
        head_dim = of.get("attention.key_length", hidden // heads)
        for name in ("rope.dimension_count", "attention.value_length"):
            if of.get(name, head_dim) != head_dim:
                raise ConfigError(f"{name} is {of[name]}; {head_dim}, the size of a head, is supported")
        embedding = self._tensors.get("token_embd.weight")
        if embedding is None:
            raise ConfigError("the tensor token_embd.weight is missing")
        return {
            "model_type": self.kind,
            "vocab_size": embedding.shape[0],
            "hidden_size": hidden,
            "intermediate_size": of["feed_forward_length"],
            "num_hidden_layers": of["block_count"],
            "num_attention_heads": heads,
            "num_key_value_heads": of.get("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "max_position_embeddings": of["context_length"],
            "rms_norm_eps": of["attention.layer_norm_rms_epsilon"],
            "rope_theta": of.get("rope.freq_base", 1e4),
            "tie_word_embeddings": not self.has("lm_head.weight"),
            "attention_bias": self.has("model.layers.0.self_attn.q_proj.bias"),
        }

    def rope_divisors(self) -> tuple[float, ...] | None:
        """Return the divisors of the rotary frequencies, with which Llama 3's context is extended; None if
        there are none.
        """
        name = "rope_freqs.weight"
        return tuple(map(float, self.tensor(name))) if name in self._tensors else None

    def ending_tokens(self) -> list[int]:
        """Return the tokens that end an answer or a turn of it."""
        names = ("eos_token_id", "eot_token_id", "eom_token_id")
        found = [self.metadata.get(f"tokenizer.ggml.{name}") for name in names]
        return [token for token in found if isinstance(token, int)]

    def _ordered(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        projection = re.search(r"\.([qk])_proj\.", name)
        if self.kind != "llama" or projection is None:
            return values
        heads = self.metadata[f"{self.kind}.attention.head_count"]
        if projection[1] == "k":
            heads = self.metadata.get(f"{self.kind}.attention.head_count_kv", heads)
        if len(values) % (2 * heads):
            raise ConfigError(f"{name} in {self.path} has {len(values)} rows, for {heads} heads")
        pairs = values.reshape(heads, len(values) // heads // 2, 2, *values.shape[1:])
        return pairs.swapaxes(1, 2).reshape(values.shape)


def is_gguf(path: Path) -> bool:
    """Return whether a path names a GGUF file, by its ending."""
    return path.suffix.lower() == ".gguf"


def read_gguf(path: Path) -> GGUFFile:
    """Read what a GGUF file says of its model. The same file is read once.

    Raises:
        ConfigError: the file is missing or damaged, or has a tensor of an unsupported type.
    """
    with imports_of("local", f"the checkpoint {path}"):
        import gguf  # noqa: F401
    try:
        state = path.stat()
        return _read(path.resolve(), state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


@lru_cache(maxsize=8)
def _read(path: Path, _mtime_ns: int, num_bytes: int) -> GGUFFile:
    try:
        return _parsed(path, num_bytes)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from error
    except Exception as error:  # whatever the package raises, it is about this file
        raise ConfigError(f"{path} is damaged, or no GGUF file: {error!r:.200}") from error


def _parsed(path: Path, num_bytes: int) -> GGUFFile:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        head = _Head(data)
        magic, version, num_tensors, num_fields = head.numbers("4sIQQ")
        if magic != _MAGIC or version not in _VERSIONS:
            raise ConfigError(f"no GGUF file of version 2 or 3: it begins with {data[:8]!r}")
        if max(num_tensors, num_fields) > _MAX_TENSORS:
            raise ConfigError(f"damaged: it counts {num_tensors} tensors and {num_fields} fields")
        metadata: dict[str, Any] = {}
        num_of: dict[str, int] = {}
        for _ in range(num_fields):
            name, (kind,) = head.text(), head.numbers("I")
            if kind == _LIST:
                num_of[name] = head.skip_list()
            else:
                metadata[name] = head.text() if kind == _TEXT else head.numbers(_FORMATS[kind])[0]
        tensors = dict(head.tensor() for _ in range(num_tensors))
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or len(tensors) < num_tensors:
            raise ConfigError(f"damaged: alignment {alignment!r}, {len(tensors)} of {num_tensors} tensors")
        start = -(-head.at // alignment) * alignment
    for name, stored in tensors.items():
        if (
            not 1 <= len(stored.shape) <= _MAX_DIMENSIONS
            or start + stored.start + stored.num_bytes > num_bytes
        ):
            raise ConfigError(f"damaged or cut off: {name} of the shape {stored.shape} is not all there")
    placed = {name: replace(stored, start=start + stored.start) for name, stored in tensors.items()}
    return GGUFFile(path, metadata, num_of, placed)


class _Head:
    """Reads the head of a GGUF file from its beginning on; `at` is the number of bytes that were read."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.at = 0

    def numbers(self, kinds: str) -> tuple[Any, ...]:
        """Return the next numbers, of these types of the module `struct`."""
        found = struct.unpack_from(f"<{kinds}", self._data, self.at)
        self.at += struct.calcsize(f"<{kinds}")
        return found

    def text(self) -> str:
        """Return the next text."""
        (length,) = self.numbers("Q")
        self.at += length
        return self._data[self.at - length : self.at].decode()

    def skip_list(self) -> int:
        """Pass over a list, and return its length."""
        kind, length = self.numbers("IQ")
        if kind != _TEXT:
            self.at += length * struct.calcsize(_FORMATS[kind])
            return int(length)
        for _ in range(length):
            self.at += 8 + struct.unpack_from("<Q", self._data, self.at)[0]
        return int(length)

    def tensor(self) -> tuple[str, _Stored]:
        """Return name and place of the next tensor, from the end of the head on.

        Raises:
            ConfigError: its type is not supported, or its rows end within a block of numbers.
        """
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name, (num_dimensions,) = self.text(), self.numbers("I")
        shape = self.numbers(f"{min(num_dimensions, _MAX_TENSORS)}Q")[::-1]
        kind, start = self.numbers("IQ")
        known = GGMLQuantizationType(kind)
        if known.name not in QUANTISATIONS:
            raise ConfigError(f"{name} is of the type {known.name}; {', '.join(QUANTISATIONS)} are supported")
        block_numbers, block_bytes = GGML_QUANT_SIZES[known]
        if not shape or shape[-1] % block_numbers:
            raise ConfigError(f"damaged: {name} of the shape {shape} does not consist of {known.name} blocks")
        return name, _Stored(kind, shape, start, math.prod(shape) // block_numbers * block_bytes)


def _renamed(name: str) -> str:
    for pattern, replacement in _NAMES:
        name = pattern.sub(replacement, name)
    return name
