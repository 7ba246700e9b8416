"""The names of a client's variables."""

from __future__ import annotations

import threading

from stretto.model.errors import UserError


class VariableNames:
    """The names that a client's variables have had. Any thread may use them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._given: dict[str, None] = {}

    def new(self, stem: str, *, is_given: bool = False) -> str:
        """Return a name that no variable has: `stem`, `stem.2`, `stem.3`…

        Raises:
            UserError: the user has given the name, and it is taken, or is none of letters, digits and
                underscores.
        """
        if is_given and not (isinstance(stem, str) and stem.isidentifier()):
            raise UserError(f"a variable's name is letters, digits and underscores, got {stem!r:.80}")
        with self._lock:
            if is_given and stem in self._counts:
                raise UserError(f"there is a variable {stem!r} already")
            if is_given:
                self._given[stem] = None
            number = self._counts[stem] = self._counts.get(stem, 0) + 1
        return stem if number == 1 else f"{stem}.{number}"

    def free(self, name: str) -> None:
        """Let the name of a variable that was given up be given again, if the user had given it."""
        with self._lock:
            if name in self._given and self._counts[name] == 1:
                del self._counts[name]
            self._given.pop(name, None)
