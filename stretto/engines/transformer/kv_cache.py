"""The keys and values of an instance's blocks, on its device.

K  key-value heads       N  blocks
T  tokens of a step      B  sequences of a part
D  size of a head        R  K + K: the heads of a token
"""

# ruff: noqa: N803, N806  (tensors carry their shape as a suffix)

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stretto.engines.transformer.config import ModelConfig
from stretto.engines.transformer.device import upload


class KVCache:
    """The memory of an instance's KV blocks, which hold the keys and values of all its sequences.

    It is one tensor, (layer, key or value, K, N, block_tokens, D), with K key-value heads, N blocks, and D
    numbers for each head. It starts as zeros, because masked values are multiplied by zero and must be
    finite.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (config.layers, 2, config.kv_heads, num_blocks, block_tokens, config.head_dim)
        self._data = _zeros(shape, dtype, device)
        # Views of each layer: by (key or value, K, N) and by single token.
        self._by_block = [layer.flatten(0, 2).flatten(1) for layer in self._data]
        self._by_token = [layer.flatten(0, 3) for layer in self._data]
        self._workspaces: dict[str, Tensor] = {}
        self.block_tokens = block_tokens
        self.kv_heads = config.kv_heads
        self.positions = torch.arange(config.context_tokens + block_tokens, device=device)
        # Indices are computed with numpy, which takes a fraction of torch's time for a few numbers.
        self._first_rows = np.arange(2 * config.kv_heads).reshape(2, config.kv_heads) * num_blocks

    @property
    def device(self) -> torch.device:
        """Device on which the keys and values are stored."""
        return self._data.device

    @property
    def dtype(self) -> torch.dtype:
        """Number type (torch dtype) of the stored keys and values."""
        return self._data.dtype

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        """Copy the contents of blocks, given as (from, to) ids; all are read before any is written."""
        if copies:
            sources, targets = self.tensor(np.array(copies)).unbind(1)
            self._data[:, :, :, targets] = self._data[:, :, :, sources]

    def token_rows(self, blocks: list[int], positions: list[int]) -> Tensor:
        """Return the rows of the KV memory at which `write` must store the keys and values of a step's
        tokens.

        There are 2 · K rows for each token, with K key-value heads. `blocks` and `positions` are the block of
        each token and its position in its sequence.
        """
        rows = self._first_rows.ravel() + np.array(blocks)[:, None]
        offsets = np.array(positions)[:, None] % self.block_tokens
        return self.tensor((rows * self.block_tokens + offsets).ravel())

    def block_rows(self, tables: list[list[int]]) -> Tensor:
        """Return the rows of the KV memory that hold the blocks of these block tables, for `gather` to read.

        Each table has 2 · K rows for each of its blocks, with K key-value heads. All tables must have the
        same length.
        """
        blocks_BN = np.array(tables)
        return self.tensor((self._first_rows[:, None, :, None] + blocks_BN[:, None]).ravel())

    def tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        """Return a copy of a numpy array as a tensor on the device of the KV cache."""
        return upload(array, self.device)

    def write(self, layer: int, rows: Tensor, kv_TRD: Tensor) -> None:
        """Store the keys and values of a step's tokens in one layer, at the `rows` from `token_rows`.

        `kv_TRD` is (tokens, key heads and value heads, numbers per head).
        """
        self._by_token[layer].index_copy_(0, rows, kv_TRD.flatten(0, 1))

    def gather(self, layer: int, rows: Tensor, use: str) -> Tensor:
        """Return a copy of one layer's blocks at the `rows` that `block_rows` returned, a block in each row.

        It is (rows, block_tokens · numbers per head). `use` names the workspace, whose memory is reused by
        the next call with that name.
        """
        blocks = self._by_block[layer]
        return torch.index_select(blocks, 0, rows, out=self.workspace(use, len(rows), blocks.shape[1]))

    def planes(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return views of all keys and all values of a layer.

        Each is (key-value heads, blocks, block_tokens, numbers per head).
        """
        keys, values = self._data[layer]
        return keys, values

    def workspace(self, use: str, *shape: int) -> Tensor:
        """Return memory for intermediate results of the given shape, valid until the next call for the same
        use.

        The memory is reused, because allocating it for every layer takes longer than filling it.
        """
        num_elements = math.prod(shape)
        if use not in self._workspaces or num_elements > len(self._workspaces[use]):
            self._workspaces[use] = self._data.new_empty(num_elements)
        return self._workspaces[use][:num_elements].view(shape)

    def run(self, layer: int, first: int, num_blocks: int) -> Tensor:
        """Return a view of the keys and values that one layer has in `num_blocks` consecutive blocks.

        It is (2, key-value heads, num_blocks · block_tokens, numbers per head), without a copy.
        """
        return self._data[layer, :, :, first : first + num_blocks].flatten(2, 3)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate zeros. On the CPU, pages of memory are taken only when they are written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)
