import asyncio
import json
import sys

import pytest

from benchmarks.overhead.benchmark import IN_PARALLEL, NODES, WAITING, OverheadSize, measure
from benchmarks.overhead.peers import EXPECTED, PEERS, Peer
from benchmarks.overhead.places import PLACES
from benchmarks.overhead.planning import BUILDING, PLANNING, PLANNING_BY_CHUNKS, SCHEDULING_BY_CHUNKS
from benchmarks.overhead.pool import POOL, HeldPrograms
from benchmarks.overhead.queues import QUEUES, WaitingQueries
from benchmarks.registry import BenchmarkOptions
from stretto.sched.orders import ORDERS

TOY = OverheadSize(
    rounds=1,
    runs=2,
    plans=10,
    schedules=1,
    chunks=(2, 4, 8),
    components=(2, 4),
    waiting=(1, 30),
    held=(10, 30),
    ends=2,
    waits=1,
    block_s=0.02,
)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_system_runs_the_whole_workload(peer: Peer) -> None:
    module = peer.load()
    if module is None:
        pytest.skip(f"{peer.name} is not installed")

    async def run() -> list[int]:
        async with module.open_runner() as run_once:
            await run_once()
            return await run_once()

    assert asyncio.run(run()) == EXPECTED


@pytest.mark.parametrize("policy", ORDERS)
def test_an_end_and_an_admission_take_as_many_calls_whether_few_or_many_wait(policy: str) -> None:
    """Calls of functions in place of microseconds, which depend on the machine."""

    def num_calls(num_waiting: int) -> int:
        queue = WaitingQueries(policy, num_waiting)
        count = 0

        def note(frame: object, event: str, arg: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        for _ in range(20):
            sys.setprofile(note)
            queue.end_one()
            sys.setprofile(None)
            queue.submit()
        return count // 20

    assert num_calls(1000) <= 1.1 * num_calls(30)


def test_an_admission_by_the_pool_takes_as_many_calls_whether_few_or_many_are_held() -> None:
    def calls_per_admission(num_held: int) -> float:
        pool = HeldPrograms(num_held)
        pool.prepare(1000)
        count = 0

        def note(frame: object, event: str, arg: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        before = pool.num_admitted
        sys.setprofile(note)
        for _ in range(200):
            pool.end_one()
        sys.setprofile(None)
        return count / (pool.num_admitted - before)

    assert calls_per_admission(3000) <= 1.2 * calls_per_admission(300)


@pytest.mark.long
def test_the_report_has_every_table_and_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Peer("Absent", "benchmarks.overhead.peers.no_such_file", "no-such-package")
    monkeypatch.setattr("benchmarks.overhead.benchmark.PEERS", (*PEERS[:3], missing))
    report = measure(TOY, BenchmarkOptions(seed=3))
    assert {row.table for row in report.rows} == {
        *(NODES, IN_PARALLEL, PLACES, QUEUES, POOL, WAITING),
        *(BUILDING, PLANNING, PLANNING_BY_CHUNKS, SCHEDULING_BY_CHUNKS),
    }
    assert len(report.goals) == 13
    assert any("left out, not installed: Absent" in note for note in report.notes)
    assert report.seed == 3
    prototype = [row for row in report.rows if "prototype" in row.name]
    assert len(prototype) == 4
    assert all(row.origin == "quoted" for row in prototype)
    assert all(row.origin == "measured" for row in report.rows if row not in prototype)
    json.dumps(report.as_dict())
