"""Turns the text that an LLM generates, delta by delta, into pieces and a value.

Every LLM engine passes its deltas through a `DecodeOutput`, so that thoughts, stop strings, white space and
lists mean the same for all engines, independent of the lengths of their deltas.
"""

from __future__ import annotations

import logging
from typing import Protocol

from stretto.llm.output.list_items import ListItems
from stretto.llm.output.thoughts import Opening, Thoughts, opens_thoughts
from stretto.model.errors import BadReply, ConfigError
from stretto.model.tasks import Decode, Finish
from stretto.model.values import Prompt

_log = logging.getLogger(__name__)


class _Reader(Protocol):
    def feed(self, delta: str) -> tuple[list[str], bool]: ...

    def finish(self) -> tuple[list[str], object]: ...


class DecodeOutput:
    """The output of one LLM task, built from the pieces of text (deltas) that the model generates.

    It makes pieces, which can be passed on at once, and in the end a value: a text, or a list of strings if
    the task asks for one. Thoughts before the answer are dropped (`thoughts.py`). A text ends before the
    first stop string after them, is its pieces joined, and has no white space around it unless the task keeps
    that. The pieces of a list are its items.

    Attributes:
        finish_reason: how the output has ended, after `finish`.
    """

    def __init__(self, decode: Decode, prompt: Prompt = (), opening: Opening = "none") -> None:
        """Create an empty output whose form and limits `decode` gives.

        Args:
            prompt: prompt that the output answers; it has the variable that `decode.fallback` names.
            opening: whether what the engine puts behind the prompt ends with the opening tag of thoughts. A
                prompt that ends with one itself is seen here.

        Raises:
            ConfigError: a field of `decode` is out of range.
        """
        if type(decode.max_tokens) is not int or decode.max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, got {decode.max_tokens!r}")
        if decode.max_items is not None and (type(decode.max_items) is not int or decode.max_items < 1):
            raise ConfigError(f"max_items must be at least 1 or None, got {decode.max_items!r}")
        if not isinstance(decode.stop, tuple) or not all(isinstance(s, str) and s for s in decode.stop):
            raise ConfigError(f"stop must be a tuple of non-empty strings, got {decode.stop!r}")
        if not isinstance(decode.strip, bool):
            raise ConfigError(f"strip must be True or False, got {decode.strip!r}")
        self.finish_reason: Finish = "stop"
        end = prompt[-1].text if prompt else ""
        is_open = isinstance(end, str) and opens_thoughts(end)  # an engine refuses others with its own error
        self._thoughts = Thoughts("certain" if is_open else opening)
        self._is_finished = False
        self._reader: _Reader
        if decode.items is None:
            self._reader = _Text(decode.stop, strips=decode.strip)
        elif decode.items in ("json_list", "calls"):
            fallback = "".join(segment.text for segment in prompt if segment.name == decode.fallback)
            is_calls = decode.items == "calls"
            self._reader = _List(
                ListItems(takes_calls=is_calls),
                decode.max_items,
                fallback if decode.fallback is not None else "",
                may_lack=is_calls,
            )
        else:
            raise ConfigError(f"items must be None, 'json_list' or 'calls', got {decode.items!r}")

    def feed(self, delta: str) -> tuple[list[str], bool]:
        """Read more generated text; return the pieces that it completes, and whether the output is finished.

        A finished output takes no more text.

        Raises:
            BadReply: a list was asked for, the text is none, and there is no fallback.
        """
        pieces, self._is_finished = self._reader.feed(self._thoughts.feed(delta))
        return pieces, self._is_finished

    @property
    def written(self) -> str | None:
        """The text so far as it was generated, up to a stop string, with all white space; None for a list."""
        return "".join(self._reader.accepted) if isinstance(self._reader, _Text) else None

    @property
    def has_thoughts(self) -> bool:
        """Whether there have been thoughts, which are not part of `written`."""
        return self._thoughts.has_any

    @property
    def lacked_opening(self) -> bool:
        """Whether the closing tag of thoughts came without an opening one."""
        return self._thoughts.lacked_opening

    def finish(self, reason: Finish = "stop") -> tuple[list[str], object]:
        """Return the last pieces and the whole value, when the text has ended or the output is finished.

        Args:
            reason: why the model has stopped. An output that was finished before has ended by itself.

        Raises:
            BadReply: a list was asked for, the text is none, and there is no fallback.
        """
        before: list[str] = []
        if not self._is_finished:
            last = self._thoughts.finish(is_cut=reason != "stop")
            before, self._is_finished = self._reader.feed(last)
        pieces, value = self._reader.finish()
        if not self._is_finished:
            self.finish_reason = reason
        if self.has_thoughts and not value:
            self.finish_reason = "thoughts"
        return before + pieces, value


class _List:
    """List output; finished at the end of the list or after `max_items` items.

    Where the text is no list, `fallback` is its only item, unless that is empty; or it has no items if it
    `may_lack` the list, as a reply of a model that wants to call nothing does.
    """

    def __init__(self, parser: ListItems, max_items: int | None, fallback: str, *, may_lack: bool) -> None:
        self._max_items = max_items
        self._fallback = fallback
        self._may_lack = may_lack
        self._parser = parser
        self._items: list[str] = []
        self._fell_back = False

    def _is_full(self) -> bool:
        return self._max_items is not None and len(self._items) >= self._max_items

    def feed(self, delta: str) -> tuple[list[str], bool]:
        num_before = len(self._items)
        try:
            for item in self._parser.feed(delta):
                self._items.append(item)
                if self._is_full():
                    break
        except BadReply as error:
            self._fall_back(error)
        is_finished = self._parser.ended or self._is_full() or self._fell_back
        return self._items[num_before:], is_finished

    def finish(self) -> tuple[list[str], object]:
        num_before = len(self._items)
        if not self._is_full() and not self._fell_back:
            try:
                self._items += self._parser.finish()
            except BadReply as error:
                self._fall_back(error)
        return self._items[num_before:], list(self._items)

    def _fall_back(self, error: BadReply) -> None:
        if not self._fallback and not self._may_lack:
            raise error
        if self._fallback:
            _log.warning("%s; used instead: %r", error.message, self._fallback[:200])
        self._fell_back = True
        self._items += [self._fallback] if self._fallback else []


class _Text:
    """Text output. The text passes two stages, which hold back characters that may not belong to the value.

    The first stage cuts at the stop string that is complete first (the longest, if several are complete at
    the same character). It holds the end of the text back while that may be the beginning of a stop string.
    The second stage drops leading white space, and holds trailing white space back until something follows,
    unless the text is not stripped.

    Attributes:
        accepted: parts of the text that have passed the first stage.
    """

    def __init__(self, stop: tuple[str, ...], *, strips: bool) -> None:
        self._stop = stop
        self._strips = strips
        self._maybe_stop = ""
        self._maybe_trailing = ""
        self.accepted: list[str] = []
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
        """Return the part of `text` that certainly belongs to the value, as one piece or none."""
        if text:
            self.accepted.append(text)
        if not self._strips:
            self._pieces += [text] if text else []
            return [text] if text else []
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
    """Length of the longest suffix of `text` that is a prefix of `stop`."""
    return next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)
