"""Two prompts of the same kind of program, compared: what has changed before text that stays.

A prompt that goes on with an earlier one should begin with all of it. Prompts of two conversations should be
the same up to where their tasks begin. What stands behind the first change and stays the same is computed
again by a server, though it need not be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from stretto.model.record import record
from stretto.operate.prefix.redaction import Rule, changed_line
from stretto.operate.prefix.seen_prompt import CHARS_PER_TOKEN, SALT, SeenPrompt, pieces_of
from stretto.wire.prompt_texts import PromptPart, dumped, tool_name

LEAST_TOKENS = 256
"""Tokens of text behind a change that are worth telling."""
HISTORY = "history"
"""Place of a change behind the first answer of a conversation."""
_LEAST_SHARED = 0.2
"""Share of a prompt's pieces that another one has of the same kind."""
_LEAST_ANSWER = 40
"""Characters of an answer by which a conversation is known."""
_SAME_WORDS = 0.6
_WORD = re.compile(r"\w+")
_MOST_SAMPLE = 160
_LETTERS = "etaoinshr0123456789"
_MOST_ORDERED = 20_000
"""Characters of a text whose words are sorted, to see whether they only changed places."""


@record
class Change:
    """What has changed in a prompt before text that stays.

    Attributes:
        place: part of the prompt, such as "system" or "tools", or `HISTORY`.
        line: number of the line there, from 1 on.
        at_tokens: tokens of the prompt before the change, estimated.
        lost_tokens: tokens behind it that have stayed the same, estimated.
        sample: the line without what changes in it.
        stays: pieces behind the change that have stayed the same, by their hashes, with their lengths; of two
            conversations only.
    """

    rule: Rule
    place: str
    line: int
    at_tokens: int
    lost_tokens: int
    sample: str
    stays: Mapping[int, int]


@record
class Compared:
    """The outcome of a comparison.

    Attributes:
        is_same_conversation: whether the later prompt goes on with the earlier one.
        change: None if there is none, or if nothing stays behind it.
    """

    is_same_conversation: bool
    change: Change | None = None


def best_match(prompt: SeenPrompt, others: Sequence[SeenPrompt]) -> SeenPrompt | None:
    """Return the earlier prompt with which one is compared: the last one of its program, or else the one that
    is most like it; None if none is of its kind.
    """
    for other in reversed(others):
        if prompt.program and other.program == prompt.program and _is_alike(prompt, other):
            return other
    found = max(others, key=lambda other: len(prompt.pieces & other.pieces), default=None)
    return found if found is not None and _is_alike(prompt, found) else None


def _is_alike(one: SeenPrompt, other: SeenPrompt) -> bool:
    least = min(len(one.pieces), len(other.pieces))
    return least > 0 and len(one.pieces & other.pieces) >= _LEAST_SHARED * least


def compare(before: SeenPrompt, now: SeenPrompt) -> Compared:
    """Return what has changed from an earlier prompt to a later one of the same kind."""
    is_same = _is_same_conversation(before, now)
    parts = before.parts if is_same else before.parts[: before.num_opening]
    later = now.parts if is_same else now.parts[: now.num_opening]
    for place, (one, other) in enumerate(zip(parts, later, strict=False)):
        if one.text == other.text and one.area == other.area:
            continue
        name = one.place if place < before.num_opening else HISTORY
        rule = None
        if one.area == "tool" and other.area == "tool":
            rule = _rule_of_tools(_tools_of(parts), _tools_of(later))
            name = name if rule is None else one.place.partition("[")[0]
        return Compared(is_same, _change(before, parts, later, place, rule, name, is_same=is_same))
    return Compared(is_same)


def _is_same_conversation(before: SeenPrompt, now: SeenPrompt) -> bool:
    if not before.answers:
        return bool(before.program) and before.program == now.program
    if len(before.answers) > len(now.answers):
        return False
    pairs = list(zip(before.answers, now.answers, strict=False))
    if not all(one == other or _has_same_words(one, other) for one, other in pairs):
        return False
    return before.program == now.program != "" or any(len(one) >= _LEAST_ANSWER for one, _ in pairs)


def _has_same_words(one: str, other: str) -> bool:
    words, others = (set(_WORD.findall(text[:_MOST_ORDERED])) for text in (one, other))
    return len(words & others) >= _SAME_WORDS * max(len(words), len(others))


def _tools_of(parts: Sequence[PromptPart]) -> list[str]:
    return [part.text for part in parts if part.area == "tool"]


def _rule_of_tools(tools: Sequence[str], later: Sequence[str]) -> Rule | None:
    """Return how a list of tools has changed; None if texts in it have."""
    values, others = (list(map(_canonical, one)) for one in (tools, later))
    if sorted(values) == sorted(others):
        return "order of keys" if values == others else "order of tools"
    names, other_names = (list(map(_name, one)) for one in (tools, later))
    if names == other_names:
        return None
    return "order of tools" if sorted(names) == sorted(other_names) else "set of tools"


def canonical_tools(tools: object) -> object:
    """Return tools in an order that does not depend on how they were put together: sorted by their names,
    with sorted keys and sorted lists of required arguments.
    """
    ordered = _ordered(tools)
    return (
        sorted(ordered, key=lambda tool: (tool_name(tool), dumped(tool)))
        if isinstance(ordered, list)
        else ordered
    )


def _ordered(value: object) -> object:
    if isinstance(value, dict):
        made = {key: _ordered(value[key]) for key in sorted(value)}
        required = made.get("required")
        if isinstance(required, list) and all(isinstance(one, str) for one in required):
            made["required"] = sorted(required)
        return made
    return [_ordered(one) for one in value] if isinstance(value, list) else value


def _canonical(text: str) -> str:
    try:
        return dumped(_ordered(json.loads(text)))
    except (ValueError, RecursionError):
        return text


def _name(text: str) -> str:
    try:
        return tool_name(json.loads(text))
    except (ValueError, RecursionError):
        return ""


def _change(
    before: SeenPrompt,
    parts: Sequence[PromptPart],
    later: Sequence[PromptPart],
    place: int,
    rule: Rule | None,
    name: str,
    *,
    is_same: bool,
) -> Change | None:
    """Return the change that begins in a part of two prompts; None if nothing stays behind it."""
    at = common_length(parts[place].text, later[place].text)
    rest, later_rest = ([one[place].text[at:], *(p.text for p in one[place + 1 :])] for one in (parts, later))
    found = {piece for text in later_rest for piece in pieces_of(text)}
    pieces = [piece for text in rest for piece in pieces_of(text)]
    stays = [piece for piece in pieces if piece in found]
    num_rest = sum(map(len, rest)) + (before.num_chars - sum(len(p.text) for p in before.parts)) * is_same
    lost = num_rest * sum(map(len, stays)) // max(1, sum(map(len, pieces)))
    if lost <= 0:
        return None
    one, other = parts[place], later[place]
    line = one.text.count("\n", 0, at) + 1
    shows_words = one.place != SALT and (one.area in ("tool", "system") or not is_same)
    if rule in ("order of tools", "set of tools"):
        sample = f"{_shown_name(one.text)} before, {_shown_name(other.text)} now"
    elif rule == "order of keys":
        sample = _shown_keys(json.loads(one.text), json.loads(other.text)) or _shown_name(one.text)
    else:
        changed = changed_line(*_lines_at(one.text, other.text, at), masks_words=not shows_words)
        rule, sample = _order_rule(one.text, other.text, at) or changed.rule, changed.shown
    num_before = sum(len(part.text) for part in parts[:place]) + at
    return Change(
        rule,
        name,
        line,
        num_before // CHARS_PER_TOKEN,
        lost // CHARS_PER_TOKEN,
        sample,
        {} if is_same else {hash(piece): len(piece) for piece in stays},
    )


def _order_rule(one: str, other: str, at: int) -> Rule | None:
    """Return how two texts differ if they have the same words in another order; else None."""
    if abs(len(one) - len(other)) > 2 or len(one) > _MOST_ORDERED:
        return None
    if any(one.count(letter) != other.count(letter) for letter in _LETTERS):
        return None
    if sorted(_WORD.findall(one[at:])) != sorted(_WORD.findall(other[at:])):
        words = (sorted(_WORD.findall(text)) for text in (one, other))  # a word may be cut at the change
        if next(words) != next(words):
            return None
    line = one[one.rfind("\n", 0, at) + 1 :]
    return "order of keys" if line.lstrip()[:1] in ("{", "[") else "order of text"


def _shown_name(text: str) -> str:
    return (_name(text) or "a tool")[:64]


def _shown_keys(one: object, other: object) -> str:
    """Return the keys, or the required arguments, of two equal values where their order differs."""
    if isinstance(one, dict) and isinstance(other, dict):
        if list(one) != list(other):
            return f"{', '.join(one)} before; {', '.join(other)} now"[:_MOST_SAMPLE]
        pairs = [(one[key], other.get(key)) for key in one]
    elif isinstance(one, list) and isinstance(other, list):
        if one != other and all(isinstance(name, str) for name in (*one, *other)):
            return f"{', '.join(one)} before; {', '.join(other)} now"[:_MOST_SAMPLE]
        pairs = list(zip(one, other, strict=False))
    else:
        return ""
    return next((shown for pair in pairs if (shown := _shown_keys(*pair))), "")


def _lines_at(one: str, other: str, at: int) -> tuple[str, str, int]:
    """Return the lines of two texts at a place up to which they are the same, and the place there."""
    begin = one.rfind("\n", 0, at) + 1
    ends = [end if (end := text.find("\n", at)) >= 0 else len(text) for text in (one, other)]
    return one[begin : ends[0]], other[begin : ends[1]], at - begin


def common_length(one: str, other: str) -> int:
    """Return the length of the longest common beginning of two texts."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
