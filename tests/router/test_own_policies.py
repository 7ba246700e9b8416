"""A placement policy and an order in a file of the user's, named as FILE.py:NAME."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.routing import routing, run
from support.runtime_engines import COMPLETE

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto.cluster.placements.table import placement_of
from stretto.model.deployment import deploy
from stretto.model.errors import ConfigError
from stretto.router.config import RouterConfig
from stretto.schema.deployments import read_deployments
from stretto.schema.reading import read_tables
from stretto.sim.driver import VirtualDriver

CODE = '''
from stretto.cluster.placement import Choice, Placement
from stretto.sched.orders.arrival import PerInvocation


class Last(Placement):
    """Always the instance that joined last."""

    def load(self, instance):
        return (-instance.id,)

    def choose(self, request, instances, now_s):
        found = instances.candidates(instances.room_for(request.all_tokens), now_s)
        last = max(found, key=lambda view: view.id, default=None)
        return None if last is None else Choice(last.id, reason="it is the last one")

    def observe(self, event):
        pass


class Newest(PerInvocation):
    made = 0

    def __init__(self, config):
        super().__init__(config)
        Newest.made += 1


class Raises(PerInvocation):
    def take(self, to_fill, fits, now_s):
        raise ZeroDivisionError("no")


class Forgets(PerInvocation):
    def taken(self, entry, num_items):
        pass


class Number(PerInvocation):
    def rank(self, entry):
        return 1.0


class Elsewhere(PerInvocation):
    def take(self, to_fill, fits, now_s):
        return "nobody"


def broken(*_):
    raise ZeroDivisionError("no")


def half(*_):
    return object()


def ends(*_):
    raise SystemExit(3)


class Unloaded(Last):
    @property
    def load(self):
        raise ZeroDivisionError("later")


class Ends(PerInvocation):
    def take(self, to_fill, fits, now_s):
        raise SystemExit(3)


NOTHING = None
'''


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "own.py"
    path.write_text(CODE)
    return str(path)


def test_a_router_places_and_orders_by_ones_own(file: str) -> None:
    async def main() -> None:
        async with routing("well", "well", placement=f"{file}:Last", order=f"{file}:Newest") as at:
            for _ in range(4):
                assert (await at.ask()).status_code == 200
            assert [len(server.asked) for server in at.servers] == [0, 4]

    run(main())


def test_an_engines_file_names_them_and_a_simulation_uses_them(file: str, tmp_path: Path) -> None:
    engines = tmp_path / "engines.toml"
    engines.write_text(
        f'[[engine]]\nname = "llm"\ncontract = "llm"\nplacement = "{file}:Last"\npolicy = "{file}:Newest"\n'
        '[[replica]]\nengine = "llm"\nexecutable = "stand-in"\n'
    )
    (read,) = read_deployments(read_tables(engines))
    made = deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm", instances=2)
    driver = VirtualDriver([made.changed(placement=read.engine.placement, policy=read.engine.policy)])
    for number in range(3):
        driver.submit(f"q{number}", COMPLETE, {"text": "tea"})
    assert all(reply.error is None for reply in driver.run().values())
    used = {span.instance for span in driver.recorder.spans if span.instance is not None}
    assert used == {1}


@pytest.mark.parametrize("order", ["Raises", "Ends", "Forgets", "Elsewhere"])
def test_an_order_that_fails_at_a_router_is_replaced_and_all_are_answered(
    file: str, order: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with routing("well", order=f"{file}:{order}", num_slots=1) as at:
            answers = await asyncio.wait_for(asyncio.gather(*(at.ask() for _ in range(6))), 60)
            assert [answer.status_code for answer in answers] == [200] * 6
            assert at.router.front.router_state.view.num_waiting == 0

    run(main())
    assert f"{order} raised; the order of arrival takes its place" in caplog.text


@pytest.mark.parametrize("order", ["Raises", "Forgets", "Elsewhere", "Number"])
def test_an_order_that_fails_at_an_engine_is_replaced(file: str, order: str) -> None:
    made = deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm", instances=1)
    driver = VirtualDriver([made.changed(policy=f"{file}:{order}")])
    for number in range(30):
        driver.submit(f"q{number}", COMPLETE, {"text": "tea"})
    replies = driver.run()
    assert [reply.error for reply in replies.values()] == [None] * 30


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("broken", "it raised ZeroDivisionError"),
        ("half", "what it makes has no method 'add'"),
        ("ends", "it raised SystemExit: 3"),
        ("NOTHING", "must be a class, or a function, that makes the order"),
    ],
)
def test_what_makes_no_order_is_refused_with_the_settings(file: str, name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        RouterConfig(order=f"{file}:{name}")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("broken", "it raised ZeroDivisionError"),
        ("half", "what it makes has no 'binds'"),
        ("ends", "it raised SystemExit: 3"),
        ("Unloaded", "it raised ZeroDivisionError: later"),
        ("NOTHING", "must be a class, or a function, that makes the placement"),
        ("Missing", "there is no Missing in "),
    ],
)
def test_what_makes_no_policy_is_refused_with_the_settings(file: str, name: str, problem: str) -> None:
    for refused in (lambda: RouterConfig(placement=f"{file}:{name}"), lambda: placement_of(f"{file}:{name}")):
        with pytest.raises(ConfigError, match=problem):
            refused()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for settings in ({"placement": f"{tmp_path}/none.py:Last"}, {"order": f"{tmp_path}/none.py:Newest"}):
        with pytest.raises(ConfigError, match=r"there is no file .*none\.py"):
            RouterConfig(**settings)  # type: ignore[arg-type]
