"""A service whose engines answer at once, as a process of its own: it prints its port, and runs until killed.

python -m benchmarks.service.server [--tokenizer]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence

import uvloop

from benchmarks.common.mini_model import MINI
from stretto.cluster.kv_events import KVEvent
from stretto.cluster.prompt_keys import PromptSpace, token_space
from stretto.engines.catalogue import transforms_engine
from stretto.engines.prompt_tokens import PromptTokenizer
from stretto.http.collector import spare_collector
from stretto.model.deployment import deploy
from stretto.model.tasks import Done, LLMEvent, LLMTask
from stretto.runtime.runtime import Runtime
from stretto.service.config import Limits, ServiceConfig
from stretto.service.service import Service

ANSWER = "ok"


class AtOnce:
    """An LLM that answers at once, whatever it is asked."""

    def __init__(self, config: None) -> None: ...

    async def start(self) -> None: ...

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        """Answer."""
        emit(Done(task.id, None if task.decode is None else ANSWER))

    def written(self, task: int) -> tuple[int, ...]:
        """Return nothing: no task runs for any time."""
        return ()

    async def watch(self, report: Callable[[Sequence[KVEvent]], None]) -> None:
        """Report nothing."""
        await asyncio.Event().wait()

    async def probe(self) -> None: ...

    async def aclose(self) -> None: ...


class AtOnceWithTokens(AtOnce):
    """The same with a tokenizer beside it: the scheduler looks prompts up in the cache by their tokens."""

    @staticmethod
    def prompt_space(config: None) -> PromptSpace:
        """Return how prompts are cut into blocks of tokens: those of the small model that ships."""
        return token_space("mini", 16, PromptTokenizer(MINI).encode)


async def _serve(executable: type[AtOnce]) -> None:
    llm = deploy("llm", executable, None, contract="llm", runs_in="loop", max_running=256)
    config = ServiceConfig(port=0, limits=Limits(sessions=10_000_000, variables=10_000_000, width=10_000_000))
    async with (
        Runtime([llm, transforms_engine()], max_queries=10_000) as runtime,
        Service(runtime, config) as service,
    ):
        print(service.url.rsplit(":", 1)[1], flush=True)
        spare_collector()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(AtOnceWithTokens if "--tokenizer" in sys.argv[1:] else AtOnce))
