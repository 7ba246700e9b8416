"""A request of the router as the queues and the accounts of `sched` know requests: as a step of a query.

Each request of a client is a query of one step. What queries have in common, their program, stands in the
record of the query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from stretto.graph.execution_graph import Node
from stretto.graph.op_table import OPS
from stretto.model.tasks import Objective, QueryRecord, Usage
from stretto.router.messages import RoutedRequest, Ticket, WorkerUsage
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import StepRequest

_NOTHING = MappingProxyType[str, object]({})
PLAIN = Node(
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
"""The node of the only step of a plain request."""
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

    Plain requests for one model resemble each other. Requests of an app's step resemble those of the same
    step, and are as urgent as it is.
    """
    tenant, program = request.owner, request.program.name
    if (step := request.step) is not None:
        return replace(
            step,
            query=query_of(ticket),
            lo=0,
            hi=1,
            inputs=_NOTHING,
            each=(),
            record=replace(step.record, tenant=tenant, arrival_s=now_s, program=program),
            demand=step.demand._replace(job=""),  # its program has the job in its name
            units=(num_tokens,),
            prompts=(),
        )
    return StepRequest(
        query_of(ticket),
        PLAIN,
        "request",
        0,
        1,
        _NOTHING,
        record=QueryRecord(
            tenant=tenant,
            criteria=request.objective,
            deadline_s=deadline_s,
            arrival_s=now_s,
            program=program,
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
