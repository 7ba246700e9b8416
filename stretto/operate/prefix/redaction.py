"""Which part of a line has changed, what it is, and the line without what it says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

Rule: TypeAlias = Literal[
    "time", "id", "number", "text", "order of tools", "order of keys", "order of text", "set of tools"
]
"""What changes in prompts of a kind."""

_MOST_SHOWN = 40
"""Characters of a line that are shown on each side of what changes."""
_MOST_LINE = 2000
"""Characters of a line that are looked at on each side of its first change."""
_MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d(?::?\d\d){0,2}(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\d{1,2}:\d\d(?::\d\d)?(?:\.\d+)?(?: ?[ap]m\b)?"
    r"|\d{1,2}[./]\d{1,2}[./](?:\d{4}|\d\d)\b"
    rf"|\b(?:{_MONTHS})[a-z]* \d{{1,2}}\b(?:,? \d{{4}})?|\b\d{{1,2}}\.? (?:{_MONTHS})[a-z]*\b(?:,? \d{{4}})?"
    r"|\b(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\b"
    r"|\b1[5-9]\d{8}(?:\d{3})?(?:\.\d+)?\b",
    re.IGNORECASE,
)
_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?<![\w-])-*+(?=[a-z_-]*\d)(?=[\d_-]*[a-z])[a-z\d_-]{5,}\b|\b[0-9a-f]{8,}\b|\b\d{9,}\b",
    re.IGNORECASE,
)
"""Each part of a line is looked at a few times only, whatever a stranger has written there."""
_NUMBER = re.compile(r"\d[\d.,%/]*")
_SECRET = re.compile(
    r"(?<=://)[^\s/@]+(?=@)"
    r"|(?:(?<=password)|(?<=passwd)|(?<=pwd)|(?<=secret)|(?<=bearer))(?: is\b|[\"'`]? ?[:=])? ?[^\s,;]+"
    r"|(?:(?<=key)|(?<=token)|(?<=pw))(?: is\b|[\"'`]? ?[:=]) ?[^\s,;]+"
    r"|[^\s\"'`<>(){}\[\],;:=]{20,}"
    r"|(?<![\w+-])(?=[A-Za-z+_-]*\d)(?=[\d+_-]*[A-Za-z])[A-Za-z\d+_-]{8,}",
    re.IGNORECASE,
)
"""What may be a key or a password: what is named so, what is long, and what has letters and digits."""

_BETWEEN_WORDS = frozenset(" \t\r\"'`<>(){}[],;:=")


class ChangedLine(NamedTuple):
    """How a line has changed.

    Attributes:
        rule: what the changed part is.
        shown: the line without it, and without what may be secret.
    """

    rule: Rule
    shown: str


def changed_line(before: str, now: str, at: int, *, masks_words: bool) -> ChangedLine:
    """Return how a line has changed.

    Args:
        at: place of the first change, in characters.
        masks_words: whether letters and digits are masked too, where the line may be what somebody has said.
    """
    lo = max(0, at - _MOST_LINE)
    before, now, at = before[lo : at + _MOST_LINE], now[lo : at + _MOST_LINE], at - lo
    most = min(len(before), len(now)) - at
    same = 0
    while same < most and before[-1 - same] == now[-1 - same]:
        same += 1
    spans = [(at, max(at + 1, len(text) - same)) for text in (before, now)]
    rule, (begin, end) = _rule_of((before, now), spans)
    # masked before it is cut, so that no part of a key is taken for a shorter word
    head, tail = (_masked(part, masks_words=masks_words) for part in (now[:begin], now[end:]))
    return ChangedLine(rule, f"{head[-_MOST_SHOWN:]}⟨{rule}⟩{tail[:_MOST_SHOWN]}".strip())


def _rule_of(lines: Sequence[str], spans: Sequence[tuple[int, int]]) -> tuple[Rule, tuple[int, int]]:
    """Return what has changed between two lines at two places, and the whole of it in the second line."""
    rules: tuple[tuple[Rule, re.Pattern[str]], ...] = (("time", _TIME), ("id", _ID), ("number", _NUMBER))
    for rule, pattern in rules:
        found = [
            next(((m.start(), m.end()) for m in pattern.finditer(line) if m.start() <= lo < m.end()), None)
            for line, (lo, _) in zip(lines, spans, strict=True)
        ]
        if found[1] is not None and (found[0] is not None or rule == "id"):
            begin, end = found[1]
            rest = lines[1][end : spans[1][1]]
            if len(rest) <= 2 * (end - begin) + _MOST_SHOWN:  # else far more changes than that
                return rule, (begin, max(end, spans[1][1]))
    return "text", _whole_words(lines[1], spans[1])


def _whole_words(line: str, span: tuple[int, int]) -> tuple[int, int]:
    """Return a place with the rest of the words at its ends: a name or a password may change in part."""
    begin, end = span
    while begin and line[begin - 1] not in _BETWEEN_WORDS:
        begin -= 1
    while end < len(line) and line[end] not in _BETWEEN_WORDS:
        end += 1
    return begin, end


def _masked(text: str, *, masks_words: bool) -> str:
    text = printable(text)
    if masks_words:
        return "".join("x" if c.isalpha() else "0" if c.isdigit() else c for c in text)
    return _SECRET.sub("…", text)


def printable(text: str) -> str:
    """Return a text with spaces in place of control characters, which would rule a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)
