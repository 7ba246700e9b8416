"""What follows from one event of a query, and which outputs are answers that did not end by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stretto.graph.execution_graph import Node
from stretto.model.errors import StrettoError
from stretto.model.tasks import Ending
from stretto.model.values import Failure
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import StepRequest


class Outcome:
    """The consequences of one event of a query: work for engines, news for the caller,
    perhaps the end of the query.

    Attributes:
        work: requests for engines.
        withdrawn: nodes whose work is no longer wanted, whether it waits or runs.
        text: (variable or output, more text of it) pairs for the caller.
        settled: (variable, its value) pairs of the variables that have got their value.
        failed_effects: failures of steps that should have changed something outside the app.
        demands: (node, how urgently it is needed) pairs of the nodes for which this has changed.
        outputs: outputs of a query that has ended well.
        error: error of a query that has failed.
        is_paused: whether the query has to be told to go on, after others have had a turn.
    """

    __slots__ = (
        "demands",
        "error",
        "failed_effects",
        "is_paused",
        "outputs",
        "settled",
        "text",
        "withdrawn",
        "work",
    )

    def __init__(self) -> None:
        self.work: list[StepRequest] = []
        self.withdrawn: list[Node] = []
        self.text: list[tuple[str, str]] = []
        self.settled: list[tuple[str, object]] = []
        self.failed_effects: list[Failure] = []
        self.demands: list[tuple[Node, Demand]] = []
        self.outputs: Mapping[str, object] | None = None
        self.error: StrettoError | None = None
        self.is_paused = False


def endings_of(ended: Sequence[tuple[Ending, object]], outputs: Mapping[str, object]) -> tuple[Ending, ...]:
    """Return the ends of LLM requests, each with the names of the outputs that are its answer.

    Steps that choose among values pass on the object itself, so an output is an answer if it is that object.

    Args:
        ended: ends, each with what the request's step has delivered.
        outputs: values by name.
    """
    return tuple(
        replace(ending, outputs=tuple(name for name, value in outputs.items() if _has(value, result)))
        for ending, result in ended
    )


def _has(value: object, result: object) -> bool:
    """Return whether a value is the answer in a result, or has it among its items."""
    answers = result if isinstance(result, tuple) else (result,)
    items = value if isinstance(value, list | tuple) else ()
    return any(one is answer for answer in answers for one in (value, *items))
