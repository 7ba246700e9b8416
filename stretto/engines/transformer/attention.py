"""Paged attention in plain torch; a prefix that several sequences share is read once for all of them.

Keys and values are stored in blocks; a sequence's blocks may be anywhere. A run of consecutive blocks is read
in place, other blocks are gathered. Prompt chunks use torch's fused attention one by one. Decoding sequences
of similar length are computed together as one batched matrix product.

Sequences that share a long prefix have the same leading blocks. Their queries are stacked, so that the scores
over the prefix are one matrix product, and the weighted sum of its values is another. Each sequence also
attends to its own tokens. One softmax normalises both parts.
Source: Parrot §7; Hydragen. Differs: the two parts, merged there by log-sum-exp, are normalised together.

    T  tokens of the step    B  sequences of a part   L  keys, padded       P  keys of a shared prefix
    H  query heads           K  key-value heads       G  query heads of a key-value head: H / K
    D  size of a head        R  H + K + K             N  blocks
"""

# ruff: noqa: N803, N806  (tensors carry their shape as a suffix)

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from stretto.engines.transformer.kv_cache import KVCache


class Keys:
    """The place of the keys and values of a sequence's first `num_tokens` tokens: a list of KV blocks."""

    def __init__(self, blocks: list[int], num_tokens: int, kv: KVCache) -> None:
        self.num_tokens = num_tokens
        self.positions = kv.positions[:num_tokens]
        self._first, self._num_blocks = blocks[0], len(blocks)
        is_run = blocks == list(range(blocks[0], blocks[0] + len(blocks)))
        self._rows = None if is_run else kv.block_rows([blocks])

    def read(self, kv: KVCache, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of one layer, each as a tensor (key-value heads, num_tokens, numbers per
        head).
        """
        if self._rows is None:
            both = kv.run(layer, self._first, self._num_blocks)
        else:
            gathered = kv.gather(layer, self._rows, "keys")
            both = gathered.view(
                2, -1, self._num_blocks * kv.block_tokens, gathered.shape[1] // kv.block_tokens
            )
        return both[0, :, : self.num_tokens], both[1, :, : self.num_tokens]


class AttentionPart(Protocol):
    """The interface of a part of a step's tokens whose attention is computed in the same way: a prompt chunk,
    or decodes.

    A step's tensors have one row for each token; the part has rows [start, stop).
    """

    @property
    def start(self) -> int:
        """Number of the part's first row in the step's tensors."""
        ...

    @property
    def stop(self) -> int:
        """Number of the first row after those of the part, in the step's tensors."""
        ...

    def attend(self, q_THD: Tensor, kv: KVCache, layer: int, window: int | None) -> Tensor:
        """Return the attention outputs of the part's tokens in one layer, (rows, heads, numbers per head).

        With a `window`, a row attends only to that many tokens, the newest included.
        """


@dataclass(slots=True)
class PrefillChunk:
    """The attention of a chunk of one sequence's prompt that a step computes: rows [start, stop) of the
    step's tokens.

    Its tokens are the last ones in `keys`, to which they attend. `masks` has a mask for each window.
    """

    start: int
    stop: int
    keys: Keys
    masks: dict[int | None, Tensor | None]

    @classmethod
    def of(cls, start: int, stop: int, keys: Keys, windows: tuple[int | None, ...]) -> PrefillChunk:
        """Create a prompt chunk with its attention masks; `windows` has the attention window of each
        layer.
        """
        masks = {window: _chunk_mask(stop - start, keys, window) for window in dict.fromkeys(windows)}
        return cls(start, stop, keys, masks)

    def attend(self, q_THD: Tensor, kv: KVCache, layer: int, window: int | None) -> Tensor:
        """Return the attention outputs of the chunk's rows in one layer, (rows, heads, numbers per head)."""
        k_KLD, v_KLD = self.keys.read(kv, layer)
        mask = self.masks[window]
        if len(q_THD) == 1:
            q_1KGD = q_THD.reshape(1, len(k_KLD), -1, q_THD.shape[2])
            out_1KGD = F.scaled_dot_product_attention(
                q_1KGD, k_KLD.unsqueeze(0), v_KLD.unsqueeze(0), attn_mask=mask
            )
            return out_1KGD.flatten(1, 2)
        # The batch has the queries of one key-value head, so one stride-0 view of the keys serves all.
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
    """Mask of the keys that each row sees, (T, L); None if causal attention or no mask is enough."""
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
    """The attention of a step's decoding sequences, whose last tokens are rows [start, stop) of the step's
    tokens.

    The keys of a prefix that all of them share, if there is one, are in `prefix`.
    """

    start: int
    stop: int
    prefix: Keys | None
    rows: Tensor
    masks: dict[int | None, Tensor]
    newest: Tensor  # flat index in the mask of each sequence's last token

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
        """Prepare the attention of a step's decoding sequences: their masks, and where their keys are stored.

        Args:
            start: row of the first sequence's last token among the step's tokens.
            tables: KV blocks of each sequence, in order.
            lengths: number of tokens of each sequence.
            num_shared: number of leading blocks that all of them share; 0 for none.
            windows: attention window of each layer.
        """
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
        """Update the masks for the next step: each sequence has one more token, in its last block."""
        self.masks[None].view(-1).index_fill_(0, self.newest.add_(1), 0)

    def attend(self, q_BHD: Tensor, kv: KVCache, layer: int, window: int | None) -> Tensor:
        """Return the sequences' attention outputs in one layer, (sequences, heads, numbers per head)."""
        mask_BK1L = self.masks[window]
        num_pairs, _, num_keys = mask_BK1L.shape
        dim = q_BHD.shape[-1]
        k_BKLD, v_BKLD = kv.gather(layer, self.rows, "own keys").view(2, num_pairs, num_keys, dim)
        q_BKGD = q_BHD.reshape(num_pairs, -1, dim)
        scores_BKGL = torch.baddbmm(mask_BK1L, q_BKGD, k_BKLD.transpose(1, 2), alpha=dim**-0.5)
        if self.prefix is None:
            return torch.bmm(scores_BKGL.softmax(-1), v_BKLD).view(q_BHD.shape)
        shape = (len(q_BHD), -1, *scores_BKGL.shape[1:])
        k_KPD, v_KPD = self.prefix.read(kv, layer)
        shared_BKGD = _attend_together(
            q_BKGD.view(*shape[:3], dim), k_KPD, v_KPD, scores_BKGL.view(shape), kv
        )
        return torch.baddbmm(shared_BKGD.flatten(0, 1), scores_BKGL, v_BKLD).view(q_BHD.shape)


def _attend_together(q_BKGD: Tensor, k_KPD: Tensor, v_KPD: Tensor, own_BKGL: Tensor, kv: KVCache) -> Tensor:
    """Attend to a prefix that all sequences share and see as a whole; returns their sums over it, (B, K, G,
    D).

    `own_BKGL` are the scores over the sequences' own tokens; they are replaced by weights. Heads are computed
    one by one, so that the data stay in the CPU's cache.
    """
    num_sequences, _, group, dim = q_BKGD.shape
    num_shared, num_own = k_KPD.shape[1], own_BKGL.shape[3]
    out_BKGD = torch.empty_like(q_BKGD)
    workspace = kv.workspace("scores", 2, num_sequences, group, num_shared + num_own)
    (own_scores, own_weights), (scores, weights) = workspace[..., num_shared:], workspace.flatten(1, 2)
    to_prefix, from_prefix = scores[:, :num_shared], weights[:, :num_shared]
    heads = (q_BKGD.unbind(1), k_KPD, v_KPD, own_BKGL.unbind(1), out_BKGD.unbind(1))
    for q_BGD, k_PD, v_PD, own_BGL, out_BGD in zip(*heads, strict=True):
        torch.addmm(to_prefix, q_BGD.flatten(0, 1), k_PD.t(), beta=0, alpha=dim**-0.5, out=to_prefix)
        own_scores.copy_(own_BGL)
        torch.softmax(scores, 1, out=weights)
        out_BGD.copy_(torch.mm(from_prefix, v_PD).view(out_BGD.shape))
        own_BGL.copy_(own_weights)
    return out_BKGD


@dataclass(slots=True)
class StepAttention:
    """The inputs of a step's attention, for all of its tokens: prepared once, used by every layer.

    Attributes:
        parts: prompt chunks and decodes, whose rows make up the step.
        token_rows: rows of the KV memory where the step's keys and values are stored.
        windows: attention window of each layer, in tokens; None for all.
        heads: number of query heads.
    """

    parts: list[AttentionPart]
    token_rows: Tensor
    windows: tuple[int | None, ...]
    heads: int

    def attend(self, qkv_TRD: Tensor, kv: KVCache, layer: int) -> Tensor:
        """Store the step's keys and values in `kv`, and return the attention outputs of one layer.

        They are (tokens, heads, numbers per head).
        """
        q_THD = qkv_TRD[:, : self.heads]
        kv.write(layer, self.token_rows, qkv_TRD[:, self.heads :])
        window = self.windows[layer]
        outs = [part.attend(q_THD[part.start : part.stop], kv, layer, window) for part in self.parts]
        return outs[0] if len(outs) == 1 else torch.cat(outs)
