"""Recordings of runs in virtual time."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from stretto.graph.compile import compile_graph
from stretto.model.deployment import deploy
from stretto.model.tasks import Task
from stretto.model.values import Document, Section
from stretto.sim.driver import VirtualDriver
from support.worked_example import PROFILES, e_graph


def driver(
    num_queries: int, *, fail_on: Callable[[Task], BaseException | None] | None = None
) -> VirtualDriver:
    """Queries `q0`, `q1`… of the worked example, 0.2 s apart; not yet run. `fail_on` is of the reranker."""
    engines = [
        deploy("cpu", FakeBatch, FakeBatchConfig(), profile=PROFILES["cpu"]),
        deploy("embedding", FakeBatch, FakeBatchConfig(), profile=PROFILES["embedding"]),
        deploy("vectors", FakeBatch, FakeBatchConfig(), profile=PROFILES["vectors"], keeps_state=True),
        deploy("rerank", FakeBatch, FakeBatchConfig(fail_on), profile=PROFILES["rerank"]),
        deploy(
            "llm",
            FakeLLM,
            FakeLLMConfig(),
            contract="llm",
            instances=2,
            profile=PROFILES["llm"],
            timeout_s=30,
        ),
    ]
    made = VirtualDriver(engines, seed=1, jitter=0.2, check=True)
    egraph = compile_graph(e_graph(), PROFILES)
    for number in range(num_queries):
        words = " ".join(f"word{number}-{i}" for i in range(8 * 300))
        inputs = {"question": f"question {number}?", "files": [Document("f.txt", (Section(words),), "00")]}
        made.submit(f"q{number}", egraph, inputs, at_s=0.2 * number)
    return made
