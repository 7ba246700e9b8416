"""Placement policies that raise: a warning, and the requests go on."""

from __future__ import annotations

import asyncio

import pytest
from support.routing import WHOLE, routing, run

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable, Load
from stretto.cluster.placement import Binds, Choice, Placement, PlacementEvent
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.placements.table import PLACEMENTS
from stretto.router.config import RouterConfig
from stretto.router.fallback_placement import FallbackPlacement
from stretto.router.messages import RoutedRequest, Send, WorkerUsage
from stretto.router.router_state import RouterState
from stretto.router.worker_config import WorkerConfig

METHODS = ("load", "choose", "observe", "absent")


class Breaking(Placement):
    """Chooses worker 0, and fails in one of its methods when it has been called `num_good` times."""

    def __init__(self, method: str, num_good: int = 0, binds: Binds = "late") -> None:
        self.method = method
        self.num_good = num_good
        self.binds = binds

    def load(self, instance: InstanceView) -> Load:
        self._count("load")
        return (0.0,)

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        self._count("choose")
        if self.method == "load":
            instances.candidates(instances.room_for(request.all_tokens), now_s)
        return Choice(7 if self.method == "absent" else 0)

    def observe(self, event: PlacementEvent) -> None:
        self._count("observe")

    def _count(self, method: str) -> None:
        if method == self.method:
            self.num_good -= 1
            if self.num_good < 0:
                raise (SystemExit if method == "choose" else ValueError)(f"{method} is broken")


@pytest.mark.parametrize("binds", ["late", "early", "final"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("num_good", [0, 3, 6])
def test_least_loaded_takes_the_place_of_a_policy_that_raises(
    method: str, num_good: int, binds: Binds, caplog: pytest.LogCaptureFixture
) -> None:
    router_state = RouterState(RouterConfig(), FallbackPlacement(Breaking(method, num_good, binds)))
    for index in range(2):
        worker = router_state.membership.add(WorkerConfig(url=f"http://w{index}", num_slots=8)).id
        router_state.membership.check_passed(worker, {}, None, 0.0)
    sent: list[Send] = []
    for _ in range(12):
        _, actions = router_state.arrive(RoutedRequest(num_tokens=10), 0.0)
        sent += [action for action in actions if isinstance(action, Send)]
        router_state.check_invariants()
    for number, send in enumerate(sent):
        actions = router_state.answered(send.ticket, 200, WorkerUsage(), 1.0 + number)
        sent += [action for action in actions if isinstance(action, Send)]
        router_state.check_invariants()
    assert len(sent) == 12
    assert (router_state.view.num_clients, router_state.view.num_waiting) == (0, 0)
    assert [record.message for record in caplog.records] == [
        "placement policy Breaking raised; least_loaded takes its place"
    ]


@pytest.mark.parametrize("method", METHODS)
def test_a_policy_that_raises_costs_no_request(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLACEMENTS, "breaking", lambda: Breaking(method))

    async def main() -> None:
        async with routing("well", "well", placement="breaking") as at:
            replies = await asyncio.gather(*(at.ask() for _ in range(6)))
            assert [reply.content for reply in replies] == [WHOLE] * 6
            assert at.router_state.view.num_clients == 0

    run(main())
