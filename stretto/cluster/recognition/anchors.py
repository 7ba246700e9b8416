"""Anchors: keys by which it is found that a text stands inside another one.

An *anchor* is the hash of 24 bytes of a text. Which places of a text have one depends on the 8 bytes there
alone, so that equal texts have equal anchors wherever they stand. The *level* of an anchor, its last four
bits, says how rare it is: of 2^n places one has level n. In a long text only rare ones are looked for.

Of most anchors of a prompt nothing more is asked than whether anybody has generated one like it. So the first
bits of an anchor depend on those 8 bytes alone, and `KnownAnchors` counts the anchors that are known by these
bits. What is left after a look there, which is usually nothing, is hashed whole.

The hash is not strong. It is mixed with one of the tenant that is keyed by a secret of the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from struct import Struct
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Anchor: TypeAlias = int
Piece: TypeAlias = tuple[int, ...]
"""A text that was generated, and its rarest anchors, the rarest first: where that one is not looked for,
neither are the others. Of a line, the first number is the most characters of a task that it may be; of a
whole text, its length and `WHOLE`."""

LEAST_ANSWER = 40
"""Characters from which on an answer is known again wherever it stands."""
WHOLE = 2**62
_MAX_SEARCHED = 131_072
"""Characters of a prompt in which answers are looked for: a quarter of them at its beginning."""
_MOST_ANCHORS = 2048
_WORD = 8
"""Bytes that decide whether a place has an anchor."""
_SPAN = 3 * _WORD
"""Bytes that an anchor depends on."""
_LEAST_LEVEL, _MOST_LEVEL = 2, 15
_USUAL_ANCHORS = 500
"""Number of anchors of a prompt above which only rarer ones are looked for."""
_NUM_ANCHORS = 3
"""Anchors by which a generated text is known again."""
_MOST_TEXTS = 8
"""Lines of an answer, and texts in its calls of tools, that are known again by themselves."""
_LINE_SHARE = 2
"""Length of a task over that of a line of an answer, up to which the line may be the task."""
_TOP_BITS = 24
"""First bits of an anchor, which depend on the first 8 bytes of its text alone."""
_MOST_SORTED = 1024
"""Length of a text up to which sorting all its places is faster than finding the first ones."""
_MOST_COMPARED = 16
"""Places of a text with the rarest anchors, of which the same bytes may stand at several."""
_ALL = 2**64 - 1
_FACTORS = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xC2B2AE3D27D4EB4F
_MIX = 0xFF51AFD7ED558CCD
_TOP = _ALL ^ (_ALL >> _TOP_BITS)
_SPAN_WORDS = Struct("<3Q").unpack
_FIRST, _SECOND, _THIRD, _MIXES, _TOPS = map(np.uint64, (*_FACTORS, _MIX, _TOP))
_HALF, _TOP_SHIFT, _REST_BITS = map(np.uint64, (29, _TOP_BITS, 64 - _TOP_BITS))
_NOT_LEVEL = np.uint64(_ALL ^ _MOST_LEVEL)
_BOUNDS = np.array([1 << place for place in range(64 - _MOST_LEVEL, 64)], np.uint64)
"""Ends of the ranges of an anchor's first hash, from the highest level to the lowest."""
_LEAST_BOUND = 1 << (64 - _LEAST_LEVEL)
"""End of the range of the first hash of the anchors that count."""
_LEVELS = np.arange(_MOST_LEVEL, -1, -1, dtype=np.uint64)
_Words: TypeAlias = NDArray[np.uint64]
_Places: TypeAlias = NDArray[np.intp]


class KnownAnchors:
    """How many anchors are known, by their first bits. It may take others for known, and misses none.

    Args:
        most: number of anchors for which it is large enough to be of use.
    """

    def __init__(self, most: int) -> None:
        bits = min(_TOP_BITS, max(16, (4 * most).bit_length()))
        self._shift = 64 - bits
        self.shift = np.uint64(self._shift)
        self.table: NDArray[np.uint8] = np.zeros(1 << bits, np.uint8)
        self._counts = memoryview(self.table)  # type: ignore[arg-type]

    def add(self, anchor: Anchor) -> None:
        """Count an anchor as known once more."""
        place = anchor >> self._shift
        if self._counts[place] < 255:
            self._counts[place] += 1

    def discard(self, anchor: Anchor) -> None:
        """Count an anchor as known once less. What was counted 255 times stays."""
        place = anchor >> self._shift
        if self._counts[place] < 255:
            self._counts[place] -= 1

    def check_invariants(self, anchors: Iterable[Anchor]) -> None:
        """Check the counts against the anchors that are known. For tests."""
        places = Counter(anchor >> self._shift for anchor in anchors)
        assert all(self._counts[place] in (num, 255) for place, num in places.items())


class Anchors:
    """The anchors of a text that are at least of a level.

    Args:
        data: text as UTF-8.
    """

    def __init__(self, tenant: str, data: bytes, level: int) -> None:
        self.level = level
        self._words = _words(data)
        hashed = _hashed(self._words)
        self._places = (hashed < _BOUNDS[_MOST_LEVEL - level]).nonzero()[0][:_MOST_ANCHORS]
        self._first = hashed[self._places]
        self._salt = np.uint64(hash((tenant, "anchor")) & _ALL)
        self._tops = (self._first ^ self._salt) * _MIXES

    def known(self, anchors: KnownAnchors) -> Sequence[Anchor]:
        """Return the anchors of the text that may be known."""
        found = anchors.table[self._tops >> anchors.shift].nonzero()[0]
        if not len(found):
            return ()
        return _keys(self._words, self._first[found], self._places[found], self._salt)

    def have(self, piece: Sequence[Anchor]) -> int:
        """Return how many of the anchors of a piece stand in the text; 0 if one that must is absent."""
        wanted = [key for key in piece if key & _MOST_LEVEL >= self.level]
        if not wanted:
            return 0
        if "_set" not in self.__dict__:
            differ = (self._tops ^ np.uint64(wanted[0])) >> _REST_BITS
            if differ.all():  # none has the same first bits
                return 0
        return len(wanted) if self._set.issuperset(wanted) else 0

    @cached_property
    def _set(self) -> frozenset[Anchor]:
        return frozenset(_keys(self._words, self._first, self._places, self._salt))


def anchors_of(tenant: str, data: bytes, least_level: int = _LEAST_LEVEL) -> Anchors:
    """Return the anchors of a text in UTF-8."""
    level = max(least_level, min(_MOST_LEVEL, (len(data) // _USUAL_ANCHORS).bit_length() - 1))
    return Anchors(tenant, data, level)


def data_of(texts: Sequence[str], most: int = _MAX_SEARCHED) -> bytes:
    """Return several texts together in UTF-8, of at most so many characters at their two ends."""
    return "\n".join(_ends_of(texts, most)).encode("utf-8", "surrogatepass")


def _ends_of(texts: Sequence[str], most: int) -> Sequence[str]:
    """Return what stands at the beginning and at the end of some texts, or all of it if that is short."""
    if sum(map(len, texts)) <= most:
        return texts
    first, last = _taken(texts, most // 4), _taken(texts[::-1], most * 3 // 4)
    cut = [texts[-1 - place][-num:] for place, num in enumerate(last)]
    return [*(text[:num] for text, num in zip(texts, first, strict=False)), *reversed(cut)]


def _taken(texts: Sequence[str], room: int) -> list[int]:
    """Return how many characters of each text fit into a room, in their order."""
    taken = []
    for text in texts:
        if (num := len(text)) >= room:
            taken.append(room)
            break
        taken.append(num)
        room -= num
    return taken


def anchor_pieces(tenant: str, text: str, given: Sequence[str], prompt: bytes = b"") -> list[Piece]:
    """Return by what an answer is known again that stands in a prompt: its text, the texts that it gives to
    tools, and its lines, which must be half of a task. What it repeats of its own `prompt` is left out.
    """
    parts = [one.encode("utf-8", "surrogatepass") for one in (text, *given[:_MOST_TEXTS])]
    spans = list(_spans(parts))
    if not spans:
        return []
    data, salt = b"\0".join(parts), hash((tenant, "anchor")) & _ALL
    hashed = _hashed(_words(data))
    pieces: list[Piece] = []
    for begin, end, kind in spans:
        rarest = _rarest(data, hashed, begin, end - _SPAN + 1)
        is_repeated = rarest and rarest[0] in prompt and all(span in prompt for span in rarest)
        if not rarest or is_repeated:
            continue
        pieces.append((kind, *[_anchor(span, salt) for span in rarest]))
    return pieces


def _rarest(data: bytes, hashed: _Words, begin: int, end: int) -> list[bytes]:
    """Return the bytes of the few anchors of the highest levels at places from `begin` to before `end`, the
    rarest first: those of which the first hash is the lowest.
    """
    part = hashed[begin:end]
    if len(part) > _MOST_SORTED:
        some = part.argpartition(_MOST_COMPARED)[:_MOST_COMPARED]
        order = some[part[some].argsort()]
    else:
        order = part.argsort()[:_MOST_COMPARED]
    rarest: dict[bytes, None] = {}
    for place, first in zip(order.tolist(), part[order].tolist(), strict=True):
        if first >= _LEAST_BOUND or len(rarest) >= _NUM_ANCHORS:
            break
        rarest[data[begin + place : begin + place + _SPAN]] = None
    return list(rarest)


def _spans(parts: Sequence[bytes]) -> Iterator[tuple[int, int, int]]:
    """Yield where the pieces of an answer begin and end in its joined parts, and the first number of each."""
    begin = num_lines = 0
    for number, part in enumerate(parts):
        end = begin + len(part)
        if len(part) >= LEAST_ANSWER:
            yield begin, end, WHOLE + len(part)
        lines = part.split(b"\n") if number == 0 and b"\n" in part else ()
        for line in lines:
            if len(line) >= LEAST_ANSWER and num_lines < _MOST_TEXTS:
                num_lines += 1
                yield begin, begin + len(line), _LINE_SHARE * len(line)
            begin += len(line) + 1
        begin = end + 1


def _words(data: bytes) -> _Words:
    """Return the 8 bytes at each place of some bytes."""
    return np.ndarray((max(0, len(data) - _WORD + 1),), "<u8", data, strides=(1,))


def _hashed(words: _Words) -> _Words:
    """Return the hash of the first 8 bytes of each place where an anchor may be."""
    return words[: max(0, len(words) - (_SPAN - _WORD))] * _FIRST


def _keys(words: _Words, first: _Words, places: _Places, salt: np.uint64) -> list[Anchor]:
    """Return the anchors at some places, where the hashes of the first 8 bytes are `first`."""
    keys = first + words[places + _WORD] * _SECOND + words[places + 2 * _WORD] * _THIRD
    keys = (keys ^ (keys >> _HALF) ^ salt) * _MIXES
    keys = ((first ^ salt) * _MIXES & _TOPS) | (keys >> _TOP_SHIFT)
    found: list[Anchor] = (keys & _NOT_LEVEL | _LEVELS[_BOUNDS.searchsorted(first, "right")]).tolist()
    return found


def _anchor(span: bytes, salt: int) -> Anchor:
    """Return the anchor of 24 bytes, as `_keys` does: for a few of them this is faster."""
    words: tuple[int, int, int] = _SPAN_WORDS(span)
    one, two, three = words
    first = one * _FACTORS[0] & _ALL
    key = first + two * _FACTORS[1] + three * _FACTORS[2] & _ALL
    key = (key ^ (key >> 29) ^ salt) * _MIX & _ALL
    key = ((first ^ salt) * _MIX & _TOP) | (key >> _TOP_BITS)
    return key & ~_MOST_LEVEL | min(64 - first.bit_length(), _MOST_LEVEL)


NO_ANCHORS = Anchors("", b"", _MOST_LEVEL)
