"""Calls of programs whose truth is known, and what a recogniser makes of them."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.cluster.recognition.ids import read_ids
from stretto.cluster.recognition.messages import AskedProgram
from stretto.cluster.recognition.recogniser import Recogniser
from stretto.wire.answer_start import AnswerStart
from stretto.wire.turns import read_prompt

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True, slots=True)
class TrueCall:
    """A call as a client makes it, with the program that makes it.

    Attributes:
        answer: body of the answer; None if it fails.
        kind: what the call is to its program, for the table.
    """

    program: str
    start_s: float
    end_s: float
    path: str
    fields: Mapping[str, Any]
    answer: Mapping[str, Any] | None
    kind: str


@dataclass(slots=True)
class Joined:
    """Counts of calls by what was made of them.

    Attributes:
        right: later calls that were joined with their program.
        wrong: later calls that were joined with another one.
        lost: later calls that were joined with none.
        openings: first calls of a program.
        wrong_openings: first calls that were joined with another program.
        wrong_sure: calls that were joined wrongly, and not as doubtful.
        doubtful: calls that were joined as doubtful.
        by_kind: (right, wrong, lost) of later calls by their kind.
    """

    right: int = 0
    wrong: int = 0
    lost: int = 0
    openings: int = 0
    wrong_openings: int = 0
    wrong_sure: int = 0
    doubtful: int = 0
    by_kind: dict[str, list[int]] = field(default_factory=dict)

    @property
    def later(self) -> int:
        """Number of later calls."""
        return self.right + self.wrong + self.lost


def recognise(
    calls: Iterable[TrueCall], *, reads_answers: bool = True, restart_s: float | None = None
) -> Joined:
    """Let a recogniser see calls in the order of their times, and count what it makes of them.

    Args:
        reads_answers: whether it sees the texts of answers.
        restart_s: time at which a new recogniser begins without memory. Only calls after it count, and the
            first call of each program after it counts as an opening.
    """
    recogniser, counts = Recogniser(), Joined()
    truth: dict[int, str] = {}
    seen: set[str] = set()
    running: list[tuple[float, int, TrueCall, int]] = []
    for number, call in enumerate(sorted(calls, key=lambda one: one.start_s)):
        while running and running[0][0] <= call.start_s:
            _, _, ended, key = heapq.heappop(running)
            _end(recogniser, ended, key, reads_answers=reads_answers)
        if restart_s is not None and call.start_s >= restart_s:
            recogniser, counts, restart_s = Recogniser(), Joined(), None
            truth.clear()
            seen.clear()
            running.clear()
        prompt = read_prompt(call.path, call.fields, "")
        found = recogniser.arrive(AskedProgram("", read_ids((), call.fields), prompt))
        heapq.heappush(running, (call.end_s, number, call, found.key))
        joined = truth.get(found.told_as)
        _count(counts, call, joined, is_first=call.program not in seen, confidence=found.confidence)
        truth.setdefault(found.program, joined or call.program)
        seen.add(call.program)
    return counts


def _end(recogniser: Recogniser, call: TrueCall, key: int, *, reads_answers: bool) -> None:
    if call.answer is None:
        recogniser.failed(key)
    elif reads_answers:
        answer = AnswerStart(call.path)
        answer.take_whole(json.dumps(call.answer).encode())
        recogniser.answered(key, answer.texts())
    else:
        recogniser.answered(key)


def _count(counts: Joined, call: TrueCall, joined: str | None, *, is_first: bool, confidence: str) -> None:
    is_wrong = joined is not None and joined != call.program
    counts.doubtful += joined is not None and confidence == "doubtful"
    counts.wrong_sure += is_wrong and confidence != "doubtful"
    if is_first:
        counts.openings += 1
        counts.wrong_openings += is_wrong
        return
    place = 1 if is_wrong else 2 if joined is None else 0
    counts.by_kind.setdefault(call.kind, [0, 0, 0])[place] += 1
    counts.right += place == 0
    counts.wrong += place == 1
    counts.lost += place == 2


def add(one: Joined, other: Joined) -> Joined:
    """Return the counts of two runs together."""
    kinds: dict[str, list[int]] = {}
    for name, counts in [*one.by_kind.items(), *other.by_kind.items()]:
        kinds[name] = [a + b for a, b in zip(kinds.get(name, [0, 0, 0]), counts, strict=True)]
    return Joined(
        one.right + other.right,
        one.wrong + other.wrong,
        one.lost + other.lost,
        one.openings + other.openings,
        one.wrong_openings + other.wrong_openings,
        one.wrong_sure + other.wrong_sure,
        one.doubtful + other.doubtful,
        kinds,
    )


def chat_answer(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of an answer to a chat."""
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "message": dict(message)}]}


def text_answer(text: str) -> dict[str, Any]:
    """Return the body of an answer to a completion."""
    return {"id": "cmpl-1", "choices": [{"index": 0, "text": text}]}


def interleaved(sessions: Sequence[Sequence[TrueCall]]) -> list[TrueCall]:
    """Return the calls of all sessions in the order of their times."""
    return sorted((call for calls in sessions for call in calls), key=lambda one: one.start_s)
