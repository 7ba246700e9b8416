"""The machine that says which program a request belongs to. It decides by these rules, in their order:

- **Ids.** A program that a client names by an id is that program, for this tenant alone. A child that names
  its parent belongs to the parent's program.
- **Containment.** A prompt goes on with the program of the longest earlier prompt *and its answer* with which
  it begins. If the answer is not known, the prompt alone decides. A first prompt is nobody's: openings are
  shared by all sessions of a harness.
- **Forks and twins.** Of several programs that had the same prompt and answer, a later prompt belongs to the
  one that nobody has gone on from yet; an older one that has gone past this point is a twin. If all have, it
  is a fork of the latest. If several wait there, it is a new program: a wrong choice would last.
- **An answer that stands inside.** A prompt in which an earlier answer of at least 40 characters stands, or
  whose task stands in an earlier answer or in its call of a tool, belongs to the program of that answer: its
  history was rewritten, or it is a sub-agent. Only a prompt that nothing else is known of is searched. Where
  that was vain for long only some of these prompts are, and only their answers are noted.
- **Confidence.** A join is certain (an id), sure, or doubtful. After a doubtful join the request is a new
  program, which *leans on* the other one: the two are told as one, but not served as one, because a wrong
  join would do harm in turns, shares, room and ends.
- **Only what was answered is remembered.** So an invented id costs an answer of a server.

The machine is pure. It knows no time: of the programs of the largest tenants, those that were used longest
ago are forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.cluster.recognition.anchors import WHOLE, anchor_pieces
from stretto.cluster.recognition.fingerprints import KEY, Key, PromptEnding, PromptPrint
from stretto.cluster.recognition.messages import (
    AnswerTexts,
    AskedProgram,
    Confidence,
    Recognised,
    Way,
)
from stretto.cluster.recognition.programs import Programs
from stretto.cluster.recognition.recognised_program import End, RecognisedProgram
from stretto.model.record import record

_SURE_ANCHORS = 2
"""Anchors of a program's texts that must stand in a prompt before their program is sure."""
_LEAST_OWN = 160
"""Bytes of an answer that tells a program where it stands as an answer: shorter ones are often the same."""
_LEAST_LINES = 3
"""Lines of a program's answers that stand in a prompt which is not one of them."""
_MOST_TWINS = 2
"""Programs with the same prompt and answer, of which all but one have gone past that point; of more, one that
was forgotten may be meant."""
_MOST_HINTED = 4
"""Programs that lean on one for a hint; from then on the hint is taken for that of a whole app."""


_MOST_VAIN = 256
_KNOWN: tuple[Way, ...] = "id", "continues", "forks"
"""Ways in which a request is found to go on with its program."""


@record
class _Found:
    """A program that a request may be part of; `end` is the end of a prompt that the request goes on from."""

    program: RecognisedProgram
    confidence: Confidence
    way: Way
    end: End | None = None


@dataclass(slots=True, eq=False)
class _Running:
    """A request that is not answered yet.

    Attributes:
        own: prompt of a request of which nothing else is known, as far as it is searched; else empty.
        is_noted: whether it is noted by what its answer is known again.
    """

    program: RecognisedProgram
    end: PromptEnding | None
    own: bytes
    is_noted: bool
    is_last: bool


class Recogniser:
    """The state machine that recognises programs; see above.

    Args:
        most_programs: number of programs, of eight keys each, that are remembered.
        most_vain: prompts of a tenant in a row that are searched without a find before most are not searched.
    """

    def __init__(self, most_programs: int = 1_000_000, most_vain: int = _MOST_VAIN) -> None:
        self._programs = Programs(most_programs, most_vain)
        self._running: dict[int, _Running] = {}
        self._num_asked = 0

    def __len__(self) -> int:
        """Return the number of programs that are remembered."""
        return len(self._programs)

    def arrive(self, asked: AskedProgram) -> Recognised:
        """Return the program of a request that arrives."""
        found = self._find(asked)
        if found is not None and found.confidence == "new":
            found = None
        if found is None or found.confidence == "doubtful":
            program = self._programs.add(asked.tenant, _root(found))
        else:
            program = found.program
            self._programs.use(program)
        if found is not None and found.end is not None:
            self._programs.go_past(found.program, found.end)
        program.num_running += 1
        self._num_asked += 1
        ids, prompt = asked.ids, asked.prompt
        is_last = ids.is_final and bool(ids.name) and not ids.parent  # a child's end is not the program's
        hint = "" if found is not None and found.way == "hint" else ids.hint
        for name in (ids.parent, ids.name, hint):  # the root first
            if name:
                self._programs.name(program, _key(asked.tenant, name))
        own, is_noted = b"", True
        if prompt is not None and not ids.name and (found is None or found.way not in _KNOWN):
            is_noted = prompt.was_searched
            own = prompt.data if is_noted else b""
        self._running[self._num_asked] = _Running(
            program, None if prompt is None else prompt.end, own, is_noted, is_last
        )
        self._programs.limit()
        way: Way = "opening" if found is None else found.way
        confidence: Confidence = "new" if found is None else found.confidence
        if found is None and ids.name:
            way, confidence = "id", "certain"
        return Recognised(
            self._num_asked,
            program.number,
            program.leans_on or program.number,
            "doubtful" if program.leans_on else confidence,
            way,
            is_last,
        )

    def answered(self, key: int, answer: AnswerTexts | None = None) -> None:
        """Note that a request has been answered; `answer` is None if its text is not known. Nothing happens
        if the request has ended already.
        """
        if (running := self._running.pop(key, None)) is None:
            return
        program = running.program
        program.num_running -= 1
        if running.is_last:
            if not program.num_running:
                self._programs.forget(program)
            return
        program.was_answered = True
        self._programs.use(program)
        if (end := running.end) is not None:
            self._programs.end(program, end, None if answer is None else end.answered(answer.turn))
        if answer is not None:
            self._note(running, answer)
        if not program.num_running and not program.is_known:
            self._programs.forget(program)
        self._programs.limit()

    def failed(self, key: int) -> None:
        """Note that a request was not answered. Nothing happens if it has ended already."""
        if (running := self._running.pop(key, None)) is None:
            return
        program = running.program
        program.num_running -= 1
        if not program.num_running and not program.is_known:
            self._programs.forget(program)

    def _note(self, running: _Running, answer: AnswerTexts) -> None:
        """Note by what an answer is known again, except for what it repeats of its prompt."""
        program = running.program
        tenant = program.tenant.name
        if answer.response_id:
            self._programs.passes(program, _key(tenant, f"response:{answer.response_id}"))
        if running.is_noted:
            for piece in anchor_pieces(tenant, answer.text, answer.given, running.own):
                self._programs.generated(program, piece)

    # --- which program

    def _find(self, asked: AskedProgram) -> _Found | None:
        named, contained = self._named(asked), self._contained(asked)
        if named is not None:
            is_same = contained is not None and contained.program is named
            return _Found(named, "certain", "id", contained.end if contained and is_same else None)
        if asked.ids.name:
            is_free = contained is not None and contained.confidence == "sure" and not contained.program.names
            return contained if is_free else None
        return contained or self._inside(asked) or self._hinted(asked)

    def _named(self, asked: AskedProgram) -> RecognisedProgram | None:
        """Return the program that a client names, or whose stored answer it goes on with."""
        ids, tenant = asked.ids, asked.tenant
        stored = f"response:{ids.continues}" if ids.continues else ""
        for name in (ids.name, ids.parent, stored):
            if name and (found := self._programs.keys.of(_key(tenant, name), tenant)):
                return found[-1]
        return None

    def _contained(self, asked: AskedProgram) -> _Found | None:
        """Return the program of the longest earlier prompt and answer with which a prompt begins."""
        if asked.prompt is None:
            return None
        for key in self._programs.keys.known(asked.prompt.points(self._programs.tails)):
            programs = self._programs.keys.of(key, asked.tenant)
            ends = [(one, end) for one in programs if (end := one.open_end(key)) is not None]
            if len(ends) > 1:
                return _Found(ends[0][0], "new", "opening")
            if ends:
                program, end = ends[0]
                is_sure = len(programs) <= _MOST_TWINS and (key == end[0] or bool(program.passed))
                return _Found(program, "sure" if is_sure else "doubtful", "continues", end)
            if programs:
                return _Found(programs[-1], "sure" if len(programs) == 1 else "doubtful", "forks")
        return None

    def _inside(self, asked: AskedProgram) -> _Found | None:
        """Return the program of whose answers one stands in a prompt, or has the prompt's task in it."""
        if asked.prompt is None or not self._programs.is_worth_search(asked.tenant):
            return None
        prompt, best, most, num_found = asked.prompt, None, 0, 0
        texts = prompt.anchors, prompt.answer_anchors
        for program in self._programs.with_any(texts, asked.tenant):
            if num := _num_inside(program, prompt):
                num_found += 1
                if num >= most:
                    best, most = program, num
        if best is None:
            return None
        best.tenant.num_vain = 0
        is_sure = num_found == 1 and most >= _SURE_ANCHORS
        return _Found(best, "sure" if is_sure else "doubtful", "answer_inside")

    def _hinted(self, asked: AskedProgram) -> _Found | None:
        """Return the first program with the same hint, unless the hint is that of a whole app."""
        tenant, hint = asked.tenant, asked.ids.hint
        for program in self._programs.keys.of(_key(tenant, hint), tenant) if hint else ():
            program.num_hinted += 1
            return _Found(program, "doubtful", "hint") if program.num_hinted <= _MOST_HINTED else None
        return None

    def check_invariants(self) -> None:
        """Check that programs, their keys and what runs agree. For tests."""
        self._programs.check_invariants()
        running: dict[RecognisedProgram, int] = {}
        for one in self._running.values():
            running[one.program] = running.get(one.program, 0) + 1
        for program in self._programs:
            assert program.num_running == running.pop(program, 0)
            assert program.num_running or program.is_known
        assert not running


def _num_inside(program: RecognisedProgram, prompt: PromptPrint) -> int:
    """Return the evidence that a program's answers stand in a prompt: the number of their anchors there."""
    num_task, whole, num_lines = len(prompt.task), 0, 0
    for kind, *piece in program.pieces:
        found = prompt.anchors.have(piece)
        whole += found if kind >= num_task else 0
        num_lines += bool(found)
        if kind >= WHOLE + _LEAST_OWN:
            whole += prompt.answer_anchors.have(piece)
    return whole or (num_lines if num_lines >= _LEAST_LINES else 0)


def _root(found: _Found | None) -> int:
    """Return the number of the program on which a new one leans."""
    return 0 if found is None else found.program.leans_on or found.program.number


def _key(tenant: str, name: str) -> Key:
    return hash((tenant, "name", name)) & KEY
