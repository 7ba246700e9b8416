"""A small application of two models, a plan for it on two devices, and requests for it."""

from __future__ import annotations

from stretto.graph.one_call import PromptMessage
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.plan import Plan, PlannedReplica, Stage
from stretto.planner.running.run_request import RunRequest

APP = Application(
    "app",
    [
        ModelNode("draft", "m", 9, calls=2),
        ModelNode("sum", "m", 9, chain=True, prompt="{so_far} then {chunk}"),
        ModelNode("judge", "n", 9, inputs=("draft", "sum")),
    ],
)
PLAN = Plan(
    "test",
    (
        Stage((PlannedReplica("m", (0,)), PlannedReplica("m", (1,), 2.0)), ends_at_first=True),
        Stage((PlannedReplica("m", (0,)), PlannedReplica("m", (1,)), PlannedReplica("n", (0, 1)))),
    ),
)


def run_requests(num: int) -> list[RunRequest]:
    """Return requests of one to three chunks each; the fifth asks nothing of `draft`."""
    return [
        RunRequest(
            AppRequest(f"r{at}", 1, (1,) * (at % 3 + 1), ("sum", "judge") if at == 4 else ()),
            (PromptMessage(None, f"question {at}"),),
            tuple(f"chunk {at} {number}" for number in range(at % 3 + 1)),
        )
        for at in range(num)
    ]
