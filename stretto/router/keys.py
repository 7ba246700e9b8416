"""Keys of requests: a client's own, or the one that the settings of a worker give.

A worker's answers about a key (status 401, 403 and 429) concern everybody if the key is the router's, and one
client alone if the client has brought it.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from stretto.http.client.headers import Headers

KEY_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key"))
"""Headers by which a client brings a key of its own."""
_MAX_DIGESTS = 256
"""Keys of clients whose digests are kept, at most 16 MB of them: a key is no longer than a head."""
_MAX_KEYS = 1000
"""Keys of clients for which one worker's rests are remembered: about 200 kB."""


def client_key(headers: Headers) -> str:
    """Return a digest of the key that a request brings; "" if it brings none."""
    lines = tuple([line for line in headers if line[0] in KEY_HEADERS])
    return _digest(lines) if lines else ""


@lru_cache(_MAX_DIGESTS)
def _digest(lines: tuple[tuple[bytes, bytes], ...]) -> str:
    return blake2b(repr([*lines]).encode(), digest_size=16).hexdigest()


class KeyRests:
    """The rests of one worker for single keys of clients, each after an answer with status 429.

    Only the keys that were refused last are remembered. A client whose key is forgotten is refused by the
    worker once more.
    """

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    def __len__(self) -> int:
        """Return for how many keys a rest is remembered."""
        return len(self._until_s)

    def rest(self, key: str, until_s: float) -> None:
        """Send the worker nothing with a key before a time."""
        until_s = max(until_s, self._until_s.pop(key, until_s))
        self._until_s[key] = until_s
        if len(self._until_s) > _MAX_KEYS:
            del self._until_s[next(iter(self._until_s))]

    def until_s(self, key: str) -> float:
        """Return the time until which the worker gets nothing with a key."""
        return self._until_s.get(key, 0.0)
