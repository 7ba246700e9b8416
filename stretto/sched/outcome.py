"""What follows from one event of a query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.core import Failure
from stretto.errors import StrettoError
from stretto.graph.compile import Node
from stretto.sched.demand import Demand
from stretto.sched.request import Request


@dataclass(slots=True)
class Outcome:
    """What follows from one event of a query (one run of an app): work for engines, news for the caller,
    perhaps its end.

    Attributes:
        work: requests for engines.
        withdrawn: nodes (steps) whose work is no longer wanted, whether it waits or runs.
        text: (variable or output, more text of it) pairs for the caller.
        settled: (variable, its value) pairs of the variables that have got their value.
        failed_effects: failures of steps that should have changed something outside the app.
        demands: (node, how urgently it is needed) pairs of the nodes for which this has changed.
        outputs: outputs of a query that has ended well.
        error: error of a query that has failed.
    """

    work: list[Request] = field(default_factory=list)
    withdrawn: list[Node] = field(default_factory=list)
    text: list[tuple[str, str]] = field(default_factory=list)
    settled: list[tuple[str, object]] = field(default_factory=list)
    failed_effects: list[Failure] = field(default_factory=list)
    demands: list[tuple[Node, Demand]] = field(default_factory=list)
    outputs: Mapping[str, object] | None = None
    error: StrettoError | None = None
