"""Distributions of the work that programs still ask for, learned from earlier programs of the same kind.

A graph says what waits. It does not say how many turns an agent will take, how wide a map will be, or how
many steps an expansion adds. What earlier programs did says it roughly: of each arrival of work one *sample*
is kept, how much work the program had asked for by then and how much it asked for later. Samples are counted
by *source* (the kind of program and the step) and by the work asked for so far, in bins that double.

The index of a program is the least work that is spent, per program that ends, by serving programs like it
until they have had so much more: the inverse of the Gittins index. Where all need the same, it is that. Where
some need little and some very much, it is near the little, because serving the others can be stopped.

All numbers are seconds of a full engine. Counts are halved when there are many, so that they follow a load
that changes, and the source that was seen longest ago is forgotten when there are too many.

Source: Gittins 1979; for queues, Scully, Harchol-Balter and Scheller-Wolf, "SOAP" (2018). Differs: the work
that waits is known, and the distribution is of what comes after it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, TypeAlias

from stretto.model.errors import ConfigError

Source: TypeAlias = tuple[str, ...]
"""What resembles each other: the kind of program, then what tells steps apart. Samples count for the kind
too, which stands in for steps that are not known yet.
"""

_LEAST_S = 1e-5
"""Seconds below which work counts as none."""
_BINS = 64
"""Number of bins of later work. Each is wider than the one before by the square root of 2."""
_ENOUGH = 4.0
"""Samples from which a distribution is used."""
_MOST = 256.0
"""Samples of a distribution at which all counts are halved."""
_MAX_SOURCES = 1024
_LEAST_WEIGHT = 1 / 32
"""Least weight of a new observation in a mean."""


def _bin_of(seconds: float) -> int:
    if seconds < _LEAST_S:
        return 0
    return min(1 + int(2 * math.log2(seconds / _LEAST_S)), _BINS - 1)


def _upper_s(place: int) -> float:
    return _LEAST_S * 2.0 ** (place / 2) if place else 0.0


@dataclass(slots=True)
class WorkLeft:
    """Work that programs asked for later: weight and sum of samples by bin."""

    weights: dict[int, float] = field(default_factory=dict)
    sums_s: dict[int, float] = field(default_factory=dict)
    total: float = 0.0
    lines: list[tuple[float, float]] | None = None

    def count(self, left_s: float) -> None:
        place = _bin_of(left_s)
        self.weights[place] = self.weights.get(place, 0.0) + 1.0
        self.sums_s[place] = self.sums_s.get(place, 0.0) + (left_s if place else 0.0)
        self.total += 1.0
        self.lines = None
        if self.total >= _MOST:
            self._halve()

    @property
    def mean_s(self) -> float:
        return math.fsum(self.sums_s.values()) / self.total

    def index_s(self, waiting_s: float) -> float:
        """Return the least work per program that ends, with `waiting_s` of it waiting already."""
        if self.lines is None:
            self.lines = self._lines()
        if len(self.lines) == 1:
            return waiting_s + self.lines[0][0]
        return min([(waiting_s + spent_s) / ended for spent_s, ended in self.lines])

    def _lines(self) -> list[tuple[float, float]]:
        """Return pairs of the work spent beyond what waits, and the share of programs that have ended by
        then, for stops at the end of each bin.
        """
        lines, ended, spent_s = [], 0.0, 0.0
        for place in sorted(self.weights):
            ended += self.weights[place] / self.total
            spent_s += self.sums_s[place] / self.total
            lines.append((spent_s + _upper_s(place) * max(0.0, 1.0 - ended), min(ended, 1.0)))
        return lines

    def _halve(self) -> None:
        self.weights = {place: weight / 2 for place, weight in self.weights.items() if weight > 0.25}
        self.sums_s = {place: self.sums_s[place] / 2 for place in self.weights}
        self.total = sum(self.weights.values())


@dataclass(slots=True)
class _Fresh:
    """Tokens of prompts that are not cached: as a number, and as a share of the prompt. Of the two, the one
    that has predicted better is used: histories that grow have a new end, and documents are new as a whole.
    """

    tokens: float = 0.0
    share: float = 1.0
    error_of_tokens: float = 0.0
    error_of_share: float = 0.0
    num: int = 0

    def observe(self, num_known: float, num_fresh: float) -> None:
        self.num += 1
        weight = max(_LEAST_WEIGHT, 1 / self.num)
        self.error_of_tokens += weight * (abs(num_fresh - self.tokens) - self.error_of_tokens)
        self.error_of_share += weight * (abs(num_fresh - self.share * num_known) - self.error_of_share)
        self.tokens += weight * (num_fresh - self.tokens)
        self.share += weight * (num_fresh / num_known - self.share)

    def expected(self, num_known: float) -> float:
        if self.num and self.error_of_tokens < self.error_of_share:
            return self.tokens
        return self.share * num_known


@dataclass(slots=True)
class _OfSource:
    """What was learned of one source: later work by bins of the work so far, how fresh prompts are, and how
    long programs went on.
    """

    cells: dict[int, WorkLeft] = field(default_factory=dict)
    fresh: _Fresh = field(default_factory=lambda: _Fresh())
    way_s: float = 0.0
    num_ways: int = 0

    def find(self, done_s: float) -> WorkLeft | None:
        """Return the distribution that is nearest in work so far, of those with enough samples."""
        place = _bin_of(done_s) // 2
        cell = self.cells.get(place)
        if cell is not None and cell.total >= _ENOUGH:
            return cell
        known = [one for one, cell in self.cells.items() if cell.total >= _ENOUGH]
        return self.cells[min(known, key=lambda one: (abs(one - place), one))] if known else None


@dataclass(frozen=True, slots=True)
class LearnedRow:
    """What was learned of one source, for people: at this much work so far, programs asked for so much more.

    Attributes:
        done_s: least seconds of work so far of the row.
        left_s: mean seconds of work that was asked for later.
        num: number of samples, of which old ones count less.
    """

    source: Source
    done_s: float
    left_s: float
    num: float


class LearnedWork:
    """Distributions of the work that programs ask for later, by source and by the work asked for so far."""

    def __init__(self) -> None:
        self._sources = OrderedDict[Source, _OfSource]()

    def observe(self, source: Source, done_s: float, left_s: float, way_s: float | None = None) -> None:
        """Count a program that asked for `left_s` seconds of work after it had asked for `done_s`.

        `way_s` is the time from the start of this work to the end of the program, without the time that later
        work of it waited; None if it was not measured.
        """
        place, left_s = _bin_of(done_s) // 2, max(0.0, left_s)
        found = self._source(source)
        if way_s is not None:
            found.num_ways += 1
            found.way_s += max(_LEAST_WEIGHT, 1 / found.num_ways) * (way_s - found.way_s)
        for one in (found, self._source(source[:1])):
            cell = one.cells.get(place)
            if cell is None:
                cell = one.cells[place] = WorkLeft()
            cell.count(left_s)

    def observe_fresh(self, source: Source, num_known: float, num_fresh: float) -> None:
        """Count a prompt of `num_known` tokens of which `num_fresh` had to be computed."""
        self._source(source).fresh.observe(num_known, num_fresh)

    def fresh(self, source: Source, num_known: float) -> float:
        """Return how many of the `num_known` tokens of a prompt are expected not to be cached; all if nothing
        is known.
        """
        found = self._sources.get(source)
        return num_known if found is None else found.fresh.expected(num_known)

    def way_s(self, source: Source) -> float | None:
        """Return the mean time from the start of work of this source to the end of its program; None if no
        such program has ended.
        """
        found = self._sources.get(source)
        return None if found is None or not found.num_ways else found.way_s

    def find(self, source: Source, done_s: float) -> WorkLeft | None:
        """Return the distribution for a program that has asked for `done_s` seconds of work; None if nothing
        is known of its source, nor of its kind.
        """
        for one in (source, source[:1]):
            found = self._sources.get(one)
            cell = None if found is None else found.find(done_s)
            if cell is not None:
                return cell
        return None

    def index_s(self, source: Source, done_s: float, waiting_s: float) -> float | None:
        """Return the work per program that ends, for a program that has asked for `done_s` seconds of work
        and of which `waiting_s` wait; None if nothing is known.
        """
        cell = self.find(source, done_s)
        return None if cell is None else cell.index_s(waiting_s)

    def rows(self) -> Iterator[LearnedRow]:
        """Yield what was learned, by source, for people."""
        for source, found in sorted(self._sources.items()):
            for place, cell in sorted(found.cells.items()):
                yield LearnedRow(source, _upper_s(max(0, 2 * place - 1)), cell.mean_s, cell.total)

    def state(self) -> list[dict[str, Any]]:
        """Return all that was learned, as data that JSON can hold."""
        return [
            {
                "source": list(source),
                "fresh": list(astuple(found.fresh)),
                "way": [found.way_s, found.num_ways],
                "cells": [
                    [place, [[one, cell.weights[one], cell.sums_s[one]] for one in sorted(cell.weights)]]
                    for place, cell in sorted(found.cells.items())
                ],
            }
            for source, found in self._sources.items()
        ]

    @classmethod
    def of_state(cls, state: Sequence[Mapping[str, Any]]) -> LearnedWork:
        """Return what `state` gave. Raises ConfigError where it is not of that form."""
        learned = cls()
        try:
            for one in state:
                found = learned._source(tuple(map(str, one["source"])))
                tokens, share, of_tokens, of_share, num = one["fresh"]
                found.fresh = _Fresh(float(tokens), float(share), float(of_tokens), float(of_share), int(num))
                found.way_s, found.num_ways = float(one["way"][0]), int(one["way"][1])
                for place, bins in one["cells"]:
                    weights = {int(at): float(weight) for at, weight, _ in bins}
                    sums_s = {int(at): float(sum_s) for at, _, sum_s in bins}
                    found.cells[int(place)] = WorkLeft(weights, sums_s, sum(weights.values()))
            learned.check_invariants()
        except (AssertionError, KeyError, IndexError, TypeError, ValueError) as error:
            raise ConfigError(f"learned work is not of the form that `state` gives: {error!r}") from error
        return learned

    def check_invariants(self) -> None:
        """Check that numbers of sources and bins keep within their limits, and that sums agree."""
        assert len(self._sources) <= _MAX_SOURCES
        for found in self._sources.values():
            assert all(0 <= value < math.inf for value in astuple(found.fresh))
            assert found.way_s >= 0
            assert found.num_ways >= 0
            assert all(0 <= place <= _BINS // 2 for place in found.cells)
            for cell in found.cells.values():
                assert cell.weights.keys() == cell.sums_s.keys()
                assert all(0 <= place < _BINS for place in cell.weights)
                assert all(weight > 0 for weight in cell.weights.values())
                assert all(0 <= sum_s < math.inf for sum_s in cell.sums_s.values())
                assert 0 < cell.total < _MOST
                assert math.isclose(cell.total, sum(cell.weights.values()), abs_tol=1e-6)

    def _source(self, source: Source) -> _OfSource:
        sources = self._sources
        found = sources.get(source)
        if found is None:
            found = sources[source] = _OfSource()
            if len(sources) > _MAX_SOURCES:
                del sources[next(iter(sources))]
        else:
            sources.move_to_end(source)  # the one that was seen longest ago is first
        return found
