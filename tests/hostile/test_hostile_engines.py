"""Kills in mid-decode, faulty servers, storms of cancels and engines that answer nonsense.

`make hostile-tests` runs this folder, with the figures shown. Whatever happens to some queries, each ends
once, with a typed error where it fails, and others are answered.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from support.hostile import SERVER_FAULTS, SlowFakeLLM, show
from support.openai_stub import OpenAIStub, Reply
from support.runtime_engines import COMPLETE, SHOUT, acting

from benchmarks.common.fake_engines import FakeLLMConfig
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.model.deployment import deploy
from stretto.model.errors import QueryEnded, StrettoError
from stretto.runtime.runtime import Runtime

pytest_plugins = ("support.llm_fixtures",)


@pytest.mark.timeout(600)  # each kill starts a process
@pytest.mark.parametrize("num_kills", [3, pytest.param(12, marks=pytest.mark.long)])
def test_kills_in_mid_decode_lose_no_query(num_kills: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Each attempt may meet one kill, and there are fewer kills than attempts."""
    num_queries = 16

    async def main() -> tuple[int, int, float]:
        engine = deploy(
            "llm", SlowFakeLLM, FakeLLMConfig(), contract="llm", runs_in="process", max_attempts=20
        )
        async with Runtime([engine]) as runtime:
            texts = [f"text {number}" for number in range(num_queries)]
            alone = [await runtime.run(COMPLETE, {"text": text}) for text in texts]
            num_lost = num_killed = 0
            longest_s = 0.0
            for _ in range(num_kills):
                begun_s = time.monotonic()
                queries = [await runtime.submit(COMPLETE, {"text": text}) for text in texts]
                stream = queries[0].stream("answer")
                await anext(stream)
                for child in multiprocessing.active_children():
                    child.kill()
                    num_killed += 1
                ends = await asyncio.gather(*queries, return_exceptions=True)
                num_lost += sum(end != right for end, right in zip(ends, alone, strict=True))
                longest_s = max(longest_s, time.monotonic() - begun_s)
            assert runtime.system.is_idle()
            return num_killed, num_lost, longest_s

    num_killed, num_lost, longest_s = asyncio.run(main())
    show(
        capsys,
        "kills",
        processes=num_killed,
        queries=num_kills * num_queries,
        lost=num_lost,
        longest=f"{longest_s:.1f} s",
    )
    assert num_killed >= num_kills
    assert num_lost == 0


@pytest.mark.long
def test_every_fault_of_a_server_ends_its_query_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    good = Reply((" so", " it", " is."))

    async def one(mode: Reply) -> tuple[str, bool]:
        def answer(body: object) -> Reply:
            return mode if isinstance(body, dict) and "bad" in str(body["prompt"]) else good

        async with OpenAIStub(answer) as stub:
            config = OpenAIServerConfig(
                stub.url, api="completions", timeout_s=0.3, backoff_s=0.01, max_backoff_s=0.05
            )
            engine = deploy("llm", OpenAIServer, config, contract="llm", runs_in="loop")
            async with asyncio.timeout(100), Runtime([engine]) as runtime:
                bad = await runtime.submit(COMPLETE, {"text": "bad"}, deadline_s=10)
                other = await runtime.submit(COMPLETE, {"text": "fine"}, deadline_s=20)
                (end,) = await asyncio.gather(bad, return_exceptions=True)
                assert isinstance(end, StrettoError | dict) or hasattr(end, "keys"), repr(end)
                is_fine = (await other)["answer"] == "so it is."
                return type(end).__name__ if isinstance(end, BaseException) else "answered", is_fine

    ends: Counter[str] = Counter()
    for name, mode in SERVER_FAULTS.items():
        end, is_fine = asyncio.run(one(mode))
        assert is_fine, name
        assert end != "InternalError", name
        ends[end] += 1
    show(capsys, "faults of a server", modes=len(SERVER_FAULTS), **dict(ends))


def test_after_a_storm_of_cancels_every_block_is_back(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[TransformerLLM] = []
    random = Random(3)

    def keep(config: TransformerConfig) -> TransformerLLM:
        made.append(TransformerLLM(config))
        return made[-1]

    async def main() -> Counter[str]:
        ends: Counter[str] = Counter()
        async with Runtime(
            [deploy("llm", keep, TransformerConfig(tiny_checkpoint), contract="llm")]
        ) as runtime:

            async def one(number: int) -> None:
                query = await runtime.submit(COMPLETE, {"text": f"text {number % 7}"})
                await asyncio.sleep(random.random() / 4)
                query.cancel()
                (end,) = await asyncio.gather(query, return_exceptions=True)
                ends["cancelled" if isinstance(end, QueryEnded) else "answered"] += 1

            for start in range(0, 120, 60):
                await asyncio.gather(*(one(start + number) for number in range(60)))
            assert (await runtime.run(COMPLETE, {"text": "x"}))["answer"] is not None
            assert runtime.system.is_idle()
        return ends

    ends = asyncio.run(main())
    cache = made[0].scheduler.cache
    num_back, num_blocks = (
        cache.num_available,
        cache.pool.num_blocks,
    )  # free, or cached for nobody in particular
    show(capsys, "cancels", **dict(ends), blocks_back=f"{num_back} of {num_blocks}")
    assert ends.total() == 120
    assert num_back == num_blocks


@pytest.mark.timeout(600)
@pytest.mark.parametrize("runs_in", ["thread", "process"])
def test_nonsense_from_an_engine_fails_its_query_alone(
    runs_in: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = ["raise", "none", "short", "no list", "unavailable", "exit", "lambda", "poison", "huge"]

    async def main() -> Counter[str]:
        ends: Counter[str] = Counter()
        async with asyncio.timeout(500), Runtime([acting(runs_in=runs_in, instances=2)]) as runtime:
            for kind in kinds:
                bad = await runtime.submit(SHOUT, {"text": kind})
                others = [await runtime.submit(SHOUT, {"text": f"text {number}"}) for number in range(4)]
                (end,) = await asyncio.gather(bad, return_exceptions=True)
                ends[type(end).__name__ if isinstance(end, StrettoError) else "answered"] += 1
                assert isinstance(end, StrettoError) or not isinstance(end, BaseException), repr(end)
                for number, other in enumerate(others):
                    assert (await other)["loud"] == f"TEXT {number}", kind
            assert runtime.system.is_idle()
        return ends

    show(capsys, f"nonsense in a {runs_in}", kinds=len(kinds), **dict(asyncio.run(main())))
