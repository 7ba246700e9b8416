"""The conditions by which a runtime weighs passes: where its engines compute, and what else is running."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from stretto.apps import search_empowered
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.model.deployment import Deployment, deploy
from stretto.model.profile import Profile
from stretto.runtime.conditions import idle_conditions
from stretto.runtime.runtime import Runtime
from stretto.trace.recorder import Recorder

LLM = Profile(0.004, 0.00013, 1, per_output_s=0.004)


@dataclass(frozen=True)
class Settings:
    num_threads: int | None = None
    device: str | None = None
    url: str | None = None


class Yes(ScriptedLLM):
    def __init__(self, config: object) -> None:
        super().__init__(lambda task, decode: "yes", max_running=1)


def engines() -> list[Deployment]:
    web = deploy("web", FakeBatch, FakeBatchConfig(), profile=Profile(0.3))
    llms = [deploy(name, Yes, contract="llm", keeps_state=True, profile=LLM) for name in ("llm", "llm_small")]
    return [web, *llms]


def test_engines_on_this_machine_share_its_cores() -> None:
    def engine(name: str, **settings: object) -> Deployment:
        return deploy(name, FakeBatch, Settings(**settings))  # type: ignore[arg-type]

    found = idle_conditions(
        [
            engine("all_cores"),
            engine("one", num_threads=1),
            engine("too_many", num_threads=99),
            engine("accelerator", device="cuda:0"),
            engine("server", url="http://127.0.0.1:1"),
            deploy("plain", FakeBatch, None, instances=3, profile=LLM),
            deploy("confined", FakeBatch, None, runs_in="process", threads=2),
            deploy("loop", FakeBatch, None, runs_in="loop"),
        ],
        cores=4,
    )
    assert found.threads == {"all_cores": 4, "one": 1, "too_many": 4, "plain": 1, "confined": 2}
    assert found.cores == 4
    assert found.instances["plain"] == 3
    assert found.profiles["plain"] == LLM
    assert found.num_others == 0


def test_a_model_that_takes_an_accelerator_where_there_is_one_takes_no_core_there() -> None:
    auto = deploy("auto", FakeBatch, Settings(device="auto"))
    claimed = deploy("claimed", FakeBatch, Settings(device="auto"), runs_in="process", devices=("cpu:1",))
    for has_accelerator, threads in ((True, {"claimed": 4}), (False, {"auto": 4, "claimed": 4})):
        found = idle_conditions([auto, claimed], 4, lambda there=has_accelerator: there)  # type: ignore[misc]
        assert found.threads == threads


def test_a_runtime_leaves_more_out_while_other_queries_run() -> None:
    """Prefills ahead save little in this app: they are made for a query alone, and not beside others."""

    async def run(num_queries: int) -> list[bool]:
        recorder = Recorder()
        async with Runtime(engines(), observers=[recorder]) as runtime:
            asked = [runtime.run(search_empowered(), {"question": f"what? {n}"}) for n in range(num_queries)]
            await asyncio.gather(*asked)
        return [
            all(verdict.is_kept for verdict in query.verdicts if verdict.name == "split_prefill")
            for query in recorder.queries.values()
        ]

    assert asyncio.run(run(1)) == [True]
    assert asyncio.run(run(3)) == [True, False, False]
