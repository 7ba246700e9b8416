"""Everything that `submit` takes is checked before it runs, and what is refused harms nobody else."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from support.runtime_engines import COMPLETE, SHOUT, SHOUT_EACH, acting, fake_llm

from stretto.apps import naive_rag
from stretto.model.errors import ConfigError, UserError
from stretto.runtime.runtime import Runtime
from stretto.sched.actions import Action, StartBatch
from stretto.sched.observer import Observer


class Evil:
    """A value that raises whatever is done with it."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    def __hash__(self) -> int:
        raise RuntimeError("hashed")

    def __repr__(self) -> str:
        raise RuntimeError("shown")


JUNK: list[object] = [
    None,
    3,
    [],
    {},
    b"x",
    Evil(),
    "\ud800",
    math.nan,
    10**400,
    True,
    ["x", 3],
    {"a": 3},
    {3: {}},
    [[]],
    1j,
]
FITTING: dict[str, tuple[object, ...]] = {
    "configuration": (None, {}),
    "passes": ([], {}),  # no names
    "deadline_s": (None, 3),
}


@pytest.mark.parametrize(
    "argument",
    ["app", "inputs", "text", "configuration", "passes", "deadline_s", "tenant", "objective", "program"],
)
def test_what_is_no_argument_is_refused_and_others_go_on(argument: str) -> None:
    async def run() -> None:
        async with Runtime([fake_llm()]) as runtime:
            other = await runtime.submit(COMPLETE, {"text": "x"})
            for value in JUNK:
                if any(type(value) is type(fit) and value == fit for fit in FITTING.get(argument, ())):
                    continue
                given: dict[str, Any] = {"app": COMPLETE, "inputs": {"text": "x"}}
                given |= {"inputs": {"text": value}} if argument == "text" else {argument: value}
                with pytest.raises(UserError):
                    await runtime.submit(**given)
                with pytest.raises(UserError):
                    runtime.try_submit(**given)
            assert await other == await runtime.run(COMPLETE, {"text": "x"})

    asyncio.run(run())


def test_what_is_no_argument_of_a_session_is_refused_and_it_goes_on() -> None:
    async def run() -> None:
        async with Runtime([acting()]) as runtime, await runtime.open_session() as session:
            bind: object
            for bind in ("abc", 5, ["text"], {"nope": "x"}, {"text": 5}, {"text": []}, {5: "x"}):
                with pytest.raises(UserError):
                    session.extend(SHOUT, bind)  # type: ignore[arg-type]
            name: object
            for name in (None, 5, [], b"x"):
                for call in (session.drop, session.want, lambda name: session.provide(name, "x")):
                    with pytest.raises(UserError):
                        call(name)  # type: ignore[arg-type]
                with pytest.raises(UserError):
                    await session.get(name)  # type: ignore[arg-type]
            session.extend(SHOUT)
            session.provide("text", "x")
            assert await session.get("loud") == "X"

    asyncio.run(run())


@pytest.mark.parametrize("junk", [None, 5, [], "acting", 0.0, "0"])
def test_what_is_no_instance_and_no_replica_is_refused(junk: Any) -> None:
    async def run() -> None:
        async with Runtime([acting()]) as runtime:
            with pytest.raises(ConfigError):
                runtime.drain_instance("acting", junk)
            with pytest.raises(ConfigError):
                runtime.add_instance("acting", junk)
            with pytest.raises(ConfigError):
                runtime.drain_instance(junk, 99)
            assert await runtime.run(SHOUT, {"text": "x"}) == {"loud": "X"}

    asyncio.run(run())


def test_a_compiled_graph_takes_no_configuration() -> None:
    async def run() -> None:
        async with Runtime([fake_llm()]) as runtime:
            with pytest.raises(UserError, match="complete is compiled: it takes no configuration"):
                await runtime.submit(COMPLETE, {"text": "x"}, configuration={"a": {"b": 1}})
            with pytest.raises(UserError, match="configuration must map components to settings"):
                await runtime.submit(naive_rag(), {}, configuration={"synthesis": 3})  # type: ignore[dict-item]

    asyncio.run(run())


def test_a_batch_task_knows_its_tenant() -> None:
    seen: list[str] = []

    class Noting(Observer):
        def on_action(self, action: Action, now_s: float) -> None:
            if isinstance(action, StartBatch):
                seen.extend(task.tenant for task in action.tasks)

    async def run() -> None:
        async with Runtime([acting(runs_in="thread")], observers=[Noting()]) as runtime:
            await runtime.run(SHOUT, {"text": "x"}, tenant="ann")
            await runtime.run(SHOUT_EACH, {"texts": ["x"]}, tenant="bob")

    asyncio.run(run())
    assert seen == ["ann", "bob"]
