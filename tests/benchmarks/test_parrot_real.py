"""The programs of Parrot's evaluation before emulated servers: the network, both programs, toy runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

pytest.importorskip("uvloop")

from benchmarks.parrot import real
from benchmarks.parrot.distance import distant
from benchmarks.parrot.real import (
    BY_HAND,
    FULL_REAL,
    OURS,
    QUICK_REAL,
    TABLE,
    RealLoad,
    RealSize,
    measure_real,
)
from benchmarks.parrot.real_clients import Complete, run_by_hand
from benchmarks.parrot.workflows import Call, Output, Workflow
from benchmarks.parrot.workloads import make_load
from benchmarks.registry import BenchmarkOptions
from stretto.engines.server_process.kept import take_port

_MODEL_TOKENS = 4096


def test_data_takes_its_time_there_and_back_and_stays_in_order() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.write(b"end")
        writer.close()

    async def run() -> tuple[float, bytes]:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with server, distant(server.sockets[0].getsockname()[1], 0.1) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            begin_s = time.monotonic()
            writer.write(b"first")
            await reader.readexactly(5)
            took_s = time.monotonic() - begin_s
            writer.write(b"x" * 100_000 + b"y")
            writer.write_eof()
            rest = await reader.read()
            writer.close()
            return took_s, rest

    took_s, rest = asyncio.run(run())
    assert took_s >= 0.0999
    assert rest == b"x" * 100_000 + b"yend"


def test_a_connection_to_nobody_is_closed() -> None:
    async def run() -> bytes:
        async with distant(take_port(None), 0.01) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            found = await reader.read()
            writer.close()
            return found

    assert asyncio.run(asyncio.wait_for(run(), 10)) == b""


def test_a_program_by_hand_sends_a_call_when_its_inputs_are_there() -> None:
    sent: list[str] = []

    async def complete(prompt: str, max_tokens: int) -> str:
        sent.append(prompt)
        return f" {len(sent)} " * max_tokens

    workflow = Workflow("two", (Call("a", ("x",), 1), Call("b", ("y", Output("a")), 1)))
    ended = asyncio.run(run_by_hand(complete, workflow))
    assert sent == ["x\n", "y\n1\n"]
    assert ended.texts == {"b": "2"}


@pytest.mark.parametrize("load", [*FULL_REAL.loads, *QUICK_REAL.loads], ids=lambda load: load.name)
def test_all_prompts_fit_into_the_model(load: RealLoad) -> None:
    for arrival in make_load(load.load, 0, load.settings):
        workflow = arrival.workflow
        assert all(workflow.tokens_of(call) + call.num_output < _MODEL_TOKENS for call in workflow.calls)


@asynccontextmanager
async def plain_completions(url: str, model: str) -> AsyncIterator[Complete]:
    """Context with a client without the package `openai`."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def complete(prompt: str, max_tokens: int) -> str:
            body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
            answer = (await client.post("/v1/completions", json=body)).raise_for_status()
            text: str = answer.json()["choices"][0]["text"]
            return text

        yield complete


@pytest.mark.long
def test_both_programs_get_equal_texts_and_ours_saves_the_trips_of_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = RealLoad("agents", "teams", {"num": 1, "num_files": 2, "length_share": 0.01})
    size, options = RealSize((agents,), num_servers=2), BenchmarkOptions(cells=tmp_path)
    report = measure_real(size, options, plain_completions)
    rows = report.table(TABLE)
    assert len(rows) == 2
    for row in rows.values():
        assert row.values["prompt"] == row.values["cached"] + row.values["filled"]  # type: ignore[operator]
        assert row.values["cached"] > 0  # type: ignore[operator]
    ours, by_hand = (rows[f"agents, {name}"].values for name in (OURS, BY_HAND))
    assert by_hand["mean_s"] - ours["mean_s"] > 3 * real.TRIP_S  # type: ignore[operator]
    assert {goal.name: goal.value for goal in report.goals}["workflows with other texts"] == 0
    monkeypatch.setattr(real, "serving", None)
    assert measure_real(size, options, plain_completions).rows == report.rows
