"""A watch on the port of a server: when it refuses connections, the server is gone."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

NUM_REFUSALS = 4
LOOK_S = 0.25
_CONNECT_S = 5.0


async def wait_until_refusing(url: str, look_s: float = LOOK_S) -> None:
    """Wait until a connection has been refused several times in a row.

    A busy server accepts connections, for its kernel does, however long it takes to answer. Silence is no
    refusal: whether a node that does not answer at all is dead is for others to find out.
    """
    parts = urlsplit(url)
    num_refusals = 0
    while num_refusals < NUM_REFUSALS:
        await asyncio.sleep(look_s)
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        except ConnectionRefusedError:
            num_refusals += 1
        except OSError:  # a timeout, too
            num_refusals = 0
        else:
            num_refusals = 0
            writer.close()
