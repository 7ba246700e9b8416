"""Queries that name the program which they are a part of."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.runtime_engines import COMPLETE, fake_llm
from support.virtual_loop import in_real_time

from stretto import Runtime
from stretto.model.errors import UserError
from stretto.sched.messages import EndProgram, Event, Submit
from stretto.sched.observer import Observer
from stretto.trace.run_file import RunRecorder
from stretto.trace.run_reading import read_run


class Programs(Observer):
    """Notes what is said of programs."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.ended: list[EndProgram] = []

    def on_event(self, event: Event, now_s: float) -> None:
        if isinstance(event, Submit):
            self.submitted.append(event.program)
        elif isinstance(event, EndProgram):
            self.ended.append(event)


@in_real_time
async def test_a_query_names_its_program_whose_end_may_be_said() -> None:
    programs = Programs()
    async with Runtime([fake_llm()], observers=[programs]) as runtime:
        await runtime.run(COMPLETE, {"text": "x"}, program="agent 7", tenant="ann")
        await runtime.run(COMPLETE, {"text": "x"})
        runtime.end_program("agent 7", "ann")
        runtime.end_program("never seen")
        with pytest.raises(UserError, match="program must be"):
            runtime.end_program(7)  # type: ignore[arg-type]
        assert await runtime.run(COMPLETE, {"text": "x"}, program="agent 7", tenant="ann")
    assert programs.submitted == ["agent 7", "", "agent 7"]
    assert programs.ended == [EndProgram("agent 7", "ann"), EndProgram("never seen")]


@in_real_time
async def test_a_recorded_run_keeps_the_programs(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    llm = fake_llm()
    recorder = RunRecorder(path, [llm])
    async with Runtime([llm], observers=[recorder]) as runtime:
        await runtime.run(COMPLETE, {"text": "x"}, program="agent 7")
        await runtime.run(COMPLETE, {"text": "x"})
    recorder.close()
    assert [query.program for query in read_run(path).queries] == ["agent 7", ""]
