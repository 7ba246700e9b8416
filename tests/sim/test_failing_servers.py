"""Servers that fail, in virtual time: each kind of failure, placement and number of servers.

A call ends at a living server within two seconds after its failure is known, and a server that may be down
gets probes alone while another one serves. With no living server calls end in typed errors. Set
STRETTO_FAULT_RUNS, as `make fault-tests` does, to run all placements.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest
from support.failing_servers import CallWatch
from support.faults import Death, FaultPlan, Slowness
from support.fleets import FleetWatch
from support.outages import Outage, OutageKind

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from stretto.cluster.placements.table import PLACEMENTS
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.text import parse_graph
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import EngineFailure
from stretto.model.profile import Profile
from stretto.model.replica import Engine, Replica
from stretto.model.tasks import Decode, LLMTask
from stretto.runtime.probing import MAX_REST_S
from stretto.sched.messages import Submit
from stretto.sim.driver import VirtualDriver
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import filler_output

RUNS_ALL = int(os.environ.get("STRETTO_FAULT_RUNS", "0")) > 0
SOME = ("least_seconds", "parrot", "stretto") if RUNS_ALL else ("stretto",)
PROFILE = Profile(base_s=0.01, per_unit_s=0.001, per_output_s=0.02, per_neighbour_s=0.0005)
NUM_TOKENS = 40
FAILS_S = 0.3
RECOVER_S = 20.0
FOR_EVER_S = 500.0
"""End of a failure that outlasts every wait. Probes go on until then."""
MOST_S = 2.0
"""Most seconds from a failure that is known to the end of its call at a living server."""
FAILURES = (
    "refused",
    "reset",
    "silent",
    "error",
    "overloaded",
    "overloaded, says when",
    "overloaded, for ever",
    "wrong",
    "healthy",
    "dies",
    "slow",
)
TEXT = """
    graph call(%x: any)
      %kv = prefill([c"Tell me of this: ", %x]) : kv @llm
      %y  = decode(%kv) {max_tokens=40} : text @llm
      return %y
"""
GRAPH = compile_graph(parse_graph(TEXT), {"llm": PROFILE})
EMBED = compile_graph(
    parse_graph("graph embedding(%xs: list[text])\n%v = embed(each %xs) : list[vector] @e\nreturn %v"), {}
)
IMPATIENT = compile_graph(
    parse_graph(TEXT.replace("@llm", '@llm with {"timeout_s": 3.0, "retries": 1}')),
    {"llm": PROFILE},
)


def length(task: LLMTask, decode: Decode) -> int:
    return NUM_TOKENS


def faults_of(failure: str, until_s: float) -> FaultPlan:
    """The faults of instance 0."""
    if failure == "dies":
        return FaultPlan(deaths=(Death("llm", 0, FAILS_S, until_s),))
    if failure == "slow":
        return FaultPlan(slow=(Slowness("llm", 0, FAILS_S, until_s, 1000.0),))
    kind: OutageKind = "error"
    for known in ("refused", "reset", "silent", "overloaded", "wrong"):
        kind = known if failure.startswith(known) else kind
    outage = Outage("llm", 0, FAILS_S, until_s, kind)
    if failure == "overloaded, says when":
        outage = replace(outage, rest_s=5.0)
    if failure == "overloaded, for ever":
        outage = replace(outage, rest_s=1e9)
    if failure == "healthy":
        outage = replace(outage, is_healthy=True)
    return FaultPlan(outages=(outage,))


def servers(placement: str, num: int, loading_s: float | None = None, **settings: Any) -> Deployment:
    """An LLM engine of servers that are declared by their URLs alone, as on the command line."""
    engine = Engine("llm", "llm", placement=placement, **{"recover_s": RECOVER_S, **settings})
    configs = [OpenAIServerConfig(f"http://127.0.0.1:{8001 + number}") for number in range(num)]
    replica = Replica(OpenAIServer, runs_in="loop", profile=PROFILE, loading_s=loading_s)
    return Deployment(engine, tuple(replace(replica, config=one) for one in configs))


def run(
    placement: str,
    faults: FaultPlan,
    num_servers: int,
    *,
    num_calls: int = 8,
    is_streamed: bool = True,
    graph: ExecutionGraph = GRAPH,
    **settings: Any,
) -> tuple[VirtualDriver, CallWatch]:
    """Calls arrive before, at and after the failure."""
    watch, fleet = CallWatch(), FleetWatch()
    model = SimulatedModel(
        SchedulerConfig(400, block_tokens=16, max_running=16, max_batch_tokens=512),
        ProfileCost(PROFILE),
        filler_output(length),
    )
    driver = VirtualDriver(
        [servers(placement, num_servers, **settings)],
        models={"llm": model},
        faults=faults,
        check=True,
        observers=(watch, fleet),
    )
    for number in range(num_calls):
        query = Submit(f"q{number}", graph, {"x": f"thing {number}"}, is_streamed=is_streamed)
        driver.send(query, 2 * FAILS_S * number / num_calls)
    driver.run()
    fleet.check_end()
    assert not driver.observers.dropped
    assert sorted(driver.replies) == sorted(f"q{number}" for number in range(num_calls))
    assert driver.system.is_idle()
    return driver, watch


def matrix() -> Sequence[tuple[str, str, int]]:
    """Placement, failure and number of servers: all, or three placements of different kinds."""
    if RUNS_ALL:
        return list(product(sorted(PLACEMENTS), FAILURES, (2, 4)))
    placements = (("least_seconds", 2), ("parrot", 2), ("stretto", 4))
    return [(placement, failure, num) for placement, num in placements for failure in FAILURES]


@pytest.mark.parametrize(("placement", "failure", "num_servers"), matrix())
def test_calls_of_a_server_that_fails_end_at_another_one(
    placement: str, failure: str, num_servers: int
) -> None:
    settings: dict[str, Any] = {"timeout_s": 0.5} if failure == "slow" else {}
    for is_streamed in (True, False):
        driver, watch = run(
            placement, faults_of(failure, 60.0), num_servers, is_streamed=is_streamed, **settings
        )
        assert all(reply.error is None for reply in driver.replies.values())
        assert watch.known_s
        assert watch.longest_s <= MOST_S
        assert watch.again_s == {query: watch.known_s[query] for query in watch.again_s}, "at once"
        assert watch.num_at_suspects == 0, "only health checks"
        assert set(watch.num_failures.values()) <= {1}, "not where it has failed"


@pytest.mark.parametrize("num_servers", [2, 4])
@pytest.mark.parametrize("placement", SOME)
def test_a_step_that_took_too_long_at_a_server_is_tried_at_another_one(
    placement: str, num_servers: int
) -> None:
    """Its one further attempt would take too long at the slow server too."""
    driver, watch = run(placement, faults_of("slow", 60.0), num_servers, graph=IMPATIENT)
    assert all(reply.error is None for reply in driver.replies.values())
    assert 3.0 < max(watch.ended_s.values()) < 2 * FAILS_S + 3.0 + MOST_S


@pytest.mark.parametrize("failure", [one for one in FAILURES if one not in ("healthy", "slow", "wrong")])
@pytest.mark.parametrize("placement", SOME)
def test_calls_of_the_only_server_end_when_it_comes_back(placement: str, failure: str) -> None:
    """One that asks to be left alone for longer than anybody waits is asked again after a limit."""
    recover_s, rest_s = (60.0, MAX_REST_S) if "for ever" in failure else (RECOVER_S, 0.0)
    driver, watch = run(placement, faults_of(failure, 2.5), 1, recover_s=recover_s)
    assert all(reply.error is None for reply in driver.replies.values())
    assert max(watch.ended_s.values()) < 2.5 + 10.0 + rest_s


@pytest.mark.parametrize("placement", SOME)
def test_calls_of_the_only_server_wait_while_it_loads_its_model(placement: str) -> None:
    """It dies, and its model takes longer to load than `recover_s`."""
    deaths = FaultPlan(deaths=(Death("llm", 0, FAILS_S),))
    driver, watch = run(placement, deaths, 1, loading_s=1.5 * RECOVER_S)
    assert all(reply.error is None for reply in driver.replies.values())
    assert 1.5 * RECOVER_S < max(watch.ended_s.values()) < 1.5 * RECOVER_S + 10.0


@pytest.mark.parametrize("failure", [one for one in FAILURES if one != "slow"])
@pytest.mark.parametrize("placement", SOME)
def test_calls_end_in_a_typed_error_where_no_server_lives(placement: str, failure: str) -> None:
    plans = [faults_of(failure, FOR_EVER_S)]
    driver, watch = run(placement, plans[0], 1)
    failed = [reply for reply in driver.replies.values() if reply.error is not None]
    assert failed
    assert all(isinstance(reply.error, EngineFailure) for reply in failed)
    assert max(watch.ended_s.values()) <= FAILS_S * 2 + RECOVER_S + 5.0


def wrong_and(engine: str, until_s: float, *others: tuple[int, OutageKind]) -> FaultPlan:
    """Instance 0 answers wrongly for ever; others fail from the start until a time."""
    failing = [Outage(engine, number, 0.0, until_s, kind) for number, kind in others]
    return FaultPlan(outages=(Outage(engine, 0, 0.0, FOR_EVER_S, "wrong"), *failing))


@pytest.mark.parametrize("kind", [one for one in get_args(OutageKind) if one != "wrong"])
@pytest.mark.parametrize("placement", SOME)
def test_a_wrong_answer_is_not_the_last_while_another_server_may_come_back(
    placement: str, kind: OutageKind
) -> None:
    driver, watch = run(placement, wrong_and("llm", 5.0, (1, kind)), 2)
    assert all(reply.error is None for reply in driver.replies.values())
    assert max(watch.ended_s.values()) < 5.0 + 10.0
    num_wrong = [number for (_, instance), number in watch.num_failures.items() if instance == 0]
    assert set(num_wrong) == {1}, "it is not asked again"


@pytest.mark.parametrize("placement", SOME)
def test_a_call_answered_wrongly_ends_where_the_other_server_stays_down(placement: str) -> None:
    driver, watch = run(placement, wrong_and("llm", FOR_EVER_S, (1, "refused")), 2)
    assert all(isinstance(reply.error, EngineFailure) for reply in driver.replies.values())
    assert max(watch.ended_s.values()) <= FAILS_S * 2 + RECOVER_S + 5.0


@pytest.mark.parametrize("until_s", [5.0, FOR_EVER_S])
def test_batches_answered_wrongly_wait_for_another_server(until_s: float) -> None:
    engine = deploy("e", FakeBatch, FakeBatchConfig(), instances=2, profile=PROFILE, recover_s=RECOVER_S)
    watch = CallWatch()
    faults = wrong_and("e", until_s, (1, "refused"))
    driver = VirtualDriver([engine], faults=faults, check=True, observers=(watch,))
    for number in range(20):
        driver.submit(f"q{number}", EMBED, {"xs": [f"{number}", "x"]}, at_s=0.01 * number)
    driver.run()
    does_end = until_s > RECOVER_S
    assert all(isinstance(reply.error, EngineFailure) == does_end for reply in driver.replies.values())
    assert max(watch.ended_s.values()) <= min(until_s, RECOVER_S) + 10.0


@pytest.mark.parametrize("num_servers", [2, 4])
@pytest.mark.parametrize("kind", get_args(OutageKind))
@pytest.mark.parametrize("is_healthy", [False, True])
def test_batches_of_a_server_that_fails_end_at_another_one(
    kind: OutageKind, num_servers: int, *, is_healthy: bool
) -> None:
    """A call ends at another server, also where health checks of the failing one succeed all the while."""
    engine = deploy(
        "e", FakeBatch, FakeBatchConfig(), instances=num_servers, max_attempts=2, max_batch=4, profile=PROFILE
    )
    outage = Outage("e", 0, FAILS_S, 30.0, kind, is_healthy=is_healthy)
    watch, fleet = CallWatch(), FleetWatch()
    faults = FaultPlan(outages=(outage,))
    driver = VirtualDriver([engine], faults=faults, check=True, observers=(watch, fleet))
    for number in range(200):
        driver.submit(f"q{number}", EMBED, {"xs": [f"{number}", "x"]}, at_s=0.01 * number)
    driver.run()
    fleet.check_end()
    assert fleet.reached["suspected"] > 0
    assert all(reply.error is None for reply in driver.replies.values())
    assert max(watch.ended_s.values()) < 2.0 + outage.silence_s + MOST_S
