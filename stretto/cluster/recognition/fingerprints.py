"""Fingerprints of prompts and answers: keys by which it is found that a prompt begins with another one and
its answer. That a text stands inside another one is found by its anchors (`anchors.py`).

A *key* is a number of 60 bits that depends on the tenant: the chained hash of all turns, or of all blocks of
a text, up to a point. Two prompts with the same one begin alike. (Python stores 64 bits in 16 bytes more.)

Texts are hashed by Python's own hash, which is keyed by a secret of the process (SipHash). So nobody can make
two texts with equal keys, and hashing a short text takes a tenth of the time of `hashlib.blake2b`. A
fingerprint that comes from another process is made anew of its texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

from stretto.cluster.recognition.anchors import NO_ANCHORS, Anchors, anchors_of, data_of

Key: TypeAlias = int
Turn: TypeAlias = tuple[str, str]
"""One turn of a prompt: who speaks, and what. Answers of the model are by `MODEL`."""
Tail: TypeAlias = int
"""The place of an end behind a block of a text: the block's key times `TAIL`, and the number of characters
behind it. It is 0 for the end of a prompt that consists of turns."""
Tails: TypeAlias = Mapping[Key, Mapping[int, int]]
"""How many ends are known behind a block, by the number of characters between."""

KEY = 2**60 - 1
MODEL = "assistant"
HEAD = 512
"""Characters of an answer by which it is told from others."""
_BLOCK = TAIL = 1024
"""Characters of a block of a prompt that is one text."""
MOST_TURNS = 5000
"""Turns of a prompt; nothing is made of a longer one, as looking for its programs takes milliseconds."""
_MOST_POINTS = 2048
"""Points at which an earlier prompt may have ended; of more, the last and some of the first count."""
_MAX_ANSWERS = 32_768
"""Characters of the answers in a prompt in which answers are looked for."""
_ANSWER_LEVEL = 5
"""Least level of anchors that are looked for in the answers of a prompt, where only long ones count."""


class ChatPrint:
    """Fingerprint of a prompt that consists of turns."""

    def __init__(self, tenant: str, turns: Sequence[Turn]) -> None:
        key = hash((tenant, "turns")) & KEY
        self._points: list[Key] = []
        for place, turn in enumerate(turns):
            if place and turn[0] == MODEL:
                self._points += (key, _answered(key, turn[1]))
            key = hash((key, turn)) & KEY
        self.end = PromptEnding(key)
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
    def data(self) -> bytes:
        """What the turns say that are no answers, in UTF-8; of a long one its two ends."""
        return data_of([text for role, text in self._turns if role != MODEL])

    @cached_property
    def anchors(self) -> Anchors:
        """The anchors of what the turns say that are no answers."""
        return anchors_of(self._tenant, self.data)

    @property
    def was_searched(self) -> bool:
        """Whether the anchors were asked for."""
        return "anchors" in self.__dict__

    @cached_property
    def answer_anchors(self) -> Anchors:
        """The anchors of the turns that are answers."""
        answers = [text for role, text in self._turns if role == MODEL]
        if not answers:
            return NO_ANCHORS
        return anchors_of(self._tenant, data_of(answers, _MAX_ANSWERS), _ANSWER_LEVEL)


class TextPrint:
    """Fingerprint of a prompt that is one text."""

    def __init__(self, tenant: str, text: str) -> None:
        key = hash((tenant, "text")) & KEY
        self._blocks = [key]
        for begin in range(0, len(text) - _BLOCK + 1, _BLOCK):
            key = hash((key, text[begin : begin + _BLOCK])) & KEY
            self._blocks.append(key)
        self.end = PromptEnding(key, text[_BLOCK * (len(self._blocks) - 1) :])
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
            block = self._blocks[number]
            if (lengths := tails.get(block)) is None:
                continue
            begin = number * _BLOCK
            for length in sorted(lengths, reverse=True):
                if begin + length < len(self.task) and num_tried < _MOST_POINTS:
                    num_tried += 1
                    yield hash((block, self.task[begin : begin + length])) & KEY

    @cached_property
    def data(self) -> bytes:
        """The text in UTF-8; of a long one its two ends."""
        return data_of([self.task])

    @cached_property
    def anchors(self) -> Anchors:
        """The anchors of the text."""
        return anchors_of(self._tenant, self.data)

    @property
    def was_searched(self) -> bool:
        """Whether the anchors were asked for."""
        return "anchors" in self.__dict__

    @property
    def answer_anchors(self) -> Anchors:
        """None: answers in a text are not told from the rest."""
        return NO_ANCHORS


PromptPrint: TypeAlias = ChatPrint | TextPrint


class PromptEnding:
    """The end of a prompt, to which its answer is added.

    Attributes:
        key: key of the whole prompt.
        tail: place of the end, by which `TextPrint.points` finds it.
    """

    __slots__ = ("_block", "_rest", "key", "tail")

    def __init__(self, key: Key, rest: str | None = None) -> None:
        self._block, self._rest = key, rest
        self.tail: Tail = 0
        self.key = key
        if rest is not None:
            self.tail, self.key = key * TAIL + len(rest), hash((key, rest)) & KEY

    def answered(self, text: str) -> PromptEnding:
        """Return the end of the prompt with the head of its answer."""
        if self._rest is None:
            return PromptEnding(_answered(self.key, text))
        block, rest = self._block, self._rest + text[:HEAD]
        while len(rest) >= _BLOCK:
            block, rest = hash((block, rest[:_BLOCK])) & KEY, rest[_BLOCK:]
        return PromptEnding(block, rest)


def _answered(key: Key, text: str) -> Key:
    return hash((key, MODEL, text[:HEAD])) & KEY
