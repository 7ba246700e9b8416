"""A program that was recognised, and the tenant that it is of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from stretto.cluster.recognition.anchors import Piece
from stretto.cluster.recognition.fingerprints import Key, Tail

End: TypeAlias = tuple[int, ...]
"""Where a prompt of a program ended: the key with the answer, the key without it, and the tail. The keys are
equal if the answer is not known, or if the prompt is one text."""


class RecognisedProgram:
    """A program that was recognised. Numbers in flat tuples keep it small, as there may be a million.

    Attributes:
        number: number that no other program has.
        leans_on: number of the program that it may be part of, which is not sure; 0 if there is none.
        open: ends of its prompts that no later prompt goes on from yet, the numbers of one after the other.
        passed: ends that a later prompt went on from, the first one and the latest: key and tail of each.
        pieces: what it generated: the first whole text and the latest ones, and the latest lines.
        names: keys of its ids.
        num_running: number of its requests that are not answered yet.
        num_hinted: number of programs that lean on it for a hint alone.
        was_answered: whether one of its requests was answered.
        before, after: programs of its tenant that were used before it and after it.
    """

    __slots__ = (
        *("after", "before", "leans_on", "names", "num_hinted", "num_running", "number", "open", "passed"),
        *("pieces", "tenant", "was_answered"),
    )

    def __init__(self, number: int, tenant: TenantPrograms, leans_on: int) -> None:
        self.number = number
        self.tenant = tenant
        self.leans_on = leans_on
        self.open: tuple[int, ...] = ()
        self.passed: tuple[int, ...] = ()
        self.pieces: tuple[Piece, ...] = ()
        self.names: tuple[Key, ...] = ()
        self.num_running = self.num_hinted = 0
        self.was_answered = False
        self.before: RecognisedProgram | None = None
        self.after: RecognisedProgram | None = None

    @property
    def is_known(self) -> bool:
        """Whether it is worth to be remembered: a later request can be found to be part of it."""
        return self.was_answered and bool(self.open or self.passed or self.names)

    def ends(self) -> Iterator[End]:
        """Yield the ends of its prompts that no later prompt goes on from."""
        return (self.open[place : place + 3] for place in range(0, len(self.open), 3))

    def open_end(self, key: Key) -> End | None:
        """Return the end with a key, with or without its answer, that no later prompt goes on from."""
        return next((end for end in self.ends() if key in end[:2]), None)

    def keys(self) -> Iterator[Key]:
        """Yield all keys that lead to the program, each as often as it does."""
        yield from self.names
        yield from self.passed[::2]
        for key, plain, _ in self.ends():
            yield from (key,) if plain == key else (key, plain)
        for piece in self.pieces:
            yield piece[1]

    def tails(self) -> Iterator[Tail]:
        """Yield the tails of its ends; those of prompts that consist of turns are 0."""
        yield from self.open[2::3]
        yield from self.passed[1::2]


@dataclass(slots=True, eq=False)
class TenantPrograms:
    """A tenant that has programs.

    Attributes:
        weight: number of its programs and of their keys.
        num_vain: prompts in a row in which no answer was found, searched or not.
        oldest, latest: programs that were used longest ago and last.
    """

    name: str
    weight: int = 0
    num_vain: int = 0
    oldest: RecognisedProgram | None = None
    latest: RecognisedProgram | None = None

    def __iter__(self) -> Iterator[RecognisedProgram]:
        """Iterate over its programs, from the oldest on."""
        program = self.oldest
        while program is not None:
            yield program
            program = program.after

    def add(self, program: RecognisedProgram) -> None:
        """Add a program, as the one that was used last."""
        program.before, program.after, before = self.latest, None, self.latest
        self.latest = program
        if before is None:
            self.oldest = program
        else:
            before.after = program

    def remove(self, program: RecognisedProgram) -> None:
        """Remove a program, which keeps none of the others alive from now on."""
        before, after = program.before, program.after
        program.before = program.after = None
        if before is None:
            self.oldest = after
        else:
            before.after = after
        if after is None:
            self.latest = before
        else:
            after.before = before
