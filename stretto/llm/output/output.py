"""Turns the text that an LLM generates, delta by delta, into pieces and a value.

Every LLM engine puts its deltas through an `Output`, so that stop strings, white space and lists mean
the same everywhere, however an engine happens to cut its text.
"""

from __future__ import annotations

from typing import Protocol

from stretto.errors import ConfigError
from stretto.llm.output.json_items import JsonItems
from stretto.tasks import Decode


class _Reader(Protocol):
    def feed(self, delta: str) -> tuple[list[str], bool]: ...

    def finish(self) -> tuple[list[str], object]: ...


class Output:
    """The output of one task, independent of how its text is cut into deltas.

    As text, the value ends before the first stop string and has no white space around it, and joining
    the pieces gives the value. As a list, the pieces are the items of the value.
    """

    def __init__(self, decode: Decode) -> None:
        """Raises ConfigError for a `decode` that makes no sense."""
        if type(decode.max_tokens) is not int or decode.max_tokens < 1:
            raise ConfigError(f"max_tokens is {decode.max_tokens!r}: a number of at least 1")
        if decode.max_items is not None and (type(decode.max_items) is not int or decode.max_items < 1):
            raise ConfigError(f"max_items is {decode.max_items!r}: a number of at least 1, or None")
        if not isinstance(decode.stop, tuple) or not all(isinstance(s, str) and s for s in decode.stop):
            raise ConfigError(f"stop is {decode.stop!r}: a tuple of strings that are not empty")
        self._reader: _Reader
        if decode.items is None:
            self._reader = _Text(decode.stop)
        elif decode.items == "json_list":
            self._reader = _JsonList(decode.max_items)
        else:
            raise ConfigError(f"unknown items {decode.items!r}: None or 'json_list'")

    def feed(self, delta: str) -> tuple[list[str], bool]:
        """The pieces that `delta` completes, and whether the output is finished: then feed no more.

        Raises:
            BadReply: the text is not the list that was asked for.
        """
        return self._reader.feed(delta)

    def finish(self) -> tuple[list[str], object]:
        """The text is over, or `feed` said so: the last pieces, held back until now, and the value.

        Raises:
            BadReply: the text ended before its list did.
        """
        return self._reader.finish()


class _JsonList:
    """Finished at the end of the list, or behind `max_items` items whatever follows."""

    def __init__(self, max_items: int | None) -> None:
        self._max_items = max_items
        self._parser = JsonItems()
        self._items: list[str] = []

    def _is_full(self) -> bool:
        return self._max_items is not None and len(self._items) >= self._max_items

    def feed(self, delta: str) -> tuple[list[str], bool]:
        num_before = len(self._items)
        for item in self._parser.feed(delta):
            self._items.append(item)
            if self._is_full():
                break
        return self._items[num_before:], self._parser.ended or self._is_full()

    def finish(self) -> tuple[list[str], object]:
        if not self._is_full():
            self._parser.finish()
        return [], list(self._items)


class _Text:
    """Text passes two stages, each holding back what may yet have to go.

    The first cuts at the stop string that is complete first (of several complete at the same character,
    the longest) and holds the end of the text while it may be the beginning of one. The second drops leading
    white space and holds trailing white space until something follows it.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._maybe_stop = ""
        self._maybe_trailing = ""
        self._pieces: list[str] = []

    def feed(self, delta: str) -> tuple[list[str], bool]:
        text = self._maybe_stop + delta
        found = [(start + len(stop), start) for stop in self._stop if (start := text.find(stop)) >= 0]
        if found:
            self._maybe_stop = ""
            _, end = min(found)
            return self._strip(text[:end]), True
        num_held = max((_overlap(text, stop) for stop in self._stop), default=0)
        end = len(text) - num_held
        self._maybe_stop = text[end:]
        return self._strip(text[:end]), False

    def finish(self) -> tuple[list[str], object]:
        last = self._strip(self._maybe_stop)
        self._maybe_stop = ""
        return last, "".join(self._pieces)

    def _strip(self, text: str) -> list[str]:
        """What of `text` is known to be inside the value: no piece, or one."""
        if not self._pieces:
            text = text.lstrip()
        inside = text.rstrip()
        if not inside:
            self._maybe_trailing += text
            return []
        piece = self._maybe_trailing + inside
        self._maybe_trailing = text[len(inside) :]
        self._pieces.append(piece)
        return [piece]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)
