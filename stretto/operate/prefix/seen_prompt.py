"""A prompt as it is kept for a while, to be compared with a later one of the same kind of program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from stretto.wire.prompt_texts import PromptPart, prompt_parts

MAX_CHARS = 48_000
"""Characters of a prompt that are kept: the first ones."""
CHARS_PER_TOKEN = 4
_PIECE = re.compile(r'[^\n.;,"]{16,}')
"""A piece of a text that is looked for in another one."""
SALT = "cache_salt"


class SeenPrompt:
    """The parts of a prompt, in the order of a server's template.

    Attributes:
        program: name of the program that it belongs to; "" if that is not known.
        parts: first parts of the prompt, of which the last may be cut.
        num_chars: number of characters of the whole prompt.
    """

    def __init__(self, program: str, parts: Iterable[PromptPart]) -> None:
        self.program = program
        self.num_chars = 0
        kept: list[PromptPart] = []
        for part in parts:
            room = MAX_CHARS - self.num_chars
            if room > 0:
                kept.append(part if len(part.text) <= room else part._replace(text=part.text[:room]))
            self.num_chars += len(part.text)
        self.parts: Sequence[PromptPart] = kept

    @cached_property
    def pieces(self) -> frozenset[str]:
        """What the prompt is told apart by from others of its kind."""
        return frozenset(piece for part in self.parts for piece in pieces_of(part.text))

    @cached_property
    def num_opening(self) -> int:
        """Number of parts before the first answer: what its client has put together alone."""
        areas = [part.area for part in self.parts]
        return areas.index("answer") if "answer" in areas else len(areas)

    @cached_property
    def answers(self) -> list[str]:
        """The answers of the model that stand in it."""
        return [part.text for part in self.parts if part.area == "answer"]


def pieces_of(text: str) -> list[str]:
    """Return the pieces of a text in their order."""
    return _PIECE.findall(text)


def seen_prompt(program: str, path: str, fields: Mapping[str, Any]) -> SeenPrompt:
    """Return the prompt of a request; its fields are those of its body."""
    parts = list(prompt_parts(path, fields))
    if isinstance(salt := fields.get(SALT), str) and salt:
        parts.insert(0, PromptPart(SALT, "system", salt))
    return SeenPrompt(program, parts)
