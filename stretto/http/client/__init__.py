"""A client of HTTP/1.1 servers on asyncio's protocols: one connection carries one request at a time."""
