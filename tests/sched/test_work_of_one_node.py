"""What happens to one node of a query costs as much whether few or many of its nodes wait or run."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from support.early_placement import SoonestStart
from support.line_counts import num_lines
from support.machines import llm_engine, llm_request, serving

from stretto.sched.actions import CancelTask
from stretto.sched.llm.scheduler import LLMScheduler
from stretto.sched.queries.demand import NOBODY
from stretto.sched.queries.request import StepRequest


def request_of(node: int) -> StepRequest:
    request = llm_request("q", f"step {node}", 20)
    return replace(request, node=replace(request.node, id=node))


def machine(num_nodes: int, max_running: int) -> LLMScheduler:
    """A scheduler with requests of many nodes of one query."""
    deployment = llm_engine(instances=1, max_running=max_running, max_batch=10**9)
    scheduler = LLMScheduler(deployment.engine, deployment.profile, SoonestStart(), count(1))
    serving(scheduler, deployment)
    for node in range(num_nodes):
        scheduler.add(request_of(node), 0.0)
    scheduler.schedule(0.0)
    return scheduler


@pytest.mark.parametrize("are_running", [True, False])
def test_withdrawing_one_node_looks_at_no_others(are_running: bool) -> None:
    def work(num_nodes: int) -> int:
        scheduler = machine(num_nodes, max_running=num_nodes if are_running else 1)
        actions = []
        lines = num_lines(lambda: actions.extend(scheduler.withdraw("q", 5, 1.0)))
        scheduler.check_invariants()
        assert len(actions) == are_running
        assert all(isinstance(action, CancelTask) for action in actions)
        return lines

    assert work(300) <= 1.1 * work(30)


def test_a_new_demand_on_one_node_that_waits_looks_at_no_others() -> None:
    def work(num_nodes: int) -> int:
        scheduler = machine(num_nodes, max_running=1)
        lines = num_lines(lambda: scheduler.ask("q", {5: NOBODY}))
        scheduler.check_invariants()
        return lines

    assert work(300) <= 1.1 * work(30)


def test_a_demand_reaches_the_running_requests_of_its_node_alone() -> None:
    scheduler = machine(9, max_running=9)
    scheduler.ask("q", {5: NOBODY})
    running = scheduler._loads.of(0).values()
    assert [one.entry.request.node.id for one in running if one.entry.demand == NOBODY] == [5]
