"""Cuts a batch into requests that a server takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def pieces(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """Cut items into consecutive pieces of at most `most`, whose sizes differ by 1 at most."""
    num_pieces = -(-len(items) // most)
    ends = [len(items) * number // num_pieces for number in range(num_pieces + 1)] if items else [0]
    return [items[lo:hi] for lo, hi in pairwise(ends)]
