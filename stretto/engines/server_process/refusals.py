"""A watch on the port of a server: when it refuses connections, the server is gone."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

NUM_REFUSALS = 4
LOOK_S = 0.25
_CONNECT_S = 5.0


async def wait_until_refusing(url: str, look_s: float = LOOK_S) -> None:
    """Wait until the server at `url` is gone: until it has refused several connections in a row.

    A busy server does not refuse connections, because its kernel accepts them, however long it takes to
    answer. A node that does not answer at all is not taken for gone. `look_s` is the seconds between two
    attempts.
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
