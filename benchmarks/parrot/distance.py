"""A network that takes its time: a port of this machine whose connections lead to another port, with a delay.

Only the way of data takes time. Connections open at once, so that whoever keeps connections open and whoever
opens new ones pay the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_CHUNK_BYTES = 1 << 18


@asynccontextmanager
async def distant(port: int, trip_s: float) -> AsyncIterator[int]:
    """Context with a port from which `port` of this machine is `trip_s` seconds away, there and back."""
    running: set[asyncio.Task[None]] = set()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(far_writer)
            await asyncio.gather(_pump(reader, far_writer, trip_s / 2), _pump(far_reader, writer, trip_s / 2))
        except OSError:
            pass
        finally:
            for one in writers:
                one.close()

    def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(lead(reader, writer))
        running.add(task)
        task.add_done_callback(running.discard)

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        tasks = list(running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay_s: float) -> None:
    """Write what comes from a source to a sink, each part `delay_s` seconds later, until the source ends."""
    loop = asyncio.get_running_loop()
    parts: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def read() -> None:
        data = b"?"
        while data:
            try:
                data = await source.read(_CHUNK_BYTES)
            except OSError:
                data = b""
            parts.put_nowait((loop.time() + delay_s, data))

    reading = asyncio.ensure_future(read())
    try:
        while True:
            due_s, data = await parts.get()
            await asyncio.sleep(due_s - loop.time())
            if not data:
                sink.write_eof()
                return
            sink.write(data)
    finally:
        reading.cancel()
