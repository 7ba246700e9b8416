"""Distributions of the work that programs still ask for, learned from earlier programs of the same kind.

A graph says what waits. It does not say how many turns an agent will take, how wide a map will be, or how
many steps an expansion adds. What earlier programs did says it roughly: of each arrival of work one *sample*
is kept, how much work the query had asked for by then and how much it asked for later. Samples are counted
by *source* (the kind of program and the step) and by the work asked for so far, in bins that double. How
programs of several queries go on after a query is counted by itself (`costs/learned_queries.py`): a query
ends long before it is known that no other one comes.

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
from types import MappingProxyType
from typing import Any, TypeAlias

from stretto.costs.learned_queries import LearnedQueries
from stretto.costs.work_left import (
    BINS,
    SURE_END,
    Stops,
    WorkLeft,
    bin_of,
    checked_place,
    least_per_end,
    positive,
    upper_s,
)
from stretto.model.errors import ConfigError

Source: TypeAlias = tuple[str, ...]
"""What resembles each other: the kind of program, then what tells steps apart. Samples count for the kind
too, which stands in for steps that are not known yet.
"""

NOTHING_LEARNED: Mapping[str, LearnedWork] = MappingProxyType({})
"""What engines know of programs at first, by name of the engine."""
_ENOUGH = 4.0
"""Samples from which a distribution is used."""
_MAX_SOURCES = 1024
_LEAST_WEIGHT = 1 / 32
"""Least weight of a new observation in a mean."""


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
    """What was learned of one source: later work by bins of the work so far, how fresh prompts are, how long
    queries went on; of kinds also how programs of several queries went on.
    """

    cells: dict[int, WorkLeft] = field(default_factory=dict)
    fresh: _Fresh = field(default_factory=lambda: _Fresh())
    way_s: float = 0.0
    num_ways: int = 0
    queries: LearnedQueries = field(default_factory=LearnedQueries)

    def find(self, done_s: float) -> WorkLeft | None:
        """Return the distribution that is nearest in work so far, of those with enough samples."""
        place = bin_of(done_s) // 2
        cell = self.cells.get(place)
        if cell is not None and cell.total >= _ENOUGH:
            return cell
        known = [one for one, cell in self.cells.items() if cell.total >= _ENOUGH]
        return self.cells[min(known, key=lambda one: (abs(one - place), one))] if known else None


@dataclass(frozen=True, slots=True)
class LearnedRow:
    """What was learned of one kind of program, for people: how much more was asked for by the queries that
    had asked for this much work, or by the programs that had made so many queries.

    Attributes:
        done_s: least seconds of work so far of the row, within one query.
        num_queries: least number of queries of the row, for programs of several; else 0.
        num: number of samples, of which old ones count less.
        median_s: median seconds of the work that was asked for later.
        p95_s: 95th percentile of those seconds.
        index_s: index of such a program, with as much work waiting as is usual then.
    """

    kind: str
    done_s: float
    num_queries: int
    num: float
    median_s: float
    p95_s: float
    index_s: float


class LearnedWork:
    """Distributions of the work that programs ask for later, by source and by the work asked for so far."""

    def __init__(self) -> None:
        self._sources = OrderedDict[Source, _OfSource]()

    def observe(
        self,
        source: Source,
        done_s: float,
        left_s: float,
        way_s: float | None = None,
        *,
        asked_s: float = 0.0,
    ) -> None:
        """Count a query that asked for `left_s` seconds of work after it had asked for `done_s`.

        Args:
            way_s: time from the start of this work to the end of the query, without the time that later
                work of it waited; None if it was not measured.
            asked_s: the part of `done_s` that came at once, last.
        """
        place, later = bin_of(done_s) // 2, bin_of(left_s)
        found = self._source(source)
        if way_s is not None:
            found.num_ways += 1
            found.way_s += max(_LEAST_WEIGHT, 1 / found.num_ways) * (way_s - found.way_s)
        for one in (found, self._source(source[:1])):
            cell = one.cells.get(place)
            if cell is None:
                cell = one.cells[place] = WorkLeft()
            cell.count(later, left_s, asked_s)

    def queries_of(self, kind: str) -> LearnedQueries:
        """Return how programs of several queries of a kind go on, to count another one."""
        return self._source((kind,)).queries

    def index_s(self, left: WorkLeft | None, waiting_s: float, kind: str, num_queries: int) -> float:
        """Return the index of a program of which `waiting_s` seconds wait.

        Args:
            left: distribution of what the query asks for later; None if nothing is known.
            num_queries: number of its queries so far, if it may be several; else 0.
        """
        stops = self._stops(kind, num_queries)
        return least_per_end(waiting_s, stops) if left is None else left.index_s(waiting_s, stops)

    def _stops(self, kind: str, num_queries: int) -> Stops:
        if not num_queries:
            return SURE_END
        found = self._sources.get((kind,))
        return (_NOTHING if found is None else found.queries).stops(num_queries)

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
        """Return the mean time from the start of work of this source to the end of its query; None if no
        such query has ended.
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

    def rows(self) -> Iterator[LearnedRow]:
        """Yield what was learned, by kind of program and work so far, for people."""
        for source, found in sorted(self._sources.items()):
            if len(source) > 1:
                continue
            (kind,) = source
            for place, cell in sorted(found.cells.items()):
                done_s = upper_s(max(0, 2 * place - 1))
                median_s, p95_s = cell.quantile_s(0.5), cell.quantile_s(0.95)
                index_s = cell.index_s(cell.asked_s)
                yield LearnedRow(kind, done_s, 0, cell.total, median_s, p95_s, index_s)
            for number, total, median_s, p95_s in found.queries.rows():
                index_s = self.index_s(None, found.queries.mean_work_s(number), kind, number)
                yield LearnedRow(kind, 0.0, number, total, median_s, p95_s, index_s)

    def state(self) -> list[dict[str, Any]]:
        """Return all that was learned, as data that JSON can hold."""
        return [
            {
                "source": list(source),
                "fresh": list(astuple(found.fresh)),
                "way": [found.way_s, found.num_ways],
                "queries": found.queries.state(),
                "cells": [[place, cell.state()] for place, cell in found.cells.items()],
            }
            for source, found in self._sources.items()
        ]

    @classmethod
    def of_state(cls, state: Sequence[Mapping[str, Any]]) -> LearnedWork:
        """Return what `state` gave. Raises ConfigError where it is not of that form."""
        learned = cls()
        try:
            if len(state) > _MAX_SOURCES:
                raise ValueError(f"{len(state)} sources are more than {_MAX_SOURCES}")
            for one in state:
                learned._sources[tuple(map(str, one["source"]))] = _source_of(one)
        except (AttributeError, KeyError, IndexError, OverflowError, TypeError, ValueError) as error:
            raise ConfigError(f"learned work is not of the form that `state` gives: {error!r}") from error
        return learned

    def check_invariants(self) -> None:
        """Check that numbers of sources and bins keep within their limits, and that sums agree."""
        assert len(self._sources) <= _MAX_SOURCES
        for found in self._sources.values():
            assert all(0 <= value < math.inf for value in astuple(found.fresh))
            assert found.way_s >= 0
            assert found.num_ways >= 0
            assert all(0 <= place <= BINS // 2 for place in found.cells)
            found.queries.check_invariants()
            for cell in found.cells.values():
                cell.check_invariants()

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


def _source_of(state: Mapping[str, Any]) -> _OfSource:
    """Return what is known of one source, from its part of a state. Raises ValueError, and what Python raises
    for values of other types.
    """
    *numbers, num = state["fresh"]
    tokens, share, of_tokens, of_share = map(positive, numbers)
    way_s, num_ways = state["way"]
    cells = {checked_place(place, BINS // 2 + 1): WorkLeft.of_state(cell) for place, cell in state["cells"]}
    fresh = _Fresh(tokens, share, of_tokens, of_share, int(positive(num)))
    if state.get("is_open_ended"):  # older: what came later was counted over all queries of a program
        cells.clear()
    queries = LearnedQueries.of_state(state.get("queries", ()))
    return _OfSource(cells, fresh, positive(way_s), int(positive(num_ways)), queries)


_NOTHING = LearnedQueries()
