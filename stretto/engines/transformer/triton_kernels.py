"""Triton kernels: attention of decoding sequences over paged keys and values.

The context of a sequence is cut into splits that are computed in parallel: first those of a prefix that it
shares with others, then its own. The result of a split is the weighted mean of its values, and the logarithm
of the sum of its weights. From these, `merge_splits` computes the exact total. All logarithms are to base 2,
which the hardware computes fast. Products of float32 are computed in float32, not in tf32.

Lengths are read on the device and no grid depends on them, so a captured CUDA graph stays valid as sequences
grow. Nothing that changes from step to step is compiled in.

    ROWS   queries of a tile, at least 16 as `tl.dot` wants    KEYS    tokens read at once
    WIDTH  the next power of two to DIM                        GROUP   query heads of a key-value head
    DIM    size of a head                                      HEADS   query heads
    B      sequences        S  splits        K  key-value heads        N  blocks

Source: flash-decoding (splits); Parrot §7 and Hydragen (the shared part as one matrix product).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803  (compile-time constants are in capitals)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _attend(
    q,
    keys,
    values,
    table,
    low,
    high,
    factor,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Attend with queries (ROWS, WIDTH) to tokens [low, high) of a block table.

    Returns means (ROWS, WIDTH) and log-sum-exps (ROWS,). `keys` and `values` point to the blocks of one head,
    `factor` is the scale times log2(e). For no tokens, the mean is zero and the log-sum-exp minus infinity.
    """
    dims = tl.arange(0, WIDTH)
    is_dim = dims < DIM
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(low, high, KEYS):
        tokens = start + tl.arange(0, KEYS)
        is_seen = tokens < high
        blocks = tl.load(table + tokens // BLOCK_TOKENS, mask=is_seen, other=0).to(tl.int64)
        places = (blocks * BLOCK_TOKENS + tokens % BLOCK_TOKENS) * DIM
        k = tl.load(
            keys + places[None, :] + dims[:, None], mask=is_seen[None, :] & is_dim[:, None], other=0.0
        )
        scores = tl.dot(q, k, input_precision="ieee") * factor
        scores = tl.where(is_seen[None, :], scores, float("-inf"))
        # Every iteration sees at least its first token, so this is finite.
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        decay = tl.exp2(highest - new_highest)
        weights = tl.exp2(scores - new_highest[:, None])
        total = total * decay + tl.sum(weights, 1)
        v = tl.load(
            values + places[:, None] + dims[None, :], mask=is_seen[:, None] & is_dim[None, :], other=0.0
        )
        weighted = tl.dot(weights.to(v.dtype), v, weighted * decay[:, None], input_precision="ieee")
        highest = new_highest
    total = tl.where(total > 0, total, 1.0)
    return weighted / total[:, None], highest + tl.log2(total)


@triton.jit(
    do_not_specialize=["window", "table_stride", "first_split", "num_splits"],
    do_not_specialize_on_alignment=["tables", "lengths", "num_shared"],
)
def attend_own(
    q,  # (B, HEADS, DIM), rows `q_stride` apart
    keys,  # (K, N, BLOCK_TOKENS, DIM), heads `head_stride` apart; `values` likewise
    values,
    tables,  # (B, blocks of the longest), rows `table_stride` apart: block numbers
    lengths,  # (B,): tokens of a sequence, the newest included
    num_shared,  # (B,): number of leading tokens that `attend_shared` computes
    means,  # out: (S, B, HEADS, DIM), splits [first_split, first_split + num_splits)
    logs,  # out: (S, B, HEADS), the same splits
    factor,
    window,
    q_stride,
    head_stride,
    table_stride,
    first_split,
    num_splits,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Triton kernel: attention of a decoding sequence's queries, of one key-value head, to a part (split) of
    its own tokens.

    Grid: (B, K, num_splits).
    """
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(lengths + sequence)
    first = tl.maximum(tl.load(num_shared + sequence), length - window)
    share = tl.cdiv(tl.cdiv(length - first, num_splits), KEYS) * KEYS
    low = first + split * share
    high = tl.minimum(low + share, length)

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, WIDTH)
    is_row = rows < GROUP
    is_value = is_row[:, None] & (dims < DIM)[None, :]
    heads = head * GROUP + rows
    query = tl.load(q + sequence * q_stride + heads[:, None] * DIM + dims[None, :], mask=is_value, other=0.0)
    offset = head.to(tl.int64) * head_stride
    mean, log = _attend(
        query,
        keys + offset,
        values + offset,
        tables + sequence * table_stride,
        low,
        high,
        factor,
        DIM,
        BLOCK_TOKENS,
        ROWS,
        KEYS,
        WIDTH,
    )
    places = ((first_split + split) * tl.num_programs(0) + sequence) * HEADS + heads
    tl.store(logs + places, log, mask=is_row)
    is_known = is_value & (log > float("-inf"))[:, None]
    tl.store(means + places[:, None] * DIM + dims[None, :], mean, mask=is_known)


@triton.jit(
    do_not_specialize=["num_sequences", "table_stride", "num_splits"],
    do_not_specialize_on_alignment=["tables", "num_shared", "tiles"],
)
def attend_shared(
    q,
    keys,
    values,
    tables,
    num_shared,
    tiles,  # (tiles, 2): first sequence and number of sequences, all of one group that shares a prefix
    means,  # out, splits [0, num_splits)
    logs,
    factor,
    num_sequences,
    q_stride,
    head_stride,
    table_stride,
    num_splits,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Triton kernel: attention of the stacked queries of several decoding sequences to one part (split) of
    their shared prefix.

    Grid: (tiles, K, num_splits).
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    first_sequence = tl.load(tiles + 2 * tile).to(tl.int64)
    num_rows = tl.load(tiles + 2 * tile + 1) * GROUP
    length = tl.load(num_shared + first_sequence)
    share = tl.cdiv(tl.cdiv(length, num_splits), KEYS) * KEYS
    low = split * share
    high = tl.minimum(low + share, length)

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, WIDTH)
    is_row = rows < num_rows
    is_value = is_row[:, None] & (dims < DIM)[None, :]
    sequences = first_sequence + rows // GROUP
    heads = head * GROUP + rows % GROUP
    starts = sequences * q_stride + heads * DIM
    query = tl.load(q + starts[:, None] + dims[None, :], mask=is_value, other=0.0)
    offset = head.to(tl.int64) * head_stride
    mean, log = _attend(
        query,
        keys + offset,
        values + offset,
        tables + first_sequence * table_stride,
        low,
        high,
        factor,
        DIM,
        BLOCK_TOKENS,
        ROWS,
        KEYS,
        WIDTH,
    )
    places = (split * num_sequences + sequences) * HEADS + heads
    tl.store(logs + places, log, mask=is_row)
    is_known = is_value & (log > float("-inf"))[:, None]
    tl.store(means + places[:, None] * DIM + dims[None, :], mean, mask=is_known)


@triton.jit(do_not_specialize=["shared_splits", "num_splits"], do_not_specialize_on_alignment=["num_shared"])
def merge_splits(
    means,
    logs,
    num_shared,
    out,  # (B, HEADS, DIM)
    shared_splits,
    num_splits,  # all of them
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS_WIDTH: tl.constexpr,  # the next power of two to `num_splits`
    WIDTH: tl.constexpr,
):
    """Triton kernel: merge the results of all splits (parts of a context) to one head's attention output.
    Grid: (B, HEADS).
    """
    sequence = tl.program_id(0).to(tl.int64)
    place = sequence * HEADS + tl.program_id(1)
    splits = tl.arange(0, SPLITS_WIDTH)
    dims = tl.arange(0, WIDTH)
    # A sequence that shares nothing is in no tile, so its part of the shared splits was not written.
    first = tl.where(tl.load(num_shared + sequence) > 0, 0, shared_splits)
    is_written = (splits >= first) & (splits < num_splits)
    places = splits * tl.num_programs(0).to(tl.int64) * HEADS + place
    log = tl.load(logs + places, mask=is_written, other=float("-inf"))
    weights = tl.exp2(log - tl.max(log, 0))
    is_value = (log > float("-inf"))[:, None] & (dims < DIM)[None, :]
    mean = tl.load(means + places[:, None] * DIM + dims[None, :], mask=is_value, other=0.0)
    merged = tl.sum(mean * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(out + place * DIM + dims, merged.to(out.dtype.element_ty), mask=dims < DIM)
