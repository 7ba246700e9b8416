"""What becomes of the results of users' Python functions: coroutines are awaited, data becomes text."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, is_dataclass
from typing import Any

from stretto.model.values import as_text, whole_characters


class Awaiter:
    """An event loop for coroutines that users' functions return. It is made when the first one comes.

    All of them run on the same loop, so that a function may keep connections between calls.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._runner: asyncio.Runner | None = None

    def value(self, result: object) -> object:
        """Return the result of a function; if that has to be awaited, what comes of it."""
        if not inspect.isawaitable(result):
            return result
        if self._thread is None:  # the caller's own thread may run a loop
            self._thread, self._runner = ThreadPoolExecutor(1), asyncio.Runner()
        assert self._runner is not None
        return self._thread.submit(self._runner.run, _awaited(result)).result()

    def close(self) -> None:
        """End the loop."""
        if self._thread is not None and self._runner is not None:
            self._thread.submit(self._runner.close).result()
            self._thread.shutdown()
            self._thread = self._runner = None


async def _awaited(result: Any) -> object:
    return await result


def result_text(result: object) -> str:
    """Return the text of a function's result, for an LLM to read: data as JSON, nothing as "".

    Halves of surrogate pairs, which are no characters, are replaced.

    Raises:
        TypeError: the result is neither text nor data, such as a generator.
        ValueError, RecursionError: the data holds itself, or is nested too deep.
    """
    if result is None:
        return ""
    if isinstance(result, bytes | bytearray):
        return bytes(result).decode(errors="replace")
    if _holds_data(result):
        return whole_characters(_as_json(result))
    try:
        text = as_text(result)
    except TypeError:
        if not isinstance(result, Set | list | tuple) and not _is_record(result):
            raise
        text = _as_json(result)
    return whole_characters(text)


def _holds_data(result: object) -> bool:
    """Return whether a result is a mapping or a list with one, which a prompt would show otherwise."""
    if isinstance(result, list | tuple):
        return any(isinstance(one, Mapping) for one in result)
    return isinstance(result, Mapping)


def _as_json(result: object) -> str:
    return json.dumps(_plain(result), ensure_ascii=False)


def _plain(value: object) -> object:
    """Return data in the types that JSON has; what has no such form as its text."""
    match value:
        case None | str() | bool() | int() | float():
            return value
        case Mapping():
            return {key if isinstance(key, str) else str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case Set():
            return sorted(map(_plain, value), key=str)
        case bytes() | bytearray():
            return bytes(value).decode(errors="replace")
    return _plain(asdict(value)) if _is_record(value) else str(value)  # type: ignore[call-overload]


def _is_record(value: object) -> bool:
    return is_dataclass(value) and not isinstance(value, type)
