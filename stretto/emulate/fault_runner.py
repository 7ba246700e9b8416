"""Lets faults happen to one emulated server: each begins and ends at its time."""

from __future__ import annotations

import asyncio
from typing import Protocol

from stretto.emulate.app import CONTROL, HandlerTable
from stretto.emulate.faults import ServerFault, read_fault
from stretto.emulate.gate import Gate
from stretto.http.request import HttpRequest
from stretto.wire.fields import read_body


class Failing(Protocol):
    """The interface of what faults happen to."""

    def slow_down(self, factor: float) -> None:
        """Let each step that begins from now on take `factor` times its predicted time."""
        ...

    def die(self, *, for_good: bool) -> None:
        """Break all connections, refuse further ones, and forget everything."""
        ...

    async def load(self) -> None:
        """Start again: wait for the loading time, then begin to answer."""
        ...

    def disturb_events(self, delay_s: float, lost_share: float) -> None:
        """Let KV events come late, and a share of them never."""
        ...


class FaultRunner:
    """The faults of one emulated server: requested over HTTP or by `request`.

    Args:
        server: what they happen to.
        gate: the way to its clients.
    """

    def __init__(self, server: Failing, gate: Gate) -> None:
        self._server = server
        self._gate = gate
        self._tasks: dict[asyncio.Task[None], ServerFault] = {}
        self._active: list[ServerFault] = []
        path = f"{CONTROL[1:]}faults"
        self.table: HandlerTable = {
            ("GET", path): self._tell,
            ("POST", path): self._take,
            ("DELETE", path): self._drop,
        }

    def request(self, fault: ServerFault) -> None:
        """Let a fault happen at its time."""
        task = asyncio.get_running_loop().create_task(self._happen(fault))
        self._tasks[task] = fault
        task.add_done_callback(self._tasks.pop)

    async def close(self) -> None:
        """End all faults."""
        await _cancel(list(self._tasks))

    async def _happen(self, fault: ServerFault) -> None:
        await asyncio.sleep(fault.after_s)
        self._active.append(fault)
        try:
            self._begin(fault)
            if fault.kind == "restart":
                await asyncio.sleep(fault.for_s or 0.0)
                await self._server.load()
            elif fault.for_s is None:
                await asyncio.Event().wait()
            else:
                await asyncio.sleep(fault.for_s)
        finally:
            self._active.remove(fault)
            self._end(fault)
            for other in self._active:
                if other.kind not in ("die", "restart"):
                    self._begin(other)  # what has ended may have been of the same kind

    def _begin(self, fault: ServerFault) -> None:
        match fault.kind:
            case "slow":
                self._server.slow_down(fault.factor)
            case "hang":
                self._gate.hang()
            case "refuse":
                self._gate.refuses, self._gate.status = True, fault.status
            case "die" | "restart":
                self._server.die(for_good=fault.kind == "die")
            case "late_events" | "lost_events":
                self._disturb_events()

    def _end(self, fault: ServerFault) -> None:
        match fault.kind:
            case "slow":
                self._server.slow_down(1.0)
            case "hang":
                self._gate.go_on()
            case "refuse":
                self._gate.refuses = False
            case "late_events" | "lost_events":
                self._disturb_events()

    def _disturb_events(self) -> None:
        """Let KV events be as the active faults want them: of each kind, the one that began last."""
        delay_s = lost_share = 0.0
        for fault in self._active:
            if fault.kind == "late_events":
                delay_s = fault.delay_s
            elif fault.kind == "lost_events":
                lost_share = fault.share
        self._server.disturb_events(delay_s, lost_share)

    async def _take(self, request: HttpRequest) -> None:
        fault = read_fault(read_body(await request.body()))
        await request.answer_json(fault.to_json())
        self.request(fault)

    async def _tell(self, request: HttpRequest) -> None:
        await request.answer_json({"faults": [fault.to_json() for fault in self._active]})

    async def _drop(self, request: HttpRequest) -> None:
        """End all faults, also those to come. A restart that is under way goes on."""
        under_way = {id(fault) for fault in self._active if fault.kind == "restart"}
        await _cancel([task for task, fault in self._tasks.items() if id(fault) not in under_way])
        await request.answer_json({"faults": [fault.to_json() for fault in self._active]})


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
