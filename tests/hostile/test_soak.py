"""A soak: queries of every kind for minutes, with faults. STRETTO_SOAK_S says for how many seconds."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from support.hostile import SOAK_S, SlowFakeLLM, resident_mb, show
from support.runtime_engines import COMPLETE, SHOUT, SHOUT_EACH, acting

from benchmarks.common.fake_engines import FakeLLMConfig
from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.deployment import deploy
from stretto.model.errors import InternalError, QueryEnded, StrettoError
from stretto.runtime.runtime import Runtime
from stretto.trace.run_file import RunRecorder

KINDS = (
    "fine",
    "fine",
    "fine",
    "each",
    "complete",
    "complete",
    "raise",
    "none",
    "short",
    "exit",
    "cancel",
    "late",
)


@pytest.mark.timeout(SOAK_S + 120)
def test_soak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seconds, random = SOAK_S or 3.0, Random(11)
    ends: Counter[str] = Counter()

    async def one(runtime: Runtime, number: int, kind: str) -> None:
        text = f"text {number}" if kind in ("fine", "each", "complete", "cancel", "late") else kind
        others: dict[str, tuple[ExecutionGraph, dict[str, object]]] = {
            "each": (SHOUT_EACH, {"texts": [text, "b"]}),
            "complete": (COMPLETE, {"text": text}),
        }
        app, inputs = others.get(kind, (SHOUT, {"text": text}))
        failure: StrettoError | None = None
        try:
            query = await runtime.submit(
                app, inputs, deadline_s=0.001 if kind == "late" else None, tenant=f"tenant {number % 3}"
            )
            if kind == "cancel":
                await asyncio.sleep(random.random() / 100)
                query.cancel()
            answer = await query
        except StrettoError as error:
            failure = error
        if failure is not None:
            assert not isinstance(failure, InternalError), failure
            assert kind not in ("fine", "each", "complete"), f"{kind}: {failure}"
            ends["ended" if isinstance(failure, QueryEnded) else "failed"] += 1
            return
        assert kind in ("fine", "each", "complete", "cancel", "late"), kind
        if kind == "fine":
            assert answer["loud"] == text.upper()
        ends["answered"] += 1

    async def main() -> int:
        engines = [
            acting(instances=3, max_batch=4),
            deploy("llm", SlowFakeLLM, FakeLLMConfig(), contract="llm", instances=2, max_running=8),
        ]
        recorder = RunRecorder(tmp_path / "run.jsonl", engines)
        number = 0
        async with Runtime(engines, max_queries=48, observers=[recorder]) as runtime:
            ends_s = time.monotonic() + seconds
            running: set[asyncio.Task[None]] = set()
            while time.monotonic() < ends_s:
                running.add(asyncio.create_task(one(runtime, number, random.choice(KINDS))))
                number += 1
                if len(running) >= 48:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                if number == 2_000:
                    ends["MB after 2,000"] = resident_mb()
            await asyncio.gather(*running)
            assert runtime.system.is_idle()
            assert not runtime.observers.dropped
        recorder.close()
        assert recorder.is_whole
        return number

    number = asyncio.run(main())
    early_mb = ends.pop("MB after 2,000", 0)
    show(
        capsys,
        f"soak of {seconds:.0f} s",
        queries=number,
        **dict(ends),
        MB_after_2000=early_mb,
        MB_at_the_end=resident_mb(),
    )
    assert ends.total() == number
