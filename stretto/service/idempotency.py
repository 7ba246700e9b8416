"""Answers to requests that carried an idempotency key, for the same request when it comes again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from stretto.service.refusals import Refused

_MAX_KEYS = 10_000
_MAX_BYTES = 16_000_000
_MAX_KEY_CHARS = 200


class AnsweredKeys:
    """The answers to the last requests of a tenant that carried an idempotency key."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, tuple[bytes, bytes]] = OrderedDict()
        self._num_bytes = 0

    def find(self, key: str, path: str, body: bytes | bytearray) -> bytes | None:
        """Return the answer to the same request, if it came before; None if it did not.

        Raises:
            Refused: the key is too long, or another request carried it.
        """
        if len(key) > _MAX_KEY_CHARS:
            raise Refused(422, "invalid", f"an idempotency key has at most {_MAX_KEY_CHARS} characters")
        if (found := self._answers.get(key)) is None:
            return None
        seen, answer = found
        if seen != _fingerprint(path, body):
            raise Refused(422, "key_used", f"the idempotency key {key!r} came with another request")
        return answer

    def keep(self, key: str, path: str, body: bytes | bytearray, answer: bytes) -> None:
        """Keep the answer to a request; the oldest ones are forgotten for it if they are too many, or too
        long together.
        """
        self._answers[key] = (_fingerprint(path, body), answer)
        self._num_bytes += len(answer)
        while len(self._answers) > _MAX_KEYS or self._num_bytes > _MAX_BYTES:
            _, (_, oldest) = self._answers.popitem(last=False)
            self._num_bytes -= len(oldest)


def _fingerprint(path: str, body: bytes | bytearray) -> bytes:
    hashed = hashlib.blake2b(path.encode() + b"\0", digest_size=16)
    hashed.update(body)
    return hashed.digest()
