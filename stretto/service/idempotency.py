"""Answers to requests that carried an idempotency key, for the same request when it comes again."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from stretto.http.refusals import Refused
from stretto.service.bodies import off_loop

_MAX_KEYS = 10_000
_MAX_BYTES = 16_000_000
_MAX_KEY_CHARS = 200


class AnsweredKeys:
    """The answers to the last requests of a tenant that carried an idempotency key."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, tuple[bytes, bytes]] = OrderedDict()
        self._running: dict[str, tuple[bytes, asyncio.Future[None]]] = {}
        self._num_bytes = 0

    async def once(
        self, key: str, path: str, body: bytes | bytearray, run: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        """Return the answer to the same request, if it came before; if not, that of `run`, which is kept. A
        request that comes while the same one runs waits for its end. A refusal is not kept.

        Raises:
            Refused: the key is too long, or another request carried it.
            StrettoError: what `run` raises.
        """
        if len(key) > _MAX_KEY_CHARS:
            raise Refused(422, "invalid", f"an idempotency key has at most {_MAX_KEY_CHARS} characters")
        fingerprint = await off_loop(len(body), lambda: _fingerprint(path, body))
        while (running := self._running.get(key)) is not None:
            _check(key, running[0], fingerprint)
            await asyncio.wait([running[1]])
        if (found := self._answers.get(key)) is not None:
            _check(key, found[0], fingerprint)
            return found[1]
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._running[key] = fingerprint, ended
        try:
            answer = await run()
            self._keep(key, fingerprint, answer)
        finally:
            del self._running[key]
            ended.set_result(None)
        return answer

    def _keep(self, key: str, fingerprint: bytes, answer: bytes) -> None:
        """Keep the answer to a request; the oldest ones are forgotten for it if they are too many, or too
        long together.
        """
        self._answers[key] = fingerprint, answer
        self._num_bytes += len(answer)
        while len(self._answers) > _MAX_KEYS or self._num_bytes > _MAX_BYTES:
            _, (_, oldest) = self._answers.popitem(last=False)
            self._num_bytes -= len(oldest)


def _check(key: str, seen: bytes, fingerprint: bytes) -> None:
    """Check that a key came with the same request before. Raises Refused if not."""
    if seen != fingerprint:
        raise Refused(422, "key_used", f"the idempotency key {key!r} came with another request")


def _fingerprint(path: str, body: bytes | bytearray) -> bytes:
    hashed = hashlib.blake2b(path.encode() + b"\0", digest_size=16)
    hashed.update(body)
    return hashed.digest()
