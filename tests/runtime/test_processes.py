"""Instances in processes of their own. One test holds several scenes: a process takes a while to start."""

from __future__ import annotations

import asyncio
import atexit
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from support.runtime_engines import COMPLETE, SHOUT, SHOUT_EACH, Acting, ActingConfig, acting, fake_llm, graph
from support.virtual_loop import in_real_time

from stretto import Runtime
from stretto.engines.batch.calls import Calls, CallsConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import BadReply, ConfigError, EngineFailure, EngineTimeout, EngineUnavailable

PASS_ON = graph(
    """
    graph pass_on(%text: text)
      %made = call(%text) {function="make"} : any @calls
      %loud = call(%made) {result="text"} : text @acting
      return %loud
    """
)


class _Homebound(str):
    """A text that cannot be sent to another process."""

    def __reduce__(self) -> Any:
        raise TypeError("it stays here")


def _own_pid() -> Any:
    return str(os.getpid()).upper()


@in_real_time
async def test_processes_answer_and_their_failures_are_those_of_threads(tmp_path: Path) -> None:
    calls = deploy("calls", Calls, CallsConfig({"make": lambda text: eval(text)}), runs_in="loop")
    engines = [
        acting(ActingConfig(folder=tmp_path), runs_in="process", keeps_state=True),
        calls,
        fake_llm(runs_in="process", keeps_state=True),
    ]
    async with Runtime(engines) as runtime:
        pid = (await runtime.run(SHOUT, {"text": "process"}))["loud"]
        assert pid != _own_pid()
        both = await asyncio.gather(*(runtime.run(COMPLETE, {"text": "a"}) for _ in range(20)))
        assert len({outputs["answer"] for outputs in both}) == 1

        with pytest.raises(EngineFailure, match=r"^step 'loud': ValueError: told to$"):
            await runtime.run(SHOUT, {"text": "raise"})
        with pytest.raises(BadReply, match=r"^step 'loud': its results cannot leave the process: "):
            await runtime.run(SHOUT, {"text": "lambda"})
        with pytest.raises(EngineFailure, match=r"^step 'loud': its inputs cannot be sent to a process: "):
            await runtime.run(PASS_ON, {"text": "lambda: 1"})
        assert await runtime.run(PASS_ON, {"text": "1"}) == {"loud": "1"}
        with pytest.raises(
            EngineFailure, match=r"its inputs cannot be sent to a process: TypeError: it stays here$"
        ):
            await runtime.run(COMPLETE, {"text": _Homebound("a")})
        assert len((await runtime.run(SHOUT, {"text": "huge"}))["loud"]) == 10_000_000
        much = ["x" * 1000] * 5000
        assert len((await runtime.run(SHOUT_EACH, {"texts": much}))["loud"]) == 5000
        assert (await runtime.run(SHOUT, {"text": "process"}))["loud"] == pid, "none of this killed it"

        assert await runtime.run(SHOUT, {"text": "once exit at once"}) == {"loud": "ONCE EXIT AT ONCE"}
        assert (await runtime.run(SHOUT, {"text": "process"}))["loud"] != pid


@in_real_time
async def test_a_process_that_is_lost_costs_a_retry_or_a_query_and_never_the_others(tmp_path: Path) -> None:
    engine = acting(ActingConfig(folder=tmp_path), runs_in="process", max_attempts=1)
    async with Runtime([engine]) as runtime:
        with pytest.raises(EngineUnavailable) as caught:
            await runtime.run(SHOUT, {"text": "be killed"})
        assert str(caught.value) == "step 'loud': acting/0 died with exit code -9"
        with pytest.raises(EngineUnavailable, match=r"acting/1 sent what cannot be read \(RuntimeError"):
            await runtime.run(SHOUT, {"text": "poison"})
        with pytest.raises(EngineUnavailable, match=r"acting/2 died: SystemExit: 7"):
            await runtime.run(SHOUT, {"text": "exit"})
        pid = (await runtime.run(SHOUT, {"text": "process"}))["loud"]
        os.kill(int(pid), signal.SIGINT)
        assert await runtime.run(SHOUT, {"text": "process"}) == {"loud": pid}, "Ctrl-C is for the parent"


@in_real_time
async def test_a_process_that_hangs_is_killed_and_never_makes_the_loop_wait() -> None:
    """What it is sent meanwhile is more than a pipe holds."""
    engine = acting(runs_in="process", timeout_s=1.0, max_attempts=1, instances=1)
    async with Runtime([engine]) as runtime:
        hanging = await runtime.submit(SHOUT, {"text": "hang"})
        much = await runtime.submit(SHOUT_EACH, {"texts": ["x" * 1_000_000] * 32})
        num_turns = 0
        while not hanging.is_done():
            await asyncio.sleep(0.01)
            num_turns += 1
        assert num_turns > 5, (
            "a loop that waits for the process has one turn at most before the process is killed"
        )
        with pytest.raises(EngineTimeout):
            await hanging
        much.cancel()


class _ExitsWhenMade:
    def __init__(self, config: object) -> None:
        os._exit(5)


class _CannotBeMade(Acting):
    def __init__(self, config: ActingConfig) -> None:
        raise ConfigError("no such model", step="somewhere")


@in_real_time
async def test_a_process_that_cannot_start_is_named() -> None:
    async def message(engine: Deployment, kind: type[Exception]) -> str:
        with pytest.raises(kind) as caught:
            await Runtime([engine]).__aenter__()
        return str(caught.value)

    unpicklable = acting(ActingConfig(makes=lambda number: None), runs_in="process")
    refusal = await message(unpicklable, ConfigError)
    assert re.match("engine 'acting':? cannot be sent to a process: ", refusal), refusal
    exits, refuses = await asyncio.gather(
        message(deploy("acting", _ExitsWhenMade, runs_in="process"), EngineUnavailable),
        message(deploy("acting", _CannotBeMade, runs_in="process"), ConfigError),
    )
    assert exits == "engine 'acting': acting/0 died with exit code 5"
    assert refuses == "step 'somewhere': engine 'acting': no such model"


class _LeavesANote(Acting):
    def __init__(self, config: ActingConfig) -> None:
        super().__init__(config)
        assert config.folder is not None
        atexit.register((config.folder / "note").write_text, "ended")


@in_real_time
async def test_what_is_registered_for_the_end_of_a_process_is_done(tmp_path: Path) -> None:
    engine = deploy("acting", _LeavesANote, ActingConfig(folder=tmp_path), runs_in="process")
    async with Runtime([engine]) as runtime:
        assert await runtime.run(SHOUT, {"text": "a"}) == {"loud": "A"}
        assert not (tmp_path / "note").exists()
    assert (tmp_path / "note").read_text() == "ended"


@in_real_time
async def test_leaving_ends_processes_that_run_hang_or_have_died() -> None:
    engines = [acting(runs_in="process", instances=3, max_batch=1)]
    async with Runtime(engines) as runtime:
        for text in ("hang", "exit at once", "a"):
            await runtime.submit(SHOUT, {"text": text})
        await asyncio.sleep(0.05)
