"""An immutable picture of what a system is doing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueryPicture:
    """One query: a session, or one that runs a single graph.

    `num_nodes` are the steps still to end, `open_variables` the outputs and variables still to come.
    """

    query: str
    tenant: str
    is_session: bool
    num_nodes: int
    open_variables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EnginePicture:
    """One engine: items that wait in its queue, and tasks that each of its instances runs."""

    engine: str
    num_waiting: int
    num_running: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All queries, in order of arrival, and all engines."""

    queries: tuple[QueryPicture, ...]
    engines: tuple[EnginePicture, ...]
