"""The loads of the benchmark: short and long calls, many in a request, a long chain, many sessions."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.service.client import Connection

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SUBMIT, _GET = "/v1/submit", "/v1/get"


@dataclass(frozen=True, slots=True)
class Form:
    """A form of calls: a prompt, and the values of its inputs."""

    prompt: str = "Say {{x}}: {{y}}"
    values: Mapping[str, str] = field(default_factory=lambda: {"x": "hello"})

    def call(self, output: str) -> dict[str, Any]:
        """Return a call that makes a variable."""
        places = [{"name": name, "in_out": False, "value": value} for name, value in self.values.items()]
        return {
            "prompt": self.prompt,
            "placeholders": [*places, {"name": "y", "in_out": True, "semantic_var_id": output}],
        }


FORMS: Mapping[str, Form] = {
    "short": Form(),
    "prefix of 12 kB": Form("a b c " * 2000 + "{{x}}: {{y}}"),
    "input of 87 kB": Form(values={"x": "word " * 17_400}),
    "ten inputs": Form(
        " ".join(f"{{{{x{number}}}}}" for number in range(10)) + ": {{y}}",
        {f"x{number}": "hello" for number in range(10)},
    ),
}


@dataclass(frozen=True, slots=True)
class Process:
    """The process of a service."""

    pid: int

    def cpu_s(self) -> float:
        """Return the seconds of processor time that all its threads have spent."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(path.read_text().split()[0]) for path in tasks) / 1e9

    def memory_bytes(self) -> int:
        """Return the bytes of main memory that it holds."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_BYTES


async def opened(connection: Connection) -> str:
    """Open a session and return its id."""
    answer = await connection.ask_json("/v1/sessions", {})
    session: str = answer["session_id"]
    return session


async def submit(connection: Connection, session: str, **body: Any) -> None:
    """Send a request of calls, values and the like."""
    await connection.ask(_SUBMIT, json.dumps({"session_id": session, **body}).encode())


async def get(connection: Connection, session: str, name: str, **more: Any) -> object:
    """Wait for a variable and return its value."""
    body = {"session_id": session, "semantic_var_id": name, **more}
    return (await connection.ask_json(_GET, body))["value"]


async def calls_one_by_one(port: int, form: Form, num: int, num_connections: int) -> None:
    """Submit calls and get their outputs, one at a time on each connection, in a session of its own."""

    async def run(connection: Connection) -> None:
        session = await opened(connection)
        for number in range(num // num_connections):
            await submit(connection, session, calls=[form.call(f"y{number}")])
            await get(connection, session, f"y{number}")
        connection.close()

    connections = [await Connection.to(port) for _ in range(num_connections)]
    await asyncio.gather(*map(run, connections))


async def calls_together(port: int, num_requests: int, width: int) -> None:
    """Submit requests of many calls each, and get the list of their outputs."""
    connection = await Connection.to(port)
    session = await opened(connection)
    for request in range(num_requests):
        names = [f"y{request}.{number}" for number in range(width)]
        items = [
            {"name": f"item{place}", "in_out": False, "semantic_var_id": name}
            for place, name in enumerate(names)
        ]
        made = {"name": "gather", "in_out": True, "semantic_var_id": f"all{request}"}
        gather = {"operator": "gather", "placeholders": [*items, made]}
        await submit(connection, session, calls=[*(Form().call(name) for name in names), gather])
        found = await get(connection, session, f"all{request}")
        assert isinstance(found, list)
        assert len(found) == width
    connection.close()


async def chain(port: int, length: int, step: int, cpu_s: Callable[[], float]) -> tuple[list[float], float]:
    """Submit a chain of calls, each of which reads what the one before makes, before the first can run; then
    ask for its end, and let it run.

    Returns the seconds of processor time of each `step` calls, and of the asking.
    """
    connection = await Connection.to(port)
    session = await opened(connection)
    seconds = []
    before_s = cpu_s()
    for number in range(length):
        places = [
            {"name": "x", "in_out": False, "semantic_var_id": f"v{number}"},
            {"name": "y", "in_out": True, "semantic_var_id": f"v{number + 1}"},
        ]
        await submit(connection, session, calls=[{"prompt": "{{x}} {{y}}", "placeholders": places}])
        if (number + 1) % step == 0:
            seconds.append(cpu_s() - before_s)
            before_s = cpu_s()
    await submit(connection, session, wanted={f"v{length}": "throughput"})
    before_s = cpu_s()
    await submit(connection, session, wanted={f"v{length}": "latency"})
    asking_s = cpu_s() - before_s
    await submit(connection, session, values={"v0": "begin"})
    while True:
        try:
            await get(connection, session, f"v{length}", criteria="latency")
            break
        except RuntimeError as error:
            if "status 408" not in str(error):
                raise
    connection.close()
    return seconds, asking_s


async def open_sessions(port: int, num: int) -> None:
    """Open sessions, and leave them open."""
    connection = await Connection.to(port)
    for _ in range(num):
        await opened(connection)
    connection.close()


async def calls_of_one_session(
    port: int, num: int, width: int, *, are_dropped: bool, look: Callable[[], None] = lambda: None
) -> None:
    """Submit calls in one session, many together, and wait for each request's last one; `are_dropped` says
    whether their outputs are given up then. `look` is called after each request.
    """
    connection = await Connection.to(port)
    session = await opened(connection)
    for request in range(num // width):
        names = [f"y{request}.{number}" for number in range(width)]
        await submit(connection, session, calls=[Form().call(name) for name in names])
        for name in names[-1:]:
            await get(connection, session, name)
        if are_dropped:
            await submit(connection, session, dropped=names)
        look()
    connection.close()
