"""Which variables of a client are made of those of its running functions."""

from __future__ import annotations

import threading
from collections.abc import Collection


class NativeReaders:
    """The variables of a client's running (native) functions, and those that are made of them, until they are
    given up. Any thread may use it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[str, set[str]] = {}
        self._made_of: dict[str, set[str]] = {}

    def begin(self, name: str) -> None:
        """Note that a function runs which makes a variable."""
        with self._lock:
            self._readers[name] = set()

    def end(self, name: str) -> None:
        """Note that the function which makes a variable has ended."""
        with self._lock:
            for reader in self._readers.pop(name, ()):
                natives = self._made_of[reader]
                natives.discard(name)
                if not natives:
                    del self._made_of[reader]

    def has_readers(self, name: str) -> bool:
        """Return whether a variable of a running function serves others, which were not given up."""
        return bool(self._readers.get(name))

    def add(self, names: Collection[str], reads: tuple[str, ...]) -> None:
        """Note variables that are made of others."""
        with self._lock:
            natives = {name for name in reads if name in self._readers}.union(
                *(self._made_of.get(name, ()) for name in reads)
            )
            for native in natives:
                self._readers[native].update(names)
            self._made_of |= {name: set(natives) for name in names if natives}

    def forget(self, name: str) -> None:
        """Forget a variable that was given up."""
        with self._lock:
            for native in self._made_of.pop(name, ()):
                self._readers[native].discard(name)
