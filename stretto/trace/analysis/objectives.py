"""Deduction of what each request should be scheduled for, from what the application waits for.

What is wanted for throughput makes all requests behind it throughput-preferred. What is wanted for latency is
followed backwards, stage by stage; the stage of a request is its longest distance to a wanted one:

    A request that directly makes what is wanted is latency-sensitive.
    A request alone in its stage is latency-sensitive too.
    Several in a stage are a task group: the time of the last one counts, so they are batched for throughput.

Requests that have nothing to do with each other are never in one group. Of two criteria latency counts.

Source: Parrot §5.2. Differs: requests joined into one wanted value are a task group too; each request has its
slack, the seconds that it may be late without delaying anything that is wanted for latency.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stretto.model.tasks import Objective
from stretto.trace.analysis.requests import RequestGraph


@dataclass(frozen=True, slots=True)
class Preference:
    """The purpose that a request should be scheduled for.

    Attributes:
        criteria: strictest criteria of all that is wanted of it; None if nobody wants anything yet.
        group: number of its task group; None outside of any.
        stage: longest distance, in requests, to one that directly makes what is wanted for latency.
        slack_s: seconds that it may take longer than predicted without delaying what is wanted for latency;
            infinite if nothing is.
    """

    criteria: Objective | None = None
    group: int | None = None
    stage: int = 0
    slack_s: float = math.inf

    @property
    def batching(self) -> Objective | None:
        """Objective for which the instance that serves it is best filled."""
        return "throughput" if self.group is not None else self.criteria


def deduce_preferences(
    graph: RequestGraph,
    wanted: Mapping[str, Objective],
    seconds: Mapping[str, float] | None = None,
) -> dict[str, Preference]:
    """Return the preference of each request, by name.

    Args:
        wanted: criteria of the variables that the application waits for.
        seconds: predicted seconds of each request, by name; 1 where one is missing.
    """
    order = [request.name for request in graph.requests]
    before = graph.predecessors
    ends = {name: graph.sources(name) for name, criteria in wanted.items() if criteria == "latency"}
    direct = {found[0].name for found in ends.values() if len(found) == 1}
    last = {request.name for found in ends.values() for request in found}
    stages = _stages(order, before, last)
    joined = [[request.name for request in found] for found in ends.values()]
    groups = _groups([name for name in order if name in stages], before, joined, stages, direct)
    slack_s = _slack(order, before, stages, last, {} if seconds is None else seconds)
    others = {request.name for name in wanted for request in graph.sources(name)}
    behind = _stages(order, before, others)
    return {
        name: Preference("latency", groups.get(name), stages[name], slack_s[name])
        if name in stages
        else Preference("throughput" if name in behind else None)
        for name in order
    }


def _stages(order: list[str], before: Mapping[str, Iterable[str]], last: set[str]) -> dict[str, int]:
    """Return the longest distance to one of `last`, for these requests and all that they depend on."""
    stages: dict[str, int] = {}
    for name in reversed(order):
        if name in last:
            stages.setdefault(name, 0)
        if name in stages:
            for source in before[name]:
                stages[source] = max(stages.get(source, 0), stages[name] + 1)
    return stages


def _groups(
    names: list[str],
    before: Mapping[str, Iterable[str]],
    joined: list[list[str]],
    stages: Mapping[str, int],
    direct: set[str],
) -> dict[str, int]:
    """Return the number of the task group of each request that is in one. Groups are numbered in the order of
    the requests.
    """
    jobs = _connected(names, before, joined)
    members: dict[tuple[str, int], list[str]] = {}
    for name in names:
        if name not in direct:
            members.setdefault((jobs[name], stages[name]), []).append(name)
    several = [found for found in members.values() if len(found) > 1]
    return {name: number for number, found in enumerate(several) for name in found}


def _connected(
    names: list[str], before: Mapping[str, Iterable[str]], joined: list[list[str]]
) -> dict[str, str]:
    """Return for each request one that stands for all that it is connected with, by a variable or by being
    wanted as one value.
    """
    leader = {name: name for name in names}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for name in names:
        for source in before[name]:
            leader[find(source)] = find(name)
    for together in joined:
        for name in together[1:]:
            leader[find(name)] = find(together[0])
    return {name: find(name) for name in names}


def _slack(
    order: list[str],
    before: Mapping[str, Iterable[str]],
    stages: Mapping[str, int],
    last: set[str],
    seconds: Mapping[str, float],
) -> dict[str, float]:
    """Return the difference between the latest and the earliest end of each request that is needed for
    latency. What is wanted ends as early as it can.
    """
    earliest: dict[str, float] = {}
    for name in order:
        if name in stages:
            begin_s = max((earliest[source] for source in before[name]), default=0.0)
            earliest[name] = begin_s + seconds.get(name, 1.0)
    latest = {name: earliest[name] for name in last}
    for name in reversed(order):
        if name in stages:
            for source in before[name]:
                begin_s = latest[name] - seconds.get(name, 1.0)
                latest[source] = min(latest.get(source, math.inf), begin_s)
    return {name: latest[name] - earliest[name] for name in earliest}
