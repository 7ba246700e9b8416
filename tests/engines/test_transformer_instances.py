"""The in-process engine behind a runtime: in a process of its own, and several of it in threads."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from support.graphs import NUM_READERS, readers_of
from support.runtime_engines import graph
from support.tiny_checkpoint import build_tiny_checkpoint

from stretto import Runtime
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import CapacityError, ConfigError, QueryCancelled
from stretto.model.replica import RunsIn
from stretto.trace.recorder import Recorder

pytest_plugins = ("support.llm_fixtures",)

COMPLETE = graph(
    """
    graph complete(%text: text)
      %kv     = prefill([c"Say: ", %text]) : kv @llm
      %answer = decode(%kv) {max_tokens=12} : text @llm
      return %answer
    """
)
WRITE_ON = graph(
    """
    graph write_on(%text: text)
      %kv     = prefill([c"Say: ", %text]) : kv @llm
      %answer = decode(%kv) {ignore_eos=true, max_tokens=1500} : text @llm
      return %answer
    """
)
TEXTS = [f"river {number}" for number in range(6)]
PATIENT = 800.0
"""Seconds: only a hang takes longer, also where other programs have the cores."""


def llm(folder: Path, runs_in: RunsIn, **settings: int) -> Deployment:
    return deploy(
        "llm",
        TransformerLLM,
        TransformerConfig(folder),
        contract="llm",
        runs_in=runs_in,
        keeps_state=True,
        recover_s=PATIENT,
        **settings,
    )


async def answers(runtime: Runtime) -> list[str]:
    outputs = await asyncio.gather(*(runtime.run(COMPLETE, {"text": text}) for text in TEXTS))
    return [output["answer"] for output in outputs]


@pytest.mark.long
def test_threads_and_processes_say_the_same_and_a_lost_process_costs_a_retry(tiny_checkpoint: Path) -> None:
    """One test holds all scenes: a process that imports torch takes a while to start."""
    asyncio.run(asyncio.wait_for(_threads_and_processes(tiny_checkpoint), PATIENT))


async def _threads_and_processes(tiny_checkpoint: Path) -> None:
    async with Runtime([llm(tiny_checkpoint, "thread", instances=2)]) as runtime:
        expected = await answers(runtime)
    async with Runtime([llm(tiny_checkpoint, "process", max_attempts=2)]) as runtime:
        assert await answers(runtime) == expected

        long = await runtime.submit(WRITE_ON, {"text": "a tale"})
        async for _ in long.stream("answer"):
            break
        long.cancel()
        with pytest.raises(QueryCancelled):
            await long
        with pytest.raises(CapacityError, match="context of 2048"):
            await runtime.run(COMPLETE, {"text": "river " * 3000})
        assert await answers(runtime) == expected, "it serves on"

        long = await runtime.submit(WRITE_ON, {"text": "a tale"})
        streamed = ""
        async for piece in long.stream("answer"):
            streamed += piece
            _kill_children()
            break
        others = answers(runtime)
        assert (await long)["answer"].startswith(streamed), "the second attempt goes on where it was"
        assert await others == expected
    assert not multiprocessing.active_children()


def test_checkpoint_that_cannot_be_used_is_named_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine 'llm': no checkpoint in .*config.json is missing"):
        asyncio.run(asyncio.wait_for(Runtime([llm(tmp_path, "thread")]).__aenter__(), PATIENT))


def _kill_children() -> None:
    for child in multiprocessing.active_children():
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)


def test_the_in_process_engine_fills_what_eight_readers_share_once(tmp_path: Path) -> None:
    checkpoint = build_tiny_checkpoint(tmp_path / "model", context_tokens=8192)
    head = "river " * 2220
    recorder = Recorder()

    async def main() -> dict[str, object]:
        engine = deploy(
            "llm",
            TransformerLLM,
            TransformerConfig(checkpoint, kv_bytes=64 * 2**20),
            contract="llm",
            max_batch=90_000,
            keeps_state=True,
        )
        async with asyncio.timeout(PATIENT), Runtime([engine], observers=[recorder]) as runtime:
            return dict(await runtime.run(readers_of(head), {"q": "it"}))

    outputs = asyncio.run(main())
    assert len(outputs) == NUM_READERS
    usages = [span.usage for span in recorder.spans]
    assert len(usages) == NUM_READERS + 1
    num_prompt = max(usage.num_prompt_tokens for usage in usages if usage is not None)
    assert num_prompt > 4440
    num_filled = sum(u.num_prompt_tokens - u.num_cached_tokens for u in usages if u is not None)
    assert 4440 < num_filled < 4440 + NUM_READERS * 60
