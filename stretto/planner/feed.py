"""Which answers of one node become part of which prompts of another.

A call takes the last answer of a chain, and all answers of any other input: those to the calls of the same
request. Of two nodes that are called for each chunk, it takes the answer to the same chunk, unless the other
is a chain.

Source: the edges of SamuLLM §3. Differs: a request has all answers of a node, so parts of answers are nodes
that only some requests are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.costs.step_arrays import Floats, Ints
from stretto.planner.application import ModelNode


def is_by_chunk(source: ModelNode, taker: ModelNode) -> bool:
    """Return whether each call of `taker` needs one answer of `source` only, the one to the same chunk."""
    return source.map and taker.is_by_chunk


def taken(source: ModelNode, taker: ModelNode, number: int, num_answers: int) -> Sequence[int]:
    """Return the numbers of the answers of `source`, of which a request has some, that the call `number` of
    `taker` needs.
    """
    if is_by_chunk(source, taker):
        return range(number, min(number + 1, num_answers))
    return range(max(0, num_answers - 1) if source.chain else 0, num_answers)


@dataclass(frozen=True, slots=True)
class Feed:
    """The answers of one node that the prompts of another take.

    Attributes:
        givers: calls of the first node whose answers are taken.
        groups: group of each of these.
        taken: group that each call of the other node takes; -1 for none.
    """

    givers: Ints
    groups: Ints
    taken: Ints

    def totals(self, values: Ints) -> Ints:
        """Return the sum of the values of all calls that give to each call of the other node."""
        sums = np.zeros(self._num_groups + 1, np.int64)  # the last one is that of no group
        np.add.at(sums, self.groups, values[self.givers])
        found: Ints = sums[self.taken]
        return found

    def latest(self, seconds: Floats, least_s: float) -> Floats:
        """Return the latest of the times of all calls that give to each call of the other node, and
        `least_s`.
        """
        most_s = np.full(self._num_groups + 1, least_s)
        np.maximum.at(most_s, self.groups, seconds[self.givers])
        found: Floats = most_s[self.taken]
        return found

    @property
    def _num_groups(self) -> int:
        return int(self.groups.max(initial=-1)) + 1


def feed(source: ModelNode, given: tuple[Ints, Ints], taker: ModelNode, taking: tuple[Ints, Ints]) -> Feed:
    """Return which answers of `source` the calls of `taker` need.

    Args:
        given, taking: number of the request of each call of both nodes in rising order, and number of the
            call among those of its request.
    """
    requests, numbers = given
    givers = np.flatnonzero(np.diff(requests, append=-1)) if source.chain else np.arange(len(requests))
    if is_by_chunk(source, taker):
        most = 1 + max(int(of_node[1].max(initial=0)) for of_node in (given, taking))
        keys, wanted = requests * most + numbers, taking[0] * most + taking[1]
    else:
        keys, wanted = requests, taking[0]
    known, groups = np.unique(keys[givers], return_inverse=True)
    places = np.searchsorted(known, wanted)
    has_any = np.append(known, -1)[places] == wanted
    return Feed(givers, groups, np.where(has_any, places, -1))
