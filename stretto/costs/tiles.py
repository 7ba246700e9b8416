"""How long a device takes to multiply tokens with a model's weights.

A device computes a product in tiles, as many at a time as it has cores, so that time grows in stairs. Small
tiles fill more cores and compute more slowly. Splitting the inner dimension makes more tiles of one size.
An engine's library chooses the fastest; so does this formula.

Experts are computed together, in tiles of 64 tokens of one expert.

The tiles and their shares of the peak are rounded figures of current GPUs, not fitted to anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from stretto.costs.shape import Hardware, LLMModel

_TILES = ((128, 256, 1.0), (128, 128, 0.95), (64, 128, 0.85), (64, 64, 0.7))
"""Rows, columns and share of the peak speed."""
_EXPERT_TILE = (64, 128, 0.6)
_SPLITS = (1, 2, 4)
_STARTUP = 300
"""Length of the inner dimension that takes as long as beginning and ending a tile."""


@dataclass(frozen=True, slots=True)
class Multiplication:
    """The multiplications of one step with all weights of a model's layers, on one of several devices.

    Attributes:
        tokens_alike: whether all tokens choose the same experts.
    """

    model: LLMModel
    hardware: Hardware
    tensor_parallel: int
    tokens_alike: bool

    def seconds(self, num_tokens: int) -> float:
        """Return the seconds at the device's peak, without the reading of weights; 0 if its number of cores
        is not known.
        """
        return _seconds(self, num_tokens) if self.hardware.num_cores else 0.0


@lru_cache(maxsize=2**16)
def _seconds(step: Multiplication, num_tokens: int) -> float:
    model, devices = step.model, step.tensor_parallel
    width = model.num_heads * model.head_size // devices
    kv_width = max(1, model.num_kv_heads // devices) * model.head_size
    inner = model.intermediate_size // devices
    hidden, cores = model.hidden_size, step.hardware.num_cores
    work = _product(num_tokens, width + 2 * kv_width, hidden, cores)
    work += _product(num_tokens, hidden, width, cores)
    into = inner * (2 if model.gated else 1)
    if model.num_experts == 1:
        work += _product(num_tokens, into, hidden, cores) + _product(num_tokens, hidden, inner, cores)
    else:
        experts = model.used_experts(num_tokens, alike=step.tokens_alike)
        rows, columns, share = _EXPERT_TILE
        tiles = -(-num_tokens * model.active_experts // (experts * rows)) * experts
        for width_out, length in ((into, hidden), (hidden, inner)):
            waves = -(-tiles * -(-width_out // columns) // cores)
            work += waves * cores * rows * columns * (length + _STARTUP) / share
    return 2 * model.num_layers * work / step.hardware.flops


def _product(rows: int, columns: int, length: int, cores: int) -> float:
    """Return the multiplications that the fastest way takes the time of; idle cores and slow tiles count."""
    return min(
        -(-(-(-rows // tile_rows) * -(-columns // tile_columns) * parts) // cores)
        * (cores * tile_rows * tile_columns * (length / parts + _STARTUP) / share)
        for tile_rows, tile_columns, share in _TILES
        for parts in _SPLITS
    )
