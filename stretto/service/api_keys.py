"""API keys of tenants: new ones, their hashes, and the table that finds the owner of a key.

A file holds a key as `sha256:SALT:DIGEST`, the digest of the salt and the key. Keys of `new_key` are random,
so a fast hash is enough: there is no list of likely ones to try.
"""

from __future__ import annotations

import re
import secrets
from hashlib import sha256
from typing import Generic, TypeVar

_SALT_BYTES = 16
_KEY_BYTES = 32
_HASH = re.compile(r"sha256:([0-9a-f]{32}):([0-9a-f]{64})")
PREFIX = "sha256:"
"""Beginning of a hash of a key."""

Owner = TypeVar("Owner")


def new_key() -> str:
    """Return a new key that nobody can guess."""
    return f"sk-stretto-{secrets.token_urlsafe(_KEY_BYTES)}"


def hashed_key(key: str) -> str:
    """Return a hash of a key with a new salt, as a file holds it."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return f"{PREFIX}{salt.hex()}:{_digest(salt, key).hex()}"


def is_hash(text: str) -> bool:
    """Return whether a text is a hash of a key."""
    return _HASH.fullmatch(text) is not None


class KeyTable(Generic[Owner]):
    """The owners of keys, of which only hashes are kept.

    Finding a key takes a hash for each salt at first, and one hash afterwards.
    """

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(_SALT_BYTES)  # of keys in plain text, and of those that were found
        self._owners: dict[bytes, dict[bytes, Owner]] = {}
        self._found: dict[bytes, Owner] = {}

    def add(self, key: str, owner: Owner) -> None:
        """Add a key, or a hash of one."""
        if (found := _HASH.fullmatch(key)) is not None:
            salt, digest = bytes.fromhex(found[1]), bytes.fromhex(found[2])
            self._owners.setdefault(salt, {})[digest] = owner
        else:
            self._found[_digest(self._salt, key)] = owner

    def find(self, key: str) -> Owner | None:
        """Return the owner of a key; None if it has none."""
        mark = _digest(self._salt, key)
        if (owner := self._found.get(mark)) is not None:
            return owner
        for salt, owners in self._owners.items():
            if (owner := owners.get(_digest(salt, key))) is not None:
                self._found[mark] = owner
                return owner
        return None


def _digest(salt: bytes, key: str) -> bytes:
    return sha256(salt + key.encode("latin-1", "replace")).digest()
