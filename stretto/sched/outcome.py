"""The outcome of one event of a query."""

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
    """The outcome of one event of a query: work for engines, what the caller is told, and the query's end.

    Attributes:
        work: requests for engines.
        withdrawn: nodes whose work is no longer wanted, wherever it is.
        text: (variable, more text of it).
        settled: (variable, its value) of the variables that have come.
        failed_effects: failures of steps that should have changed something outside.
        demands: (node, what is asked of it) of the nodes of which something else was asked before.
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
