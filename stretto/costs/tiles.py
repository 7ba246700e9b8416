"""How long a device takes to multiply tokens with a model's weights.

A device computes a product in tiles, as many at a time as it has cores, so that time grows in stairs. Small
tiles fill more cores and compute more slowly. Splitting the inner dimension makes more tiles of one size.
An engine's library chooses the fastest; so does this formula.

Experts are computed together, in tiles of 64 tokens of one expert.

The tiles and their shares of the peak are rounded figures of current GPUs, not fitted to anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.costs.shape import Hardware, LLMModel

_TILES = ((128, 256, 1.0), (128, 128, 0.95), (64, 128, 0.85), (64, 64, 0.7))
"""Rows, columns and share of the peak speed."""
_LEAST_ROWS = 64
"""Divides the rows of all tiles, so that only every 64th token can take more time."""
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

    def all_seconds(self, num_tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what `seconds` does, for many numbers of tokens."""
        if not self.hardware.num_cores:
            return np.zeros(len(num_tokens))
        tiles = -(-num_tokens // _LEAST_ROWS)
        products = _products_by_tiles(self, int(tiles.max(initial=0)).bit_length())[tiles]
        found: NDArray[np.float64] = _seconds_of(self, num_tokens, products)
        return found


@lru_cache(maxsize=2**16)
def _seconds(step: Multiplication, num_tokens: int) -> float:
    return float(_seconds_of(step, num_tokens, _products_of_tiles(step, -(-num_tokens // _LEAST_ROWS))))


@lru_cache(maxsize=2**14)
def _products_of_tiles(step: Multiplication, num_tiles: int) -> Any:
    return _products(step, num_tiles * _LEAST_ROWS, min)


@lru_cache(maxsize=256)
def _products_by_tiles(step: Multiplication, num_bits: int) -> NDArray[np.float64]:
    """Return what `_products` does, for each number of the smallest tiles that has at most so many bits."""
    found: NDArray[np.float64] = _products(step, np.arange(2**num_bits) * _LEAST_ROWS, _least_of_each)
    return found


def _least_of_each(rows: Iterable[Any]) -> Any:
    return reduce(np.minimum, rows)


def _products(step: Multiplication, num_tokens: Any, least: Callable[[Iterable[Any]], Any]) -> Any:
    """Return the multiplications of a layer for a number of tokens, or for each of an array, without those of
    experts.

    Args:
        least: returns the least of some numbers, or the least of each place of some arrays.
    """
    model, devices = step.model, step.tensor_parallel
    width = model.num_heads * model.head_size // devices
    kv_width = max(1, model.num_kv_heads // devices) * model.head_size
    hidden, cores = model.hidden_size, step.hardware.num_cores
    work = _product(num_tokens, width + 2 * kv_width, hidden, cores, least)
    work = work + _product(num_tokens, hidden, width, cores, least)
    if model.num_experts == 1:
        inner, into = _feed_forward(step)
        work = work + _product(num_tokens, into, hidden, cores, least)
        work = work + _product(num_tokens, hidden, inner, cores, least)
    return work


def _seconds_of(step: Multiplication, num_tokens: Any, work: Any) -> Any:
    """Return the seconds for a number of tokens, or for each of an array; `work` is without experts."""
    model = step.model
    hidden, cores = model.hidden_size, step.hardware.num_cores
    if model.num_experts > 1:
        inner, into = _feed_forward(step)
        experts = model.used_experts(num_tokens, alike=step.tokens_alike)
        rows, columns, share = _EXPERT_TILE
        tiles = -(-num_tokens * model.active_experts // (experts * rows)) * experts
        for width_out, length in ((into, hidden), (hidden, inner)):
            waves = -(-tiles * -(-width_out // columns) // cores)
            work = work + waves * cores * rows * columns * (length + _STARTUP) / share
    return 2 * model.num_layers * work / step.hardware.flops


def _feed_forward(step: Multiplication) -> tuple[int, int]:
    """Return one device's part of the intermediate size, and of the outputs of the first product."""
    inner = step.model.intermediate_size // step.tensor_parallel
    return inner, inner * (2 if step.model.gated else 1)


def _product(rows: Any, columns: int, length: int, cores: int, least: Callable[[Iterable[Any]], Any]) -> Any:
    """Return the multiplications that the fastest way takes the time of; idle cores and slow tiles count."""
    return least(
        -(-(-(-rows // tile_rows) * -(-columns // tile_columns) * parts) // cores)
        * (cores * tile_rows * tile_columns * (length / parts + _STARTUP) / share)
        for tile_rows, tile_columns, share in _TILES
        for parts in _SPLITS
    )
