"""Time that attending together saves in one layer, next to plain paged attention and torch's attention."""

# ruff: noqa: N806  (tensors carry their shape as a suffix)

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from benchmarks.gpu.checks import one_layer
from benchmarks.gpu.measure import Place, times_ms
from benchmarks.report import Row, spread
from stretto.engines.transformer.kv_cache import KVCache
from stretto.engines.transformer.paged_decodes import Group, PagedDecodes, Tuning, attend_paged, tuning

TABLE = "attention of one layer, ms"
CUTS = "kernels cut otherwise, ms"
_BLOCK_TOKENS = 32
_OWN_BLOCKS = 2

TOGETHER = "attended together"
ONE_COPY = "each by itself, one copy"
COPIES = "each by itself, a copy each"
TORCH = "torch, a contiguous copy each"


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """Sizes that are measured; each head has its own keys and values, as in Llama-7B."""

    heads: int
    dim: int
    batches: Sequence[int]
    prefixes: Sequence[int]
    repeats: int
    dtype: torch.dtype = torch.bfloat16


# 6,016 is Parrot's 6,000 tokens, rounded up to whole blocks.
SIZES = AttentionSizes(32, 128, (8, 16, 32, 64), (1024, 2048, 4096, 6016, 8192), 20)


def measure_attention(place: Place, sizes: AttentionSizes) -> Iterator[Row]:
    """Measure each batch with each shared prefix; each sequence has 64 tokens of its own."""
    per_prefix = max(sizes.prefixes) // _BLOCK_TOKENS
    kv = _filled(place, sizes, max(sizes.batches) * (per_prefix + _OWN_BLOCKS))
    for batch in sizes.batches:
        for prefix in sizes.prefixes:
            if not place.has_time(5):
                return
            place.say(f"attention of {batch} behind {prefix}")
            works = _works(kv, sizes, batch, prefix)
            found = {name: times_ms(work, place.device, sizes.repeats) for name, work in works.items()}
            together_ms = statistics.median(found[TOGETHER])
            for name, times in found.items():
                values = {"batch": batch, "prefix_tokens": prefix, **spread(times, "ms")}
                values["times_together"] = round(statistics.median(times) / together_ms, 3)
                yield Row(TABLE, f"{batch} behind {prefix}, {name}", values)


def measure_cuts(place: Place, sizes: AttentionSizes, batch: int, prefix: int) -> Iterator[Row]:
    """Measure the kernels with other tiles, warps and stages than those in use."""
    kv = _filled(place, sizes, prefix // _BLOCK_TOKENS + batch * _OWN_BLOCKS)
    planes = kv.planes(0)
    parts, q_BHD = _parts(kv, sizes, batch, prefix)
    used = tuning(place.device, sizes.dtype)
    for cut in dict.fromkeys((used, *_others(used))):
        if not place.has_time(15):
            return
        place.say(f"{cut}")
        for name in (TOGETHER, ONE_COPY):
            work = partial(attend_paged, q_BHD, *planes, parts[name], None, cut)
            try:
                times = times_ms(work, place.device, sizes.repeats)
            except Exception as error:  # this variant needs more than the device has; go on with the others
                yield Row(
                    CUTS, f"{_cut_name(cut)}, {name}", {}, note=f"{type(error).__name__}: {error}"[:300]
                )
                continue
            values = {"batch": batch, "prefix_tokens": prefix, "in_use": cut == used, **spread(times, "ms")}
            yield Row(CUTS, f"{_cut_name(cut)}, {name}", values)


def _others(used: Tuning) -> Iterator[Tuning]:
    for keys, num_warps, num_stages in ((64, 4, 2), (64, 4, 5), (32, 4, 3), (128, 8, 3), (128, 4, 3)):
        yield replace(used, keys=keys, num_warps=num_warps, num_stages=num_stages)
    yield replace(used, num_own=used.num_own // 2, num_shared=2 * used.num_shared)
    yield replace(used, num_own=2 * used.num_own, num_shared=used.num_shared // 2)
    yield replace(used, num_shared=4 * used.num_shared)


def _cut_name(cut: Tuning) -> str:
    return (
        f"{cut.keys} keys, {cut.num_warps} warps, {cut.num_stages} stages, "
        f"{cut.num_own} and {cut.num_shared} programs"
    )


def _filled(place: Place, sizes: AttentionSizes, num_blocks: int) -> KVCache:
    config = one_layer(sizes.heads, sizes.heads, sizes.dim)
    kv = KVCache(config, num_blocks, _BLOCK_TOKENS, sizes.dtype, place.device)
    for plane in kv.planes(0):
        plane.normal_()
    return kv


def _parts(
    kv: KVCache, sizes: AttentionSizes, batch: int, prefix: int
) -> tuple[dict[str, PagedDecodes], Tensor]:
    """Parts by variant, and queries. The blocks are at random places, as after some use."""
    num_shared = prefix // _BLOCK_TOKENS
    free = random.Random(0).sample(range(_num_blocks(kv)), _num_blocks(kv))
    shared = free[:num_shared]
    own = iter(free[num_shared:])
    forked = [shared + [next(own) for _ in range(_OWN_BLOCKS)] for _ in range(batch)]
    per_sequence = num_shared + _OWN_BLOCKS
    lengths = [per_sequence * _BLOCK_TOKENS] * batch
    groups = {TOGETHER: Group(forked, lengths, num_shared), ONE_COPY: Group(forked, lengths, 0)}
    if batch * per_sequence <= _num_blocks(kv):
        copied = [free[i * per_sequence : (i + 1) * per_sequence] for i in range(batch)]
        groups[COPIES] = Group(copied, lengths, 0)
    parts = {name: PagedDecodes.of(0, [group], sizes.heads, kv) for name, group in groups.items()}
    return parts, torch.randn(batch, sizes.heads, sizes.dim, device=kv.device).to(kv.dtype)


def _works(kv: KVCache, sizes: AttentionSizes, batch: int, prefix: int) -> dict[str, Callable[[], Tensor]]:
    parts, q_BHD = _parts(kv, sizes, batch, prefix)

    def attend(part: PagedDecodes) -> Callable[[], Tensor]:
        return lambda: part.attend(q_BHD, kv, 0, None)

    num_tokens = prefix + _OWN_BLOCKS * _BLOCK_TOKENS
    # The values do not matter, only their number.
    k_BHLD, v_BHLD = (
        plane.flatten(1, 2)[:, : batch * num_tokens].view(sizes.heads, batch, num_tokens, -1).transpose(0, 1)
        for plane in kv.planes(0)
    )
    works = {name: attend(part) for name, part in parts.items()}
    works[TORCH] = lambda: F.scaled_dot_product_attention(q_BHD.unsqueeze(2), k_BHLD, v_BHLD)
    return works


def _num_blocks(kv: KVCache) -> int:
    return kv.planes(0)[0].shape[1]
