"""Separates the thoughts that a model writes before its answer from the answer, while it is being generated.

A reasoning model writes `<think>…</think>` and then its answer. Thoughts stand at the beginning alone: a tag
in the middle of an answer is text. The splitter is a state machine, so a delta may end anywhere, within a tag
too:

    START    nothing but white space so far, or the beginning of a tag
    INSIDE   in thoughts, up to their closing tag
    DOUBT    in what may turn out to be thoughts whose opening tag stood in the prompt: held back until the
             closing tag or the end
    ANSWER   in the answer: everything is text

After thoughts it is START again, since some models think in several parts. White space after a closing tag
belongs to the tag.

Chat templates of some models put the opening tag into the prompt, so that a reply has the closing tag alone.
`Opening` says what is known of that. Without knowledge (`maybe`), a closing tag counts only on a line of its
own, or at the end of a line before an empty one, as templates have it; and a reply that has mentioned an
opening tag before is an answer about such tags.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Literal, TypeAlias

Opening: TypeAlias = Literal["none", "maybe", "likely", "certain"]
"""Whether a prompt ends with an opening tag: `none` (the reply itself opens thoughts, or has none), `maybe`
(nothing is known), `likely` (other replies of the model had a closing tag alone), `certain`."""

TAGS = (
    ("<think>", "</think>"),  # DeepSeek-R1, Qwen3 and QwQ, GLM-4.5, MiniMax-M, Hunyuan
    ("<thought>", "</thought>"),  # Gemini behind OpenAI's API
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("[THINK]", "[/THINK]"),  # Magistral
    ("◁think▷", "◁/think▷"),  # Kimi-VL and Kimi-K1.5
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),  # gpt-oss
)
"""Opening and closing tags, with the families of models that write them."""

_OPENINGS = tuple(opening for opening, _ in TAGS)
_CLOSINGS = tuple(closing for _, closing in TAGS)
_OPENING = re.compile("|".join(map(re.escape, _OPENINGS)))
_CLOSING = re.compile("|".join(map(re.escape, _CLOSINGS)))
_LONE_CLOSING = re.compile(rf"\n[ \t]*(?:{_CLOSING.pattern})[ \t]*\n|(?:{_CLOSING.pattern})[ \t]*\n[ \t]*\n")
_LAST_CLOSING = re.compile(rf"\n[ \t]*(?:{_CLOSING.pattern})\s*\Z")
_TAIL_CHARS = 80
"""Characters that are searched again with the next delta: more than a tag and the ends of its lines have."""


def opens_thoughts(prompt_end: str) -> bool:
    """Return whether a prompt that ends with this text leaves the model within thoughts."""
    return prompt_end.rstrip().endswith(_OPENINGS)


class _State(Enum):
    START = auto()
    INSIDE = auto()
    DOUBT = auto()
    ANSWER = auto()


class Thoughts:
    """A splitter of one model's reply into thoughts, which are dropped, and the answer.

    Attributes:
        has_any: whether there have been thoughts.
        lacked_opening: whether their closing tag came without an opening one.
    """

    def __init__(self, opening: Opening = "none") -> None:
        self.has_any = False
        self.lacked_opening = False
        self._opening = opening
        self._state = _State.START
        self._closing = _CLOSING
        self._held: list[str] = []  # what may be text, before `_rest`
        self._rest = ""

    def feed(self, delta: str) -> str:
        """Read more generated text; return the part of the answer that it completes."""
        if self._has_begun():
            return delta
        self._rest += delta
        while self._has_moved():
            pass
        return self._take() if self._has_begun() else ""

    def finish(self, *, is_cut: bool) -> str:
        """Return the rest of the answer, when the reply has ended.

        Args:
            is_cut: whether the reply ended at its limit of tokens, perhaps before a closing tag.
        """
        state, self._state = self._state, _State.ANSWER
        if state is _State.DOUBT:
            self.lacked_opening = _LAST_CLOSING.search(self._rest) is not None
        if (
            state is _State.INSIDE
            or self.lacked_opening
            or (state is _State.DOUBT and self._opening == "likely" and is_cut)
        ):
            self.has_any = True
            self._held, self._rest = [], ""
        return self._take()

    def _has_begun(self) -> bool:
        """Return whether the answer has begun."""
        return self._state is _State.ANSWER

    def _has_moved(self) -> bool:
        """Go to another state if the text says so; return whether it did."""
        match self._state:
            case _State.START:
                return self._begin()
            case _State.INSIDE:
                return self._end_thoughts(self._closing)
            case _State.DOUBT:
                return self._end_thoughts(_LONE_CLOSING if self._opening == "maybe" else _CLOSING)
            case _State.ANSWER:
                return False

    def _begin(self) -> bool:
        """Look what the text begins with."""
        begun = self._rest.lstrip()
        for opening, closing in TAGS:
            if begun.startswith(opening):
                self._rest, self._closing = begun[len(opening) :], re.compile(re.escape(closing))
                self.has_any, self._state = True, _State.INSIDE
                return True
            if begun.startswith(closing):
                self._rest, self._opening = begun[len(closing) :], "none"
                self.has_any = self.lacked_opening = True
                return True
        if any(tag.startswith(begun) for tag in (*_OPENINGS, *_CLOSINGS)):
            return False
        states = {"none": _State.ANSWER, "certain": _State.INSIDE}
        self._state = states.get(self._opening, _State.DOUBT)
        return True

    def _end_thoughts(self, closing: re.Pattern[str]) -> bool:
        """Look for the end of thoughts, and forget those that have been read."""
        is_doubt = self._state is _State.DOUBT
        found = closing.search(self._rest)
        before = len(self._rest) if found is None else found.start()
        if is_doubt and self._opening == "maybe" and _OPENING.search(self._rest, 0, before):
            self._state = _State.ANSWER  # which tells of such tags
            return False
        if found is not None:
            self.has_any, self.lacked_opening = True, self.lacked_opening or is_doubt
            self._held, self._rest = [], self._rest[found.end() :]
            self._state, self._opening = _State.START, "none"
            return True
        if len(self._rest) > 2 * _TAIL_CHARS:
            if is_doubt:
                self._held.append(self._rest[:-_TAIL_CHARS])
            self._rest = self._rest[-_TAIL_CHARS:]
        return False

    def _take(self) -> str:
        """Return the text that has been held back, without white space that belongs to a closing tag."""
        text = "".join(self._held) + self._rest
        self._held, self._rest = [], ""
        return text.lstrip() if self.has_any else text
