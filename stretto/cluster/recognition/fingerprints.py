"""Fingerprints of prompts and answers: keys by which it is found that a prompt begins with another one and
its answer, or that a text stands inside another one.

A *key* is a number of 64 bits that depends on the tenant. There are two kinds:

- The key of a beginning: the chained hash of all turns, or of all blocks of a text, up to a point. Two
  prompts with the same one begin alike.
- An *anchor*: the hash of 24 bytes of a text. Which places of a text have one depends on the 8 bytes there
  alone, so that equal texts have equal anchors wherever they stand. The *level* of an anchor, its last four
  bits, says how rare it is: of 2^n places one has level n. In a long text only rare ones are looked for.

Texts are hashed by Python's own hash, which is keyed by a secret of the process (SipHash). So nobody can make
two texts with equal keys, and hashing a short text takes a tenth of the time of `hashlib.blake2b`. Anchors,
which are not so strong, are mixed with such a hash of the tenant. A fingerprint that comes from another
process is made anew of its texts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Key: TypeAlias = int
Turn: TypeAlias = tuple[str, str]
"""One turn of a prompt: who speaks, and what. Answers of the model are by `MODEL`."""
Tail: TypeAlias = tuple[Key, int]
"""The place of an end behind a block of a text: the block's key, and the number of characters behind it."""
Piece: TypeAlias = tuple[int, ...]
"""A text that was generated, and its rarest anchors, the rarest first: where that one is not looked for,
neither are the others. Of a line, the first number is the most characters of a task that it may be; of a
whole text, its length and `WHOLE`."""
Tails: TypeAlias = Mapping[Key, Mapping[int, int]]
"""How many ends are known behind a block, by the number of characters between."""

MODEL = "assistant"
HEAD = 512
"""Characters of an answer by which it is told from others."""
LEAST_ANSWER = 40
"""Characters from which on an answer is known again wherever it stands."""
_BLOCK = 1024
"""Characters of a block of a prompt that is one text."""
MOST_TURNS = 5000
"""Turns of a prompt; nothing is made of a longer one, as looking for its programs takes milliseconds."""
_MOST_POINTS = 2048
"""Points at which an earlier prompt may have ended; of more, the last and some of the first count."""
_MAX_SEARCHED = 131_072
"""Characters of a prompt in which answers are looked for: a quarter of them at its beginning."""
_MAX_ANSWERS = 32_768
"""Characters of the answers in a prompt in which answers are looked for."""
_MOST_ANCHORS = 2048
_WORD = 8
"""Bytes that decide whether a place has an anchor."""
_SPAN = 3 * _WORD
"""Bytes that an anchor depends on."""
_LEAST_LEVEL, _MOST_LEVEL = 2, 15
_ANSWER_LEVEL = 5
"""Least level of anchors that are looked for in the answers of a prompt, where only long ones count."""
_USUAL_ANCHORS = 500
"""Number of anchors of a prompt above which only rarer ones are looked for."""
_NUM_ANCHORS = 3
"""Anchors by which a generated text is known again."""
_MOST_TEXTS = 8
"""Lines of an answer, and texts in its calls of tools, that are known again by themselves."""
_LINE_SHARE = 2
"""Length of a task over that of a line of an answer, up to which the line may be the task."""
WHOLE = 2**62
_FACTORS = tuple(map(np.uint64, (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xC2B2AE3D27D4EB4F)))
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_Words: TypeAlias = NDArray[np.uint64]


class ChatPrint:
    """Fingerprint of a prompt that consists of turns."""

    def __init__(self, tenant: str, turns: Sequence[Turn]) -> None:
        key = hash((tenant, "turns"))
        self._points: list[Key] = []
        for place, turn in enumerate(turns):
            if place and turn[0] == MODEL:
                self._points += (key, _answered(key, turn[1]))
            key = hash((key, turn))
        self.end = Ending(key)
        self._tenant = tenant
        self._turns = turns

    def __reduce__(self) -> tuple[object, ...]:
        return ChatPrint, (self._tenant, self._turns)

    def points(self, tails: Tails) -> Iterator[Key]:
        """Yield, longest first, the keys of where an earlier prompt may have ended: with an answer that
        stands in this prompt, and before it.
        """
        yield from reversed(self._points[-_MOST_POINTS:])
        if len(self._points) > _MOST_POINTS:
            yield from reversed(self._points[: _MOST_POINTS // 8])

    @property
    def task(self) -> str:
        """What the last turn says."""
        return self._turns[-1][1] if self._turns else ""

    @cached_property
    def anchors(self) -> Anchors:
        """The anchors of what the turns say that are no answers."""
        return anchors_of(self._tenant, [text for role, text in self._turns if role != MODEL])

    @cached_property
    def answer_anchors(self) -> Anchors:
        """The anchors of the turns that are answers."""
        answers = [text for role, text in self._turns if role == MODEL]
        return anchors_of(self._tenant, answers, _MAX_ANSWERS, _ANSWER_LEVEL) if answers else _NO_ANCHORS

    @property
    def searched(self) -> Anchors | None:
        """The anchors of what is no answer, if they were asked for."""
        return self.__dict__.get("anchors")


class TextPrint:
    """Fingerprint of a prompt that is one text."""

    def __init__(self, tenant: str, text: str) -> None:
        key = hash((tenant, "text"))
        self._blocks = [key]
        for begin in range(0, len(text) - _BLOCK + 1, _BLOCK):
            key = hash((key, text[begin : begin + _BLOCK]))
            self._blocks.append(key)
        self.end = Ending(key, text[_BLOCK * (len(self._blocks) - 1) :])
        self.task = text
        self._tenant = tenant

    def __reduce__(self) -> tuple[object, ...]:
        return TextPrint, (self._tenant, self.task)

    def points(self, tails: Tails) -> Iterator[Key]:
        """Yield, longest first, the keys of where an earlier prompt, with its answer if that is known, may
        have ended. `tails` says how many characters stood behind a block there.
        """
        num_tried = 0
        for number in range(len(self._blocks) - 1, -1, -1):
            block, begin = self._blocks[number], number * _BLOCK
            for length in sorted(tails.get(block, ()), reverse=True):
                if begin + length < len(self.task) and num_tried < _MOST_POINTS:
                    num_tried += 1
                    yield hash((block, self.task[begin : begin + length]))

    @cached_property
    def anchors(self) -> Anchors:
        """The anchors of the text."""
        return anchors_of(self._tenant, [self.task])

    @property
    def answer_anchors(self) -> Anchors:
        """None: answers in a text are not told from the rest."""
        return _NO_ANCHORS

    @property
    def searched(self) -> Anchors | None:
        """The anchors, if they were asked for."""
        return self.__dict__.get("anchors")


PromptPrint: TypeAlias = ChatPrint | TextPrint


class Ending:
    """The end of a prompt, to which its answer is added.

    Attributes:
        key: key of the whole prompt.
        tail: (block, length) by which `TextPrint.points` finds it; None for a prompt that consists of turns.
    """

    __slots__ = ("_block", "_rest", "key", "tail")

    def __init__(self, key: Key, rest: str | None = None) -> None:
        self._block, self._rest = key, rest
        self.tail: Tail | None = None
        self.key = key
        if rest is not None:
            self.tail, self.key = (key, len(rest)), hash((key, rest))

    def answered(self, text: str) -> Ending:
        """Return the end of the prompt with the head of its answer."""
        if self._rest is None:
            return Ending(_answered(self.key, text))
        block, rest = self._block, self._rest + text[:HEAD]
        while len(rest) >= _BLOCK:
            block, rest = hash((block, rest[:_BLOCK])), rest[_BLOCK:]
        return Ending(block, rest)


def _answered(key: Key, text: str) -> Key:
    return hash((key, MODEL, text[:HEAD]))


class Anchors:
    """The anchors of a long text that are at least of a level."""

    def __init__(self, keys: Sequence[Key], level: int) -> None:
        self.keys = keys
        self.level = level

    @cached_property
    def _set(self) -> frozenset[Key]:
        return frozenset(self.keys)

    def have(self, piece: Sequence[Key]) -> int:
        """Return how many of the anchors of a piece stand in the text; 0 if one that must is absent."""
        wanted = [key for key in piece if key & _MOST_LEVEL >= self.level]
        return len(wanted) if self._set.issuperset(wanted) else 0


_NO_ANCHORS = Anchors((), _MOST_LEVEL)


def anchors_of(
    tenant: str, texts: Sequence[str], most: int = _MAX_SEARCHED, least_level: int = _LEAST_LEVEL
) -> Anchors:
    """Return the anchors of several texts together, of at most so many characters at their two ends."""
    data = "\n".join(_ends_of(texts, most)).encode("utf-8", "surrogatepass")
    level = max(least_level, min(_MOST_LEVEL, (len(data) // _USUAL_ANCHORS).bit_length() - 1))
    found = _found(tenant, data, level)
    return _NO_ANCHORS if found is None else Anchors(found[0].tolist(), level)


def _ends_of(texts: Sequence[str], most: int) -> Sequence[str]:
    """Return what stands at the beginning and at the end of some texts, or all of it if that is short."""
    if sum(map(len, texts)) <= most:
        return texts
    first, last = _first(texts, most // 4), _first(texts[::-1], most * 3 // 4)
    cut = [texts[-1 - place][-num:] for place, num in enumerate(last)]
    return [*(text[:num] for text, num in zip(texts, first, strict=False)), *reversed(cut)]


def _first(texts: Sequence[str], room: int) -> list[int]:
    """Return how many characters of each text fit into a room, in their order."""
    taken = []
    for text in texts:
        if room <= 0:
            break
        taken.append(min(room, len(text)))
        room -= len(text)
    return taken


def pieces_of(tenant: str, text: str, given: Sequence[str]) -> list[Piece]:
    """Return by what an answer is known again that stands in a prompt: its text, the texts that it gives to
    tools, and its lines, which must be half of a task.
    """
    parts = [one.encode("utf-8", "surrogatepass") for one in (text, *given[:_MOST_TEXTS])]
    spans = list(_spans(parts))
    found = _found(tenant, b"\0".join(parts), _LEAST_LEVEL) if spans else None
    if found is None:
        return []
    keys, places = found[0].tolist(), found[1].tolist()
    pieces: list[Piece] = []
    for begin, end, kind in spans:
        if rarest := _rarest(keys[bisect_left(places, begin) : bisect_right(places, end - _SPAN)]):
            pieces.append((kind, *rarest))
    return pieces


def _rarest(keys: Sequence[Key]) -> list[Key]:
    """Return the few keys of the highest levels, the rarest first."""
    some: set[Key] = set()
    for level in (6, 3, 0):  # most texts have enough rare ones, so that only these are sorted
        some = {key for key in keys if key & _MOST_LEVEL >= level}
        if len(some) >= _NUM_ANCHORS:
            break
    return sorted(some, key=lambda key: (~key & _MOST_LEVEL, key))[:_NUM_ANCHORS]


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


def _found(tenant: str, data: bytes, level: int) -> tuple[_Words, NDArray[np.intp]] | None:
    """Return the anchors of at least a level of some bytes, and their places; None if they are too short."""
    count = len(data) - _SPAN + 1
    if count <= 0:
        return None
    words: _Words = np.ndarray((len(data) - _WORD + 1,), "<u8", data, strides=(1,))
    first = words[:count] * _FACTORS[0]
    places = np.flatnonzero(first < np.uint64(1 << (64 - level)))[:_MOST_ANCHORS]
    first = first[places]
    keys = first + words[places + _WORD] * _FACTORS[1] + words[places + 2 * _WORD] * _FACTORS[2]
    keys = (keys ^ (keys >> np.uint64(29)) ^ np.uint64(hash((tenant, "anchor")) & (2**64 - 1))) * _MIX
    levels = np.minimum(64 - np.frexp(first.astype(np.float64))[1], _MOST_LEVEL).astype(np.uint64)
    return (keys & ~np.uint64(_MOST_LEVEL)) | levels, places
