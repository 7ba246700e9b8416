"""Runs queries on real engines under each scheme: one after the other, and at random times.

Every scheme gets the same questions. A round consists of queries with new questions and a new tenant, so that
a cache holds only what earlier queries of the same round and scheme left there.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TypeAlias

from benchmarks.common.scripted_apps import configuration, inputs_of, scripted_engines
from benchmarks.rag.hand_written.programs import HandWrittenProgram
from benchmarks.rag.hand_written.servers import batch_units, serving
from benchmarks.teola.schemes import HAND_WRITTEN, Scheme
from benchmarks.teola.workload import templates
from stretto.model.deployment import Deployment
from stretto.model.values import Document, Hit
from stretto.runtime.runtime import Runtime

_KV_BYTES = 256 * 2**20
"""KV memory of each LLM in bytes: more than a round needs."""

Ask: TypeAlias = Callable[[str, str, str], Awaitable[Mapping[str, object]]]
"""Function that asks (app, question, tenant) and returns the outputs."""


@dataclass(slots=True)
class Timed:
    """Seconds and outputs of a scheme, in the order of the queries."""

    seconds: list[float] = field(default_factory=list)
    outputs: list[object] = field(default_factory=list)

    def add(self, other: Timed) -> None:
        """Add the results of further queries."""
        self.seconds += other.seconds
        self.outputs += other.outputs


async def asking(
    stack: AsyncExitStack, scheme: Scheme, checkpoint: Path, documents: list[Document], answer_tokens: int
) -> Ask:
    """Start separate engines for a scheme, which end with the stack; returns the function to ask them."""
    from stretto.engines.transformer.engine_config import TransformerConfig

    config = TransformerConfig(checkpoint, kv_bytes=_KV_BYTES, keeps_released=scheme.caches)
    engines = scripted_engines(scheme, config, documents)
    if scheme.name == HAND_WRITTEN:
        return await _by_hand(stack, engines, documents, answer_tokens)
    return await _in_runtime(stack, scheme, engines, documents, answer_tokens)


async def _in_runtime(
    stack: AsyncExitStack,
    scheme: Scheme,
    engines: list[Deployment],
    documents: list[Document],
    answer_tokens: int,
) -> Ask:
    runtime = await stack.enter_async_context(Runtime(engines))
    apps = templates()

    async def ask(app: str, question: str, tenant: str) -> Mapping[str, object]:
        return await runtime.run(
            apps[app],
            inputs_of(app, question, documents),
            configuration=configuration(app, answer_tokens),
            passes=scheme.passes,
            tenant=tenant,
        )

    return ask


async def _by_hand(
    stack: AsyncExitStack, engines: list[Deployment], documents: list[Document], answer_tokens: int
) -> Ask:
    servers = await stack.enter_async_context(serving(engines))
    numbers = count()
    batch = next(batch_units(engine) for engine in engines if engine.name == "embedding")

    async def ask(app: str, question: str, tenant: str) -> Mapping[str, object]:
        query = f"q{next(numbers)}"
        program = HandWrittenProgram(servers, query, answer_tokens, batch, tenant)
        try:
            if app == "search":
                return await program.search(question)
            return await (program.naive if app == "naive" else program.advanced)(question, documents)
        finally:
            await servers.end(query)

    return ask


async def one_by_one(
    asks: Mapping[str, Ask], app: str, questions: Sequence[str], tenant: str
) -> dict[str, Timed]:
    """Ask each question under every scheme, schemes in turn."""
    timed = {name: Timed() for name in asks}
    for number, question in enumerate(questions):
        for name in _in_turn(list(asks), number):
            await _time(asks[name], app, question, tenant, timed[name])
    return timed


async def as_they_arrive(
    asks: Mapping[str, Ask], app: str, questions: Sequence[str], tenant: str, gap_s: float, number: int
) -> dict[str, Timed]:
    """Ask all questions under one scheme, at random times with a mean distance of `gap_s`, then under the
    next.

    `number` is that of the round, which gives another order and other times.
    """
    generator = random.Random(f"{tenant}/{number}")
    gaps_s = [generator.expovariate(1 / gap_s) for _ in questions]
    timed = {}
    for name in _in_turn(list(asks), number):
        own = [Timed() for _ in questions]
        async with asyncio.TaskGroup() as group:
            for question, one, wait_s in zip(questions, own, gaps_s, strict=True):
                group.create_task(_time(asks[name], app, question, tenant, one))
                await asyncio.sleep(wait_s)
        timed[name] = Timed()
        for one in own:
            timed[name].add(one)
    return {name: timed[name] for name in asks}


def _in_turn(names: list[str], number: int) -> list[str]:
    start = number % len(names)
    return names[start:] + names[:start]


async def _time(ask: Ask, app: str, question: str, tenant: str, timed: Timed) -> None:
    start_s = time.perf_counter()
    outputs = await ask(app, question, tenant)
    timed.seconds.append(time.perf_counter() - start_s)
    sources = outputs["sources"]
    hits = sources if isinstance(sources, list) else []
    places = [(hit.chunk.source, hit.chunk.index) for hit in hits if isinstance(hit, Hit)]
    timed.outputs.append((outputs["answer"], places))
