"""A program that was recognised, and the tenant that it is of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stretto.cluster.recognition.anchors import Piece
from stretto.cluster.recognition.fingerprints import Key, Tail


class RecognisedProgram:
    """A program that was recognised. Tuples keep it small, as there may be a million.

    Attributes:
        number: number that no other program has.
        leans_on: number of the program that it may be part of, which is not sure; 0 if there is none.
        open: ends of its prompts that no later prompt goes on from yet: pairs of the key with the answer and
            the key without it. The two are equal if the answer is not known, or if the prompt is one text.
        passed: keys of ends that a later prompt went on from: the first one and the latest.
        pieces: what it generated: the first whole text and the latest ones, and the latest lines.
        names: keys of its ids.
        tails: places of the ends of prompts that are one text.
        num_running: number of its requests that are not answered yet.
        num_hinted: number of programs that lean on it for a hint alone.
        was_answered: whether one of its requests was answered.
    """

    __slots__ = (
        *("leans_on", "names", "num_hinted", "num_running", "number", "open", "passed", "pieces", "tails"),
        *("tenant", "was_answered"),
    )

    def __init__(self, number: int, tenant: TenantPrograms, leans_on: int) -> None:
        self.number = number
        self.tenant = tenant
        self.leans_on = leans_on
        self.open: tuple[tuple[Key, Key], ...] = ()
        self.passed: tuple[Key, ...] = ()
        self.pieces: tuple[Piece, ...] = ()
        self.names: tuple[Key, ...] = ()
        self.tails: tuple[tuple[Key, Tail], ...] = ()
        self.num_running = self.num_hinted = 0
        self.was_answered = False

    @property
    def is_known(self) -> bool:
        """Whether it is worth to be remembered: a later request can be found to be part of it."""
        return self.was_answered and bool(self.open or self.passed or self.names)

    def open_end(self, key: Key) -> tuple[Key, Key] | None:
        """Return the end with a key, with or without its answer, that no later prompt goes on from."""
        return next((end for end in self.open if key in end), None)

    def keys(self) -> Iterator[Key]:
        """Yield all keys that lead to the program, each as often as it does."""
        yield from self.names
        yield from self.passed
        for end in self.open:
            yield from dict.fromkeys(end)
        for piece in self.pieces:
            yield piece[1]


@dataclass(slots=True, eq=False)
class TenantPrograms:
    """A tenant that has programs.

    Attributes:
        programs: programs of the tenant; the one that was used longest ago comes first.
        weight: number of its programs and of their keys.
        num_vain: prompts in a row in which no answer was found, searched or not.
    """

    name: str
    programs: dict[RecognisedProgram, None] = field(default_factory=dict)
    weight: int = 0
    num_vain: int = 0
