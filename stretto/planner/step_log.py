"""The steps of one simulated LLM instance as arrays, so that all of them are priced at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from stretto.costs.step_arrays import Ints, ShapeArrays

_WIDTHS = {"prefills": 5, "single": 2, "ended": 2}

Column: TypeAlias = list[int]


@dataclass(slots=True)
class StepLog:
    """A log of a fast simulation, interval by interval; an interval is one step, or several equal ones.

    A *stay* is the time in which a request decodes without interruption. In decode step d, a request on a
    stay of offset o has a context of o + d tokens.

    Attributes:
        first: number of the first decode step of each interval.
        repeats: steps of each interval.
        num_decodes: decodes of each interval.
        prefills: interval, prompts, tokens, tokens of the longest, and pairs of tokens, of each step with
            prefills; these five follow each other.
        single: interval and context of each prefill of one generated token, which costs as much as a decode.
        requests, begins, ends, offsets: each stay's request, first interval, interval after the last, and
            offset; -1 for the last interval of a stay that goes on.
        ended: each request that has ended, and the interval at whose end it did.
    """

    first: Column
    repeats: Column
    num_decodes: Column
    prefills: Column
    single: Column
    requests: Column
    begins: Column
    ends: Column
    offsets: Column
    ended: Column

    def columns(self) -> StepColumns:
        """Return the log as arrays."""
        columns = {name: np.array(getattr(self, name), np.int64) for name in self.__slots__}
        for name, width in _WIDTHS.items():
            columns[name] = columns[name].reshape(-1, width)
        return StepColumns(**columns)


@dataclass(frozen=True, slots=True)
class StepColumns:
    """A finished `StepLog` as arrays; its tables have a row for each entry."""

    first: Ints
    repeats: Ints
    num_decodes: Ints
    prefills: Ints
    single: Ints
    requests: Ints
    begins: Ints
    ends: Ints
    offsets: Ints
    ended: Ints

    def shapes(self) -> ShapeArrays:
        """Return the sizes of the first step of each interval."""
        num, first, decodes = len(self.repeats), self.first, self.num_decodes.copy()
        begins, offsets = self.begins, self.offsets
        ends = np.where(self.ends < 0, num, self.ends)
        change = np.bincount(begins, offsets, num + 1) - np.bincount(ends, offsets, num + 1)
        is_decode = decodes > 0
        context = np.where(is_decode, np.cumsum(change.astype(np.int64))[:num] + decodes * first, 0)
        longest = np.where(is_decode, _largest(begins, ends, offsets, num) + first, 0)
        prefills = np.zeros((4, num), np.int64)
        if len(self.prefills):
            prefills[:, self.prefills[:, 0]] = self.prefills[:, 1:].T
        for interval, tokens in self.single.tolist():
            decodes[interval] += 1
            context[interval] += tokens
            longest[interval] = max(longest[interval], tokens)
        return ShapeArrays(
            num_prefills=prefills[0],
            prefill_tokens=prefills[1],
            max_prefill_tokens=prefills[2],
            prefill_pairs=prefills[3],
            num_decodes=decodes,
            context_tokens=context,
            max_context_tokens=longest,
            repeats=self.repeats,
        )


def _largest(begins: Ints, ends: Ints, values: Ints, num: int) -> Ints:
    """Return, for each place below `num`, the largest value of the ranges [begin, end) that cover it.

    Each range is covered by two ranges of a power of two, and these are passed down level by level.
    """
    lowest = np.iinfo(np.int64).min // 2
    lengths = ends - begins
    some = lengths > 0
    begins, ends, values, lengths = begins[some], ends[some], values[some], lengths[some]
    levels = np.frexp(lengths.astype(np.float64))[1].astype(np.int64) - 1
    covered = np.full(num, lowest, np.int64)
    for level in range(int(levels.max(initial=0)), -1, -1):
        width = 1 << level
        covered[width:] = np.maximum(covered[width:], covered[:-width])  # from ranges twice as wide
        chosen = levels == level
        np.maximum.at(covered, begins[chosen], values[chosen])
        np.maximum.at(covered, ends[chosen] - width, values[chosen])
    return covered
