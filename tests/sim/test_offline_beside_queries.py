"""Offline queries beside others in the simulator: they fill the slack, and give way."""

from __future__ import annotations

import random
from statistics import fmean

import pytest
from support.machines import compiled

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from benchmarks.common.simulated_answers import as_max_tokens
from stretto.costs.offline import OfflineLimits
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.model.deployment import deploy
from stretto.model.profile import Profile
from stretto.model.tasks import Objective
from stretto.sched.actions import Admit, CancelTask
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import SimulatedModel
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import filler, filler_output

PROFILE = Profile(base_s=0.0005, per_unit_s=0.0002, per_output_s=0.02, per_neighbour_s=0.001)
MODEL = SimulatedModel(
    SchedulerConfig(
        num_blocks=1000,
        block_tokens=16,
        max_running=16,
        offline=OfflineLimits(context_tokens=1, prefill_tokens=4, alone_prefill_tokens=200),
    ),
    ProfileCost(PROFILE),
    filler_output(as_max_tokens),
)
APP = compiled(
    """
    graph call(%x: text)
      %kv = prefill([%x]) : kv @llm
      %y = decode(%kv) {max_tokens=60} : text @llm
      return %y
    """,
    {"llm": PROFILE},
)


class ServerLike(FakeLLM):
    """An LLM whose instances do not limit offline requests by themselves, like a server."""

    LIMITS_OFFLINE = False


def run(
    num_online: int,
    num_offline: int,
    *,
    placement: str = "least_seconds",
    executable: type[FakeLLM] = FakeLLM,
    with_steps: bool = True,
    max_running: int = 16,
    rate: float = 1.5,
    objective: Objective = "offline",
    seed: int = 1,
) -> tuple[VirtualDriver, dict[str, float]]:
    """Return the driver, and the seconds that each query took; online ones are named "on…"."""
    llm = deploy(
        "llm",
        executable,
        FakeLLMConfig(),
        contract="llm",
        instances=2,
        profile=PROFILE,
        kv_tokens=16_000,
        max_running=max_running,
        placement=placement,
    )
    check = num_offline < 100  # each instant: slow
    driver = VirtualDriver([llm], models={"llm": MODEL} if with_steps else None, check=check)
    draw = random.Random(seed)
    begun: dict[str, float] = {}
    for number in range(num_offline):
        query = f"off{number}"
        begun[query] = 0.0
        driver.submit(query, APP, {"x": filler(query, draw.randrange(100, 900))}, objective=objective)
    at_s = 0.0
    for number in range(num_online):
        query = f"on{number}"
        at_s += draw.expovariate(rate)
        begun[query] = at_s
        driver.submit(query, APP, {"x": filler(query, draw.randrange(100, 900))}, at_s=at_s)
    replies = driver.run()
    assert all(reply.error is None for reply in replies.values())
    took: dict[str, float] = {}
    for query, started_s in begun.items():
        end_s = driver.recorder.queries[query].end_s
        assert end_s is not None
        took[query] = end_s - started_s
    return driver, took


def online_s(took: dict[str, float]) -> list[float]:
    return sorted(seconds for query, seconds in took.items() if query.startswith("on"))


@pytest.mark.parametrize(
    "placement",
    [
        "least_seconds",
        "stretto",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("least_loaded", "parrot")),
    ],
)
def test_queries_hardly_notice_offline_ones_that_fill_the_instances(placement: str) -> None:
    """A step has room for one offline decode, which takes 1 ms of 21, and four tokens of a prefill."""
    alone, together = (online_s(run(30, num, placement=placement)[1]) for num in (0, 120))
    assert fmean(together) <= 1.2 * fmean(alone)
    assert together[-1] <= 1.25 * alone[-1]


def test_queries_of_the_usual_class_are_delayed_by_as_much_work_of_their_class() -> None:
    """What offline is for: the same load without it."""
    alone, together = online_s(run(30, 0)[1]), online_s(run(30, 120, objective="throughput")[1])
    assert fmean(together) >= 1.5 * fmean(alone)


def test_answers_are_the_same_with_and_without_offline_work() -> None:
    alone, together = run(20, 0)[0], run(20, 60)[0]
    for query, reply in alone.replies.items():
        assert together.replies[query].outputs == reply.outputs


def test_offline_work_uses_what_others_leave() -> None:
    """Two instances are idle most of the time; offline queries end nearly as early as alone."""

    def last_s(num_online: int) -> float:
        took = run(num_online, 60)[1]
        return max(seconds for query, seconds in took.items() if query.startswith("off"))

    assert last_s(4) <= 1.35 * last_s(0)


@pytest.mark.parametrize("placement", ["least_seconds", "least_loaded"])
@pytest.mark.parametrize("executable", [FakeLLM, ServerLike])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_nothing_offline_is_sent_while_others_wait(
    placement: str, executable: type[FakeLLM], seed: int
) -> None:
    driver, took = run(
        60,
        40,
        placement=placement,
        executable=executable,
        with_steps=False,
        max_running=2,
        rate=8.0,
        seed=seed,
    )
    queries, sent = driver.recorder.queries, set[str]()
    num_waited = 0
    for now_s, action in driver.actions:
        if isinstance(action, Admit):
            if action.task.query.startswith("off"):
                waiting = {
                    query for query in took if query.startswith("on") and queries[query].start_s < now_s
                } - sent
                assert not waiting, f"{action.task.query} was sent at {now_s} before {waiting}"
            else:
                num_waited += now_s > queries[action.task.query].start_s
            sent.add(action.task.query)
    assert num_waited, "some had to wait"


def test_servers_are_relieved_of_offline_requests_when_others_come() -> None:
    """A server runs no more than its places; in-process instances take them away by themselves."""
    cancelled = {}
    for executable in (FakeLLM, ServerLike):
        driver, took = run(60, 40, executable=executable, with_steps=False, max_running=4)
        tasks = {action.task.id: action.task for _, action in driver.actions if isinstance(action, Admit)}
        cancelled[executable] = [
            tasks[action.task].query for _, action in driver.actions if isinstance(action, CancelTask)
        ]
        assert len(took) == 100
    assert cancelled[FakeLLM] == []
    assert cancelled[ServerLike]
    assert all(query.startswith("off") for query in cancelled[ServerLike])
