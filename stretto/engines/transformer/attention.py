"""Paged attention in plain torch, with prefixes that several sequences share attended to once.

Keys and values lie in blocks; a sequence's blocks may be anywhere. A run of consecutive blocks is read in
place, any others are gathered. Prompt chunks go through torch's fused attention one by one, decoding
sequences of like length together as one batched matrix product.

Sequences that share a long prefix have the same leading blocks. Their queries, one of each, are stacked and
attend to the prefix as one matrix; each attends to its own part; and the two are merged exactly, by what
their softmaxes would have been normalised with (log-sum-exp).
Source: Parrot §7; Hydragen.

    T  tokens of the step    B  sequences of a part   L  keys, padded       P  keys of a shared prefix
    H  query heads           K  key-value heads       G  query heads of a key-value head: H / K
    D  size of a head        R  H + K + K             N  blocks
"""

# ruff: noqa: N803, N806  (tensors carry their shape as a suffix)

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from stretto.engines.transformer.config import ModelConfig


class KVCache:
    """The keys and values of all blocks: (layer, key or value, K, N, block_tokens, D).

    It starts as zeros: what is masked is multiplied by zero, and must be finite.
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
        # Always the same memory: taking it anew for every layer costs more than filling it.
        self._gathered = self._by_block[0].new_empty(0, self._by_block[0].shape[1])
        self.block_tokens = block_tokens
        self.kv_heads = config.kv_heads
        self.positions = torch.arange(config.context_tokens + block_tokens, device=device)
        # Places are worked out by numpy: for a few numbers it takes a fraction of torch's time.
        self._first_rows = np.arange(2 * config.kv_heads).reshape(2, config.kv_heads) * num_blocks

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self._data.device

    @property
    def dtype(self) -> torch.dtype:
        """Of its numbers."""
        return self._data.dtype

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        """Copy whole blocks, (from, to): all are read before any is written."""
        if copies:
            sources, targets = torch.tensor(copies, device=self.device).unbind(1)
            self._data[:, :, :, targets] = self._data[:, :, :, sources]

    def token_rows(self, blocks: list[int], positions: list[int]) -> Tensor:
        """Where `write` puts the keys and values of tokens at `positions`, in `blocks`: (T · 2 · K,)."""
        rows = self._first_rows.ravel() + np.array(blocks)[:, None]
        offsets = np.array(positions)[:, None] % self.block_tokens
        return self.tensor((rows * self.block_tokens + offsets).ravel())

    def block_rows(self, tables: list[list[int]]) -> Tensor:
        """What `gather` reads for tables of equally many blocks: (2 · B · K · N,)."""
        blocks_BN = np.array(tables)
        return self.tensor((self._first_rows[:, None, :, None] + blocks_BN[:, None]).ravel())

    def tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        """An array, where the cache is."""
        return torch.from_numpy(array).to(self.device)

    def write(self, layer: int, rows: Tensor, kv_TRD: Tensor) -> None:
        """Store the step's keys and values, (T, K + K, D)."""
        self._by_token[layer].index_copy_(0, rows, kv_TRD.flatten(0, 1))

    def gather(self, layer: int, rows: Tensor) -> Tensor:
        """A copy of those blocks, (rows, block_tokens · D), good until the next one."""
        blocks = self._by_block[layer]
        if len(rows) > len(self._gathered):
            self._gathered = blocks.new_empty(len(rows), blocks.shape[1])
        return torch.index_select(blocks, 0, rows, out=self._gathered[: len(rows)])

    def run(self, layer: int, first: int, num_blocks: int) -> Tensor:
        """Consecutive blocks in place: (2, K, num_blocks · block_tokens, D)."""
        return self._data[layer, :, :, first : first + num_blocks].flatten(2, 3)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On the CPU memory that is taken only as it is written, so that a large cache costs what it holds."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


class Keys:
    """The keys and values of the tokens [0, num_tokens) that a list of blocks holds."""

    def __init__(self, blocks: list[int], num_tokens: int, kv: KVCache) -> None:
        self.num_tokens = num_tokens
        self.positions = kv.positions[:num_tokens]
        self._first, self._num_blocks = blocks[0], len(blocks)
        is_run = blocks == list(range(blocks[0], blocks[0] + len(blocks)))
        self._rows = None if is_run else kv.block_rows([blocks])

    def read(self, kv: KVCache, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values, each (K, num_tokens, D)."""
        if self._rows is None:
            both = kv.run(layer, self._first, self._num_blocks)
        else:
            gathered = kv.gather(layer, self._rows)
            both = gathered.view(
                2, -1, self._num_blocks * kv.block_tokens, gathered.shape[1] // kv.block_tokens
            )
        return both[0, :, : self.num_tokens], both[1, :, : self.num_tokens]


@dataclass(slots=True)
class Chunk:
    """Rows [start, stop) of the step: the last tokens of those that `keys` holds, of one sequence."""

    start: int
    stop: int
    keys: Keys
    masks: dict[int | None, Tensor | None]

    @classmethod
    def of(cls, start: int, stop: int, keys: Keys, windows: tuple[int | None, ...]) -> Chunk:
        """A chunk, with its mask for every window that a layer has."""
        masks = {window: _chunk_mask(stop - start, keys, window) for window in dict.fromkeys(windows)}
        return cls(start, stop, keys, masks)

    def attend(self, q_THD: Tensor, kv: KVCache, layer: int, window: int | None) -> Tensor:
        """The attended values of its rows, (T, H, D)."""
        k_KLD, v_KLD = self.keys.read(kv, layer)
        mask = self.masks[window]
        if len(q_THD) == 1:
            q_1KGD = q_THD.reshape(1, len(k_KLD), -1, q_THD.shape[2])
            out_1KGD = F.scaled_dot_product_attention(
                q_1KGD, k_KLD.unsqueeze(0), v_KLD.unsqueeze(0), attn_mask=mask
            )
            return out_1KGD.flatten(1, 2)
        # The queries of a key-value head are the batch: one stride-0 view serves them all.
        num_rows, _, dim = q_THD.shape
        q_GKTD = q_THD.reshape(num_rows, len(k_KLD), -1, dim).permute(2, 1, 0, 3)
        shape = (q_GKTD.shape[0], *k_KLD.shape)
        out_GKTD = F.scaled_dot_product_attention(
            q_GKTD,
            k_KLD.expand(shape),
            v_KLD.expand(shape),
            attn_mask=mask,
            is_causal=mask is None,
        )
        return out_GKTD.permute(2, 1, 0, 3).flatten(1, 2)


def _chunk_mask(num_rows: int, keys: Keys, window: int | None) -> Tensor | None:
    """Which keys each row sees, (T, L); None if plain causal attention, or none, says it all."""
    num_before = keys.num_tokens - num_rows
    reaches_all = window is None or window >= keys.num_tokens
    if reaches_all and (num_rows == 1 or num_before == 0):
        return None
    positions = keys.positions
    distance = positions[num_before:].unsqueeze(1) - positions
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


@dataclass(slots=True)
class Decodes:
    """Rows [start, stop) of the step: the last token of as many sequences, which may share `prefix`."""

    start: int
    stop: int
    prefix: Keys | None
    rows: Tensor
    masks: dict[int | None, Tensor]
    newest: Tensor  # where in the plain mask each sequence's last token is, flat

    @classmethod
    def of(
        cls,
        start: int,
        tables: list[list[int]],
        lengths: list[int],
        num_shared: int,
        kv: KVCache,
        windows: tuple[int | None, ...],
    ) -> Decodes:
        """Sequences whose blocks, the first `num_shared` of them the same, hold `lengths` tokens."""
        widest = max(map(len, tables))
        padded = [table[num_shared:] + table[-1:] * (widest - len(table)) for table in tables]
        num_before = num_shared * kv.block_tokens
        positions_L = np.arange(num_before, widest * kv.block_tokens)
        lengths_B1 = np.array(lengths)[:, None]
        masks = {}
        for window in dict.fromkeys(windows):
            is_hidden_BL = positions_L >= lengths_B1
            if window is not None:
                is_hidden_BL |= positions_L < lengths_B1 - window
            mask_BL = np.where(is_hidden_BL, np.float32(-np.inf), np.float32(0))
            masks[window] = kv.tensor(mask_BL.repeat(kv.kv_heads, 0)[:, None]).to(kv.dtype)
        prefix = Keys(tables[0][:num_shared], num_before, kv) if num_shared else None
        newest_BK = (lengths_B1 - 1 - num_before).repeat(kv.kv_heads)
        newest = kv.tensor(newest_BK + np.arange(len(newest_BK)) * len(positions_L))
        return cls(start, start + len(tables), prefix, kv.block_rows(padded), masks, newest)

    def advance(self) -> None:
        """Become the part of the next step: each sequence sees one token more, in the block it wrote last."""
        self.masks[None].view(-1).index_fill_(0, self.newest.add_(1), 0)

    def attend(self, q_BHD: Tensor, kv: KVCache, layer: int, window: int | None) -> Tensor:
        """The attended values of its rows, (B, H, D)."""
        mask_BK1L = self.masks[window]
        num_pairs, _, num_keys = mask_BK1L.shape
        dim = q_BHD.shape[-1]
        k_BKLD, v_BKLD = kv.gather(layer, self.rows).view(2, num_pairs, num_keys, dim)
        q_BKGD = q_BHD.reshape(num_pairs, -1, dim)
        scores_BKGL = torch.baddbmm(mask_BK1L, q_BKGD, k_BKLD.transpose(1, 2), alpha=dim**-0.5)
        if self.prefix is None:
            return torch.bmm(scores_BKGL.softmax(-1), v_BKLD).view(q_BHD.shape)
        own_BKGD, lse_BKG1 = _weighted(scores_BKGL, v_BKLD)
        shared_BHD, shared_lse_BH1 = _attend_together(q_BHD, *self.prefix.read(kv, layer))
        share_BH1 = torch.sigmoid(shared_lse_BH1 - lse_BKG1.view(shared_lse_BH1.shape))
        return torch.lerp(own_BKGD.view(q_BHD.shape).float(), shared_BHD.float(), share_BH1).to(q_BHD.dtype)


def _attend_together(q_BHD: Tensor, k_KPD: Tensor, v_KPD: Tensor) -> tuple[Tensor, Tensor]:
    """All sequences over one prefix that each sees whole: values, and their log-sum-exp, (B, H, 1)."""
    num_sequences, num_heads, dim = q_BHD.shape
    q_BKGD = q_BHD.reshape(num_sequences, len(k_KPD), -1, dim)
    q_KBGD = q_BKGD.transpose(0, 1).flatten(1, 2)
    if q_BHD.device.type == "cpu":
        # Torch's fused kernel never stores the scores; what it normalised with, only this form returns.
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = fused(q_KBGD.unsqueeze(0), k_KPD.unsqueeze(0), v_KPD.unsqueeze(0))
        out, lse = out.squeeze(0), lse.view(*q_KBGD.shape[:2], 1)
    else:
        out, lse = _weighted(torch.bmm(q_KBGD * dim**-0.5, k_KPD.transpose(1, 2)), v_KPD)

    def by_sequence(x: Tensor) -> Tensor:
        apart = x.view(len(x), num_sequences, -1, x.shape[2])
        return apart.transpose(0, 1).reshape(num_sequences, num_heads, -1)

    return by_sequence(out), by_sequence(lse)


def _weighted(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax of the scores times the values; and what normalised it, the log-sum-exp in float32."""
    scores = scores.float()
    lse = scores.logsumexp(-1, keepdim=True)
    return torch.bmm((scores - lse).exp_().to(values.dtype), values), lse


@dataclass(slots=True)
class StepAttention:
    """How a step's tokens attend: worked out once, used by every layer."""

    parts: list[Chunk | Decodes]
    token_rows: Tensor
    windows: tuple[int | None, ...]
    heads: int

    def attend(self, qkv_TRD: Tensor, kv: KVCache, layer: int) -> Tensor:
        """Write the step's keys and values, and attend: (T, H, D)."""
        q_THD = qkv_TRD[:, : self.heads]
        kv.write(layer, self.token_rows, qkv_TRD[:, self.heads :])
        window = self.windows[layer]
        outs = [part.attend(q_THD[part.start : part.stop], kv, layer, window) for part in self.parts]
        return outs[0] if len(outs) == 1 else torch.cat(outs)
