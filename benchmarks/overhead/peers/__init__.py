"""The same tiny workload on several orchestrators, each written as its documentation recommends.

The workload is a chain of 10 nodes, then 10 parallel nodes. Each node adds 1 to its input, so that each run
can be checked and the nodes themselves take no time. There is one file for each system.
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
"""Function that runs the workload once from the input 0; returns the values of the 10 parallel nodes."""


class PeerModule(Protocol):
    """Interface of each file."""

    def open_runner(self) -> AbstractAsyncContextManager[RunOnce]:
        """Set up the system before the first run."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """A system: its package (None if nothing must be installed), and the module that runs the workload on
    it."""

    name: str
    module: str
    package: str | None = None
    note: str = ""

    def load(self) -> PeerModule | None:
        """Import the peer's module; None if it, or something it needs, is not installed."""
        try:
            return import_module(self.module)
        except ImportError:
            return None

    def version(self) -> str:
        """Installed version of the package."""
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
