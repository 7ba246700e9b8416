"""Queries for real under each scheme: one after the other, and as they arrive.

Whatever is asked is asked of every scheme. A round is some queries with questions of their own, of a tenant
of its own: what a cache holds is what earlier queries of the same round and scheme have left there.
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
from benchmarks.rag.hand_written.programs import Program
from benchmarks.rag.hand_written.servers import serving
from benchmarks.teola.schemes import HAND_WRITTEN, Scheme
from benchmarks.teola.workload import templates
from stretto.core import Document, Hit
from stretto.engine import Engine
from stretto.runtime.runtime import Runtime

_KV_BYTES = 256 * 2**20
"""Of each LLM: more than a round leaves."""

Ask: TypeAlias = Callable[[str, str, str], Awaitable[Mapping[str, object]]]
"""From an app, a question and a tenant to the outputs."""


@dataclass(slots=True)
class Timed:
    """What a scheme took for each query, and what it answered, in the order of the queries."""

    seconds: list[float] = field(default_factory=list)
    outputs: list[object] = field(default_factory=list)

    def add(self, other: Timed) -> None:
        """Further queries."""
        self.seconds += other.seconds
        self.outputs += other.outputs


async def asking(
    stack: AsyncExitStack, scheme: Scheme, checkpoint: Path, documents: list[Document], answer_tokens: int
) -> Ask:
    """Engines of its own for a scheme, which go with the stack, and how to ask them."""
    from stretto.engines.transformer.engine import TransformerConfig

    config = TransformerConfig(checkpoint, kv_bytes=_KV_BYTES, keeps_released=scheme.caches)
    engines = scripted_engines(scheme, config, documents)
    if scheme.name == HAND_WRITTEN:
        return await _by_hand(stack, engines, documents, answer_tokens)
    return await _in_runtime(stack, scheme, engines, documents, answer_tokens)


async def _in_runtime(
    stack: AsyncExitStack,
    scheme: Scheme,
    engines: list[Engine],
    documents: list[Document],
    answer_tokens: int,
) -> Ask:
    runtime = await stack.enter_async_context(Runtime(engines))
    plans = {
        app: runtime.plan_cache.plan(template, configuration(app, answer_tokens), scheme.passes)
        for app, template in templates().items()
    }

    async def ask(app: str, question: str, tenant: str) -> Mapping[str, object]:
        return await runtime.run(plans[app], inputs_of(app, question, documents), tenant=tenant)

    return ask


async def _by_hand(
    stack: AsyncExitStack, engines: list[Engine], documents: list[Document], answer_tokens: int
) -> Ask:
    servers = await stack.enter_async_context(serving(engines))
    numbers = count()
    batch = next(engine for engine in engines if engine.name == "embedding").batch_units

    async def ask(app: str, question: str, tenant: str) -> Mapping[str, object]:
        query = f"q{next(numbers)}"
        program = Program(servers, query, answer_tokens, batch, tenant)
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
    """Each question of every scheme, schemes in turn."""
    timed = {name: Timed() for name in asks}
    for number, question in enumerate(questions):
        for name in _in_turn(list(asks), number):
            await _time(asks[name], app, question, tenant, timed[name])
    return timed


async def as_they_arrive(
    asks: Mapping[str, Ask], app: str, questions: Sequence[str], tenant: str, gap_s: float, number: int
) -> dict[str, Timed]:
    """All questions of one scheme, at random times `gap_s` apart on the average; then of the next.

    `number` is the round's: another order, other times.
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
