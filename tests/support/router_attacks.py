"""Attacks on a router or a service by its clients, over real connections, with the memory that it takes.

    PYTHONPATH=tests python -m support.router_attacks NAME [route | serve]

starts a worker in this process and a router (or a service with an engine that answers at once) in a process
of its own, runs an attack, and prints what came of it as JSON. Only 127.0.0.1 is used.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from support.routing import StubServer

_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_ROUTER = """
import sys
from pathlib import Path
from stretto.router.config_file import read_router_config
from stretto.router.serve import run_router
run_router(read_router_config(Path(sys.argv[1])), None, lambda line: print(line, flush=True))
"""
Attack = Callable[[int, StubServer], Awaitable[dict[str, object]]]


class _Watched:
    """A router's process, with the most memory that it has taken so far."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")

    def peak_mb(self) -> int:
        lines = self._status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) // 1000


async def _status(reader: asyncio.StreamReader, limit_s: float = 30.0) -> int:
    """Return the status of the next answer; 0 if there is none."""
    try:
        line = await asyncio.wait_for(reader.readline(), limit_s)
    except (TimeoutError, OSError):
        return 0
    return int(line.split()[1]) if line else 0


async def _send(writer: asyncio.StreamWriter, data: bytes, times: int) -> None:
    """Send data some times, or until the router takes no more."""
    try:
        for _ in range(times):
            writer.write(data)
            await asyncio.wait_for(writer.drain(), 10.0)
    except (TimeoutError, OSError):
        pass


async def unfinished_bodies(port: int, server: StubServer) -> dict[str, object]:
    """20 clients send all of a body of 60 MB but its last byte; then another one asks for a little."""
    return await _unfinished(port, 20, 60)


async def unfinished_documents(port: int, server: StubServer) -> dict[str, object]:
    """The same with 80 clients and bodies of 15 MB, as a service takes them."""
    return await _unfinished(port, 80, 15)


async def _unfinished(port: int, num: int, size_mb: int) -> dict[str, object]:
    head = _HEAD + b"Content-Length: %d\r\n\r\n" % (1_000_000 * size_mb + 1)

    async def one(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await _send(writer, b" " * 1_000_000, size_mb)

    clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(num)]
    await asyncio.gather(*(one(writer) for _, writer in clients))
    statuses = await asyncio.gather(*(_status(reader, 2.0) for reader, _ in clients))
    honest = await _ask(port)
    for _, writer in clients:
        writer.close()
    return {"statuses": sorted(set(statuses) - {0}), "refused": sum(map(bool, statuses)), "honest": honest}


async def pipelined_bodies(port: int, server: StubServer) -> dict[str, object]:
    """A client sends 30 bodies of 60 MB in a row while the worker does not answer the first."""
    server.mode = "waits"
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"prompt":"' + b"a" * 60_000_000 + b'"}'
    await _send(writer, _HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body, 30)
    server.mode = "well"
    honest = await _ask_models(port)
    server.go_on.set()
    writer.transport.abort()
    return {"honest": honest}


async def many_values(port: int, server: StubServer) -> dict[str, object]:
    """A client sends a body of 60 MB with 40 million empty lists."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"a":[' + b"[]," * 20_000_000 + b"0]}"
    writer.write(_HEAD + b"Content-Length: %d\r\n\r\n" % len(body))
    await _send(writer, body, 1)
    return {"status": await _status(reader, 60.0), "honest": await _ask(port)}


async def small_headers(port: int, server: StubServer) -> dict[str, object]:
    """100 clients send heads of 12,000 headers of one letter."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        writer.write(b"GET /health HTTP/1.1\r\n")
        await _send(writer, b"a:b\r\n" * 12_000, 1)
        return await _status(reader, 2.0)

    clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
    answers = await asyncio.gather(*(one(*client) for client in clients))
    return {"refused": sum(map(bool, answers)), "statuses": sorted(set(answers)), "honest": await _ask(port)}


async def unread_answers(port: int, server: StubServer) -> dict[str, object]:
    """200 clients ask for a flood of events and read nothing."""
    server.mode = "floods"
    body = b'{"prompt":"a","stream":true}'
    asked = _HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    clients = [await asyncio.open_connection("127.0.0.1", port, limit=1000) for _ in range(200)]
    for _, writer in clients:
        writer.write(asked)
    before, now = -1, 0
    while now != before:
        await asyncio.sleep(1.0)
        before, now = now, server.num_flooded
    server.mode = "well"
    honest = await _ask_models(port)
    for _, writer in clients:
        writer.transport.abort()
    return {"honest": honest}


ATTACKS: dict[str, Attack] = {
    one.__name__: one
    for one in (
        unfinished_bodies,
        unfinished_documents,
        pipelined_bodies,
        many_values,
        small_headers,
        unread_answers,
    )
}


async def _ask(port: int) -> int:
    """Return the status that a client gets which asks for a little."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"model":"llm","prompt":"Hello"}'
    writer.write(_HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    status = await _status(reader, 30.0)
    writer.close()
    return status


async def _ask_models(port: int) -> int:
    """Return the status that a client gets which asks for the list of models."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    status = await _status(reader, 30.0)
    writer.close()
    return status


async def run_attack(name: str, kind: str = "route") -> dict[str, object]:
    """Run an attack on a door of its own; return its outcome and the door's peak memory in MB."""
    server = StubServer(model="llm")
    await server.open()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "router.toml"
        path.write_text(f'[router]\nport = 0\n[[router.worker]]\nurl = "{server.url}"\n')
        command = ["-c", _ROUTER, str(path)] if kind == "route" else ["-m", "benchmarks.service.server"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=subprocess.PIPE, env=dict(os.environ)
        )
        try:
            assert process.stdout is not None
            line = (await asyncio.wait_for(process.stdout.readline(), 60.0)).decode()
            port = int(line.split()[0].rpartition(":")[2])
            watched = _Watched(process.pid)
            before_mb = watched.peak_mb()
            outcome = await ATTACKS[name](port, server)
            return {**outcome, "before_mb": before_mb, "peak_mb": watched.peak_mb()}
        finally:
            process.kill()
            await process.wait()
            server.kill()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run_attack(*sys.argv[1:3]))))
