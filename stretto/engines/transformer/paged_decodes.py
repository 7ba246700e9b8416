"""The decodes of a step on a GPU; the Triton kernels read the blocks in place.

In contrast to torch's version, which gathers blocks, this one computes all decodes of a step at once, for any
lengths and any groups that share a prefix.

    B  sequences    W  blocks of the longest    X  tiles    H, K, D  as in `attention`
"""

# ruff: noqa: N803, N806, N815  (tensors carry their shape as a suffix)

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stretto.engines.transformer.kv_cache import KVCache

_MIN_ROWS = 16  # smallest number of rows of a matrix product
_MAX_SPLITS = 32
_NO_WINDOW = 2**30


class Group(NamedTuple):
    """A group of decoding sequences whose attention is computed together.

    Attributes:
        tables: block tables. Each ends with the block of its sequence's newest token, which is never shared.
        lengths: tokens of each sequence.
        num_shared: number of leading blocks that all tables have in common; 0 if they share none.
    """

    tables: list[list[int]]
    lengths: list[int]
    num_shared: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """The sizes with which the attention kernels are launched on a device.

    Contexts are split until there are enough programs (instances of a kernel that run in parallel).

    Attributes:
        rows: largest number of queries stacked into one matrix product.
        keys: tokens that a kernel reads at once.
        num_own: number of programs that attend to sequences' own tokens.
        num_shared: number of programs that attend to shared prefixes; fewer, because each adds more to merge.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int
    num_own: int
    num_shared: int


@cache
def tuning(device: torch.device, dtype: torch.dtype) -> Tuning:
    """Return the sizes with which to launch the attention kernels on a device, by its multiprocessors.

    They were chosen by the compiler's counts of registers, not by measurements; `benchmarks.gpu` tries
    others.
    """
    count = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    # In float32 there are no tensor cores, and a product needs many more registers.
    rows, keys, num_stages = (16, 16, 2) if dtype.itemsize > 2 else (64, 64, 3)
    return Tuning(rows, keys, num_warps=4, num_stages=num_stages, num_own=8 * count, num_shared=2 * count)


@dataclass(slots=True)
class PagedDecodes:
    """The attention of a step's decoding sequences on a GPU; their last tokens are rows [start, start + B) of
    the step.

    All tensors are int32, and on the device.

    Attributes:
        tables_BW: block tables; entries after a sequence's last block are arbitrary.
        lengths_B: number of tokens of each sequence.
        num_shared_B: number of leading tokens that a sequence's whole group shares; 0 for none.
        tiles_X2: first sequence, and number of sequences, of each matrix product.
        tile_rows: largest number of queries in one matrix product.
    """

    start: int
    tables_BW: Tensor
    lengths_B: Tensor
    num_shared_B: Tensor
    tiles_X2: Tensor
    tile_rows: int

    @property
    def stop(self) -> int:
        """Number of the first row after those of the decodes, in the step's tensors."""
        return self.start + len(self.lengths_B)

    @classmethod
    def of(cls, start: int, groups: Sequence[Group], heads: int, kv: KVCache) -> PagedDecodes:
        """Prepare the attention of a step's decoding sequences, whose rows follow each other from `start` on.

        `groups` are groups of sequences that may share a prefix, which is then read once for all of them.
        `heads` is the number of query heads.
        """
        group_heads = heads // kv.kv_heads
        batch = sum(len(group.tables) for group in groups)
        most = min(tuning(kv.device, kv.dtype).rows, batch * group_heads)
        tile_rows = max(_MIN_ROWS, _power_of_two(group_heads), _power_of_two(most))
        tables = np.zeros((batch, max(len(table) for group in groups for table in group.tables)), np.int32)
        lengths: list[int] = []
        num_shared: list[int] = []
        tiles: list[int] = []
        for group in groups:
            first, count = len(lengths), len(group.tables)
            tables[first : first + count, : group.num_shared] = group.tables[0][: group.num_shared]
            for row, table in enumerate(group.tables, first):
                tables[row, group.num_shared : len(table)] = table[group.num_shared :]
            lengths += group.lengths
            num_shared += [group.num_shared * kv.block_tokens] * count
            per_tile = tile_rows // group_heads
            for offset in range(0, count if group.num_shared else 0, per_tile):
                tiles += (first + offset, min(per_tile, count - offset))
        # All tensors are uploaded together.
        others = np.array([*lengths, *num_shared, *tiles], np.int32)
        together = kv.tensor(np.concatenate([tables.ravel(), others]))
        tables_, lengths_B, num_shared_B, tiles_ = torch.split(
            together, [tables.size, batch, batch, len(tiles)]
        )
        return cls(start, tables_.view(tables.shape), lengths_B, num_shared_B, tiles_.view(-1, 2), tile_rows)

    def advance(self) -> None:
        """Update the lengths for the next step: each sequence has one more token, in its last block."""
        self.lengths_B.add_(1)

    def attend(self, q_BHD: Tensor, kv: KVCache, layer: int, window: int | None) -> Tensor:
        """Return the sequences' attention outputs in one layer, (sequences, heads, numbers per head).

        With a `window`, each row attends only to that many tokens, the newest included.
        """
        # Triton launches on the current device, whatever device the tensors are on.
        with torch.cuda.device_of(q_BHD):  # type: ignore[no-untyped-call]
            return attend_paged(q_BHD, *kv.planes(layer), self, window, tuning(kv.device, kv.dtype))


def attend_paged(
    q_BHD: Tensor,
    k_KNTD: Tensor,
    v_KNTD: Tensor,
    decodes: PagedDecodes,
    window: int | None,
    cut: Tuning,
) -> Tensor:
    """Compute the attention outputs of decoding sequences with Triton kernels.

    They are (sequences, heads, numbers per head), in the type of q. The heads of a token in q must be
    contiguous; k and v must have the same layout.
    """
    from stretto.engines.transformer import triton_kernels

    batch, heads, dim = q_BHD.shape
    kv_heads, _, block_tokens, _ = k_KNTD.shape
    group = heads // kv_heads
    num_tiles = len(decodes.tiles_X2)
    assert q_BHD.stride()[1:] == (dim, 1), "the queries of a token are not contiguous"
    assert k_KNTD.stride() == v_KNTD.stride(), "keys and values are laid out differently"
    assert k_KNTD[0].is_contiguous(), "the blocks of a head are not contiguous"
    shared_splits = _num_splits(cut.num_shared, num_tiles * kv_heads) if num_tiles else 0
    own_splits = _num_splits(cut.num_own, batch * kv_heads)
    splits = shared_splits + own_splits
    means_SBHD = torch.empty(splits, batch, heads, dim, dtype=torch.float32, device=q_BHD.device)
    logs_SBH = torch.empty(splits, batch, heads, dtype=torch.float32, device=q_BHD.device)
    out_BHD = torch.empty(batch, heads, dim, dtype=q_BHD.dtype, device=q_BHD.device)
    factor = dim**-0.5 * math.log2(math.e)
    width = max(16, _power_of_two(dim))
    sizes = {"HEADS": heads, "GROUP": group, "DIM": dim, "BLOCK_TOKENS": block_tokens}
    how = {"KEYS": cut.keys, "WIDTH": width, "num_warps": cut.num_warps, "num_stages": cut.num_stages}
    strides = (q_BHD.stride(0), k_KNTD.stride(0), decodes.tables_BW.stride(0))
    if num_tiles:
        triton_kernels.attend_shared[num_tiles, kv_heads, shared_splits](
            q_BHD,
            k_KNTD,
            v_KNTD,
            decodes.tables_BW,
            decodes.num_shared_B,
            decodes.tiles_X2,
            means_SBHD,
            logs_SBH,
            factor,
            batch,
            *strides,
            shared_splits,
            **sizes,
            ROWS=decodes.tile_rows,
            **how,
        )
    triton_kernels.attend_own[batch, kv_heads, own_splits](
        q_BHD,
        k_KNTD,
        v_KNTD,
        decodes.tables_BW,
        decodes.lengths_B,
        decodes.num_shared_B,
        means_SBHD,
        logs_SBH,
        factor,
        window or _NO_WINDOW,
        *strides,
        shared_splits,
        own_splits,
        **sizes,
        ROWS=max(_MIN_ROWS, _power_of_two(group)),
        **how,
    )
    triton_kernels.merge_splits[batch, heads](
        means_SBHD,
        logs_SBH,
        decodes.num_shared_B,
        out_BHD,
        shared_splits,
        splits,
        HEADS=heads,
        DIM=dim,
        SPLITS_WIDTH=_power_of_two(splits),
        WIDTH=width,
    )
    return out_BHD


def _num_splits(num_programs: int, num_parts: int) -> int:
    """Number of splits of each part that gives about `num_programs` programs."""
    return max(1, min(_MAX_SPLITS, num_programs // num_parts))


def _power_of_two(number: int) -> int:
    """Smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()
