"""The judge's servers as emulated ones, which answer in real time over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import httpx

from benchmarks.emulate.servers import Measured, serving
from benchmarks.programs.real.script import KnownReplies
from benchmarks.programs.simulated import JudgedServers
from stretto.emulate.fleet import PlannedFleet
from stretto.emulate.llm_plan import PlannedLLM

MAX_LAG = 0.05
_CONTEXT_TOKENS = 32_768
"""Longest context: longer than the model's own, as that of a simulated server."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How late servers were.

    Attributes:
        share: lateness of answers, as a share of the time that clients waited for them.
        slipped_s: seconds by which their clock fell behind for good.
    """

    share: float
    slipped_s: float


class RealServers:
    """Emulated servers that run: their addresses, the name of their model, and how late they are."""

    def __init__(self, model: str, measured: Measured) -> None:
        self.model = model
        self.urls = measured.urls
        self._measured = measured
        self._begun = measured.spent()

    def begin(self) -> None:
        """Let the lag count from now on."""
        self._begun = self._measured.spent()

    @property
    def lag(self) -> Lag:
        """How late the servers were since `begin`."""
        spent, begun = self._measured.spent(), self._begun
        waited_s = spent.waited_s - begun.waited_s
        late_s = spent.late_s - begun.late_s
        return Lag(late_s / waited_s if waited_s else 0.0, spent.slipped_s - begun.slipped_s)


@contextmanager
def running(planned: PlannedFleet) -> Iterator[RealServers]:
    """Context with the LLM servers of a fleet in a process of their own, each of which has answered one short
    request.
    """
    service = planned.servers[0].service
    assert isinstance(service, PlannedLLM)
    model = service.served.name
    with serving(planned) as measured:
        for url in measured.urls:
            request = {"model": model, "prompt": "Good morning.", "max_tokens": 1}
            httpx.post(f"{url}/v1/completions", json=request).raise_for_status()
        yield RealServers(model, measured)


def planned_fleet(servers: JudgedServers, replies: Mapping[str, str]) -> PlannedFleet:
    """Return the judge's LLM servers as they are emulated.

    Args:
        replies: replies to prompts, by the prompts' digests.
    """
    planned = servers.planned.fleet
    found = []
    for server in planned.servers[: servers.instances]:
        assert isinstance(server.service, PlannedLLM)
        served = replace(server.service.served, max_tokens=_CONTEXT_TOKENS, reply_to=KnownReplies(replies))
        found.append(replace(server, service=replace(server.service, served=served)))
    return replace(planned, servers=tuple(found))
