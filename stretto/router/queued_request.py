"""A request of the router as the queues and the accounts of `sched` know requests: as a step of a query.

Each request of a client is a query of one step. What queries have in common, their program, stands in the
record of the query.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from stretto.graph.compile import Node
from stretto.graph.ops import OPS
from stretto.model.tasks import Objective, QueryRecord, Usage
from stretto.router.messages import RoutedRequest, Ticket, WorkerUsage
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import StepRequest

_NOTHING = MappingProxyType[str, object]({})
_NODE = Node(
    id=0,
    name="request",
    op="decode",
    spec=OPS["decode"],
    engine=None,
    ins=(),
    outs=(0,),
    after=(),
    num_blocking=0,
    is_mapped=False,
    is_effect=False,
    prompt=(),
    config=_NOTHING,
    depth=0,
    path_s=0.0,
)
_DEMANDS: Mapping[Objective, Demand] = {
    "latency": Demand("latency"),
    "throughput": Demand("throughput"),
    "offline": Demand("offline"),
}


def query_of(ticket: Ticket) -> str:
    """Return the name of the query that a request is."""
    return str(ticket)


def step_of(
    ticket: Ticket, request: RoutedRequest, num_tokens: int, now_s: float, deadline_s: float | None = None
) -> StepRequest:
    """Return a request that has arrived as the only step of its query, whose program should end by a time.

    Requests for one model resemble each other. The tenant is the client that a key tells.
    """
    return StepRequest(
        query_of(ticket),
        _NODE,
        "request",
        0,
        1,
        _NOTHING,
        record=QueryRecord(
            tenant=request.client_key,
            criteria=request.objective,
            deadline_s=deadline_s,
            arrival_s=now_s,
            program=request.program.name,
            kind=request.model,
        ),
        demand=_DEMANDS[request.objective],
        units=(num_tokens,),
    )


def step_usage(usage: WorkerUsage) -> Usage | None:
    """Return the counts of an answer; None if the worker does not count its prompt."""
    if usage.num_prompt is None:
        return None
    num_cached = usage.num_cached or 0  # Anthropic's API counts them beside the prompt's
    return Usage(max(usage.num_prompt, num_cached), num_cached, usage.num_output or 0)
