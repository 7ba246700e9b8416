"""The same tiny workload on several orchestrators, each written as its documentation teaches.

The workload: node after node in a chain of 10, then 10 nodes side by side. Each adds 1 to what it gets, so
each run can be checked and the nodes themselves cost nothing. One file per system.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Protocol, TypeAlias

CHAIN = 10
FAN_OUT = 10
NUM_NODES = CHAIN + FAN_OUT
EXPECTED = [CHAIN + 1] * FAN_OUT

RunOnce: TypeAlias = Callable[[], Awaitable[list[int]]]
"""Run the workload once from the input 0; returns what each of the 10 nodes side by side has."""


class PeerModule(Protocol):
    """What each file offers."""

    def open_runner(self) -> AbstractAsyncContextManager[RunOnce]:
        """Everything that is set up once, before the first run."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """A system: its package (None: nothing to install) and the file that speaks to it."""

    name: str
    module: str
    package: str | None = None
    note: str = ""

    def load(self) -> PeerModule | None:
        """Its module; None when it, or something it needs, is not installed."""
        try:
            return import_module(self.module)
        except ImportError:
            return None

    def version(self) -> str:
        """The installed version."""
        try:
            return metadata.version(self.package) if self.package else ""
        except metadata.PackageNotFoundError:
            return ""


PEERS = (
    Peer(
        "asyncio tasks", "benchmarks.overhead.peers.bare_asyncio", note="the floor: no graph, no schedulers"
    ),
    Peer("stretto", "benchmarks.overhead.peers.ours", "stretto"),
    Peer("stretto, traced", "benchmarks.overhead.peers.ours_traced", "stretto", "with a Recorder"),
    Peer("Haystack", "benchmarks.overhead.peers.haystack_pipeline", "haystack-ai"),
    Peer("LangGraph", "benchmarks.overhead.peers.langgraph_graph", "langgraph"),
    Peer(
        "LlamaIndex workflows",
        "benchmarks.overhead.peers.llama_index_workflow",
        "llama-index-workflows",
        "its start step and the 10 calls of the collecting step are not counted as nodes",
    ),
)
