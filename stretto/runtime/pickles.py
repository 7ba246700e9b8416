"""Unpickling of messages between the runtime and its processes."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any

_OWN = f"{__name__.partition('.')[0]}."


class ForeignClass(Exception):
    """A message holds an object of a class that is not the project's own, or not imported yet."""


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, data: bytes, instead: Mapping[tuple[str, str], Callable[..., object]], only_own: bool
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._instead = instead
        self._only_own = only_own

    def find_class(self, module: str, name: str) -> Any:
        if (found := self._instead.get((module, name))) is not None:
            return found
        if self._only_own and not (module.startswith(_OWN) and module in sys.modules):
            raise ForeignClass
        return super().find_class(module, name)


def loads(
    data: bytes,
    *,
    only_own: bool = False,
    instead: Mapping[tuple[str, str], Callable[..., object]] | None = None,
) -> Any:
    """Unpickle a message.

    Args:
        only_own: whether objects of all other classes than the project's own are refused. Then unpickling
            imports nothing, and runs no code of others.
        instead: functions to be called in place of others, by the module and the name of those.

    Raises:
        ForeignClass: `only_own`, and there is another class.
        Exception: whatever the code of an object raises.
    """
    return _Unpickler(data, instead or {}, only_own).load()
