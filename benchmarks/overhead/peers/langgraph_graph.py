"""LangGraph: a `StateGraph` with a reducer for the results of the parallel nodes, run with `ainvoke`."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from benchmarks.overhead.peers import CHAIN, FAN_OUT, RunOnce


class PeerState(TypedDict):
    """State of a run: `value` along the chain, `results` of the parallel nodes."""

    value: int
    results: Annotated[list[int], operator.add]


async def _chain(state: PeerState) -> dict[str, int]:
    return {"value": state["value"] + 1}


async def _side(state: PeerState) -> dict[str, list[int]]:
    return {"results": [state["value"] + 1]}


def compiled() -> Any:
    """Build the chain and the fan-out."""
    graph = StateGraph(PeerState)
    before = START
    for place in range(CHAIN):
        graph.add_node(f"chain{place}", _chain)
        graph.add_edge(before, f"chain{place}")
        before = f"chain{place}"
    for place in range(FAN_OUT):
        graph.add_node(f"side{place}", _side)
        graph.add_edge(before, f"side{place}")
        graph.add_edge(f"side{place}", END)
    return graph.compile()


@asynccontextmanager
async def open_runner() -> AsyncIterator[RunOnce]:
    """Compile the graph once."""
    graph = compiled()

    async def run_once() -> list[int]:
        state = await graph.ainvoke({"value": 0, "results": []})
        results: list[int] = state["results"]
        return results

    yield run_once
