"""Bare asyncio tasks: the least cost of any orchestrator in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.overhead.peers import CHAIN, FAN_OUT, RunOnce


async def _node(value: int) -> int:
    return value + 1


@asynccontextmanager
async def open_runner() -> AsyncIterator[RunOnce]:
    """Return the workload; there is nothing to set up."""

    async def run_once() -> list[int]:
        value = 0
        for _ in range(CHAIN):
            value = await asyncio.create_task(_node(value))
        return list(await asyncio.gather(*(asyncio.create_task(_node(value)) for _ in range(FAN_OUT))))

    yield run_once
