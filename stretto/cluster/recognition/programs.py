"""The programs that are known, by tenant and by key, within a bound.

A tenant that has more than others gives way first. So a client that invents programs loses its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from random import Random

from stretto.cluster.recognition.anchors import WHOLE, Anchors, KnownAnchors, Piece
from stretto.cluster.recognition.fingerprints import TAIL, Key, PromptEnding, Tail
from stretto.cluster.recognition.program_keys import ProgramKeys, TenantWeights
from stretto.cluster.recognition.recognised_program import End, RecognisedProgram, TenantPrograms

_MOST_OPEN, _MOST_PASSED, _MOST_TEXTS, _MOST_LINES, _MOST_NAMES = 32, 4, 12, 8, 8
_MOST_FOUND = 64
"""Programs whose texts are compared with a prompt."""
_SEARCHED = 1 / 8
"""Share of the prompts that are searched for answers where that is vain."""
_MOST_ALIKE = 2
"""Programs that may have generated the same text; what more of them have is nobody's own."""


class Programs:
    """All programs that are known.

    Attributes:
        keys: what leads to each.
        tails: lengths of the last blocks of prompts that are one text, with how often they occur.

    Args:
        most: number of programs, of eight keys each, that are kept. Those that run are kept in any case.
        most_vain: searches of a tenant in a row without a find, after which searching counts as vain.
    """

    def __init__(self, most: int, most_vain: int) -> None:
        self._most_vain = most_vain
        self._choices = Random(0)  # every eighth would miss what comes in pairs
        self.tails: dict[Key, dict[int, int]] = {}
        self._weights = TenantWeights()
        self.keys = ProgramKeys(self._weights)
        self._tenants: dict[str, TenantPrograms] = {}
        self._anchors = KnownAnchors(8 * most)
        self._most_weight = 9 * most
        self._num_added = self._num = 0

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[RecognisedProgram]:
        for tenant in self._tenants.values():
            yield from tenant

    def is_worth_search(self, tenant_name: str) -> bool:
        """Return whether a prompt of a tenant is to be searched for answers of its programs. Where all
        prompts are questions by themselves, as those of chats, only a few are.
        """
        if (tenant := self._tenants.get(tenant_name)) is None:
            return True
        tenant.num_vain += 1
        return tenant.num_vain <= self._most_vain or self._choices.random() < _SEARCHED

    def with_any(self, texts: Iterable[Anchors], tenant: str) -> list[RecognisedProgram]:
        """Return the programs of a tenant that anchors of some texts lead to, the oldest first; of many
        programs the latest. An anchor that leads to many says nothing.
        """
        programs: dict[RecognisedProgram, None] = {}
        for key in dict.fromkeys(key for text in texts for key in text.known(self._anchors)):
            if len(found := self.keys.of(key, tenant)) <= _MOST_ALIKE:
                programs |= dict.fromkeys(found)
        return sorted(programs, key=lambda program: program.number)[-_MOST_FOUND:]

    def add(self, tenant_name: str, leans_on: int = 0) -> RecognisedProgram:
        """Return a new program of a tenant."""
        tenant = self._tenants.get(tenant_name)
        if tenant is None:
            tenant = self._tenants[tenant_name] = TenantPrograms(tenant_name)
        self._num_added += 1
        self._num += 1
        program = RecognisedProgram(self._num_added, tenant, leans_on)
        tenant.add(program)
        self._weights.add(tenant, 1)
        return program

    def use(self, program: RecognisedProgram) -> None:
        """Note that a program is used now."""
        program.tenant.remove(program)
        program.tenant.add(program)

    def forget(self, program: RecognisedProgram) -> None:
        """Forget a program."""
        for key in list(program.keys()):
            self.keys.unlink(key, program)
        for tail in program.tails():
            self._drop_tail(tail)
        for piece in program.pieces:
            self._anchors.discard(piece[1])
        tenant = program.tenant
        tenant.remove(program)
        self._num -= 1
        self._weights.add(tenant, -1)
        if tenant.oldest is None:
            self._weights.forget(tenant)
            del self._tenants[tenant.name]

    def limit(self) -> None:
        """Forget programs, those that were used longest ago of the largest tenants, until the rest fits."""
        num_running = 0
        while self._weights.weight > self._most_weight and num_running < len(self._tenants) + 64:
            tenant = self._weights.heaviest()
            program = tenant.oldest
            assert program is not None
            if program.num_running:
                num_running += 1
                self.use(program)
            else:
                self.forget(program)

    # --- what is known of one program

    def name(self, program: RecognisedProgram, key: Key) -> None:
        """Let the key of an id lead to a program: the first one, that of its root, and those named last."""
        if key not in program.names:
            program.names = (*program.names, key)
            self.keys.link(key, program)
            if len(program.names) > _MOST_NAMES:
                self.keys.unlink(program.names[1], program)
                program.names = (program.names[0], *program.names[2:])
        elif key != program.names[0]:
            program.names = (*(one for one in program.names if one != key), key)

    def end(self, program: RecognisedProgram, plain: PromptEnding, answered: PromptEnding | None) -> None:
        """Note where a prompt of a program ended, and where with its answer if that is known."""
        end = plain if answered is None else answered
        if program.open_end(end.key) is not None:
            return
        key, other = end.key, end.key if end.tail else plain.key
        program.open = (*program.open, key, other, end.tail)
        self.keys.link(key, program)
        if other != key:
            self.keys.link(other, program)
        if end.tail:
            block, length = divmod(end.tail, TAIL)
            lengths = self.tails.setdefault(block, {})
            lengths[length] = lengths.get(length, 0) + 1
        if len(program.open) > 3 * _MOST_OPEN:
            self.go_past(program, program.open[:3])

    def go_past(self, program: RecognisedProgram, end: End) -> None:
        """Note that a later prompt goes on from an end of a program."""
        key, other, tail = end
        program.open = tuple(chain.from_iterable(one for one in program.ends() if one != end))
        self.keys.unlink(key, program)
        if other != key:
            self.keys.unlink(other, program)
        self.passes(program, key, tail)

    def passes(self, program: RecognisedProgram, key: Key, tail: Tail = 0) -> None:
        """Let a key lead to a program that a prompt may go on from at any time."""
        program.passed = (*program.passed, key, tail)
        self.keys.link(key, program)
        if len(program.passed) > 2 * _MOST_PASSED:
            gone, tail = program.passed[2:4]
            program.passed = (*program.passed[:2], *program.passed[4:])
            self.keys.unlink(gone, program)
            self._drop_tail(tail)

    def generated(self, program: RecognisedProgram, piece: Piece) -> None:
        """Note a text that a program generated."""
        if piece in program.pieces:
            return
        program.pieces = (*program.pieces, piece)
        self.keys.link(piece[1], program)
        self._anchors.add(piece[1])
        is_line = piece[0] < WHOLE
        alike = [one for one in program.pieces if (one[0] < WHOLE) is is_line]
        if len(alike) > (_MOST_LINES if is_line else _MOST_TEXTS):
            gone = alike[0 if is_line else 1]
            program.pieces = tuple(one for one in program.pieces if one is not gone)
            self.keys.unlink(gone[1], program)
            self._anchors.discard(gone[1])

    def check_invariants(self) -> None:
        """Check that keys, tails and weights agree with the programs. For tests."""
        anchors = (piece[1] for program in self for piece in program.pieces)
        self._anchors.check_invariants(anchors)
        tails: dict[Key, dict[int, int]] = {}
        for name, tenant in self._tenants.items():
            assert tenant.name == name
            assert tenant.oldest is not None
            assert tenant.weight == sum(1 + len(list(one.keys())) for one in tenant)
            for tail in (tail for one in tenant for tail in one.tails() if tail):
                block, length = divmod(tail, TAIL)
                lengths = tails.setdefault(block, {})
                lengths[length] = lengths.get(length, 0) + 1
        assert tails == self.tails
        assert self._num == len(list(self))
        self._weights.check_invariants(self._tenants.values())
        self.keys.check_invariants()

    def _drop_tail(self, tail: Tail) -> None:
        if not tail:
            return
        block, length = divmod(tail, TAIL)
        lengths = self.tails[block]
        lengths[length] -= 1
        if not lengths[length]:
            del lengths[length]
            if not lengths:
                del self.tails[block]
