"""Repairs of prompts, by which they begin as earlier ones did: a line that changes is dropped or moved to the
end, and tools are written in one order.

A repair is done only where the settings ask for it, and a header of the answer says so. Lines are those of
the system prompt and of what comes before the first answer. Nothing else of a body changes, but that the
fields that are edited are written anew as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from stretto.model.errors import ConfigError
from stretto.operate.prefix.comparison import canonical_tools
from stretto.router.body_edits import Span, values_of
from stretto.wire.prompt_texts import TOOL_FIELDS, Area, area_of, dumped

_MOST_PATTERN = 200
_HEADS = ("system", "instructions")
_ITEMS = ("messages", "input")
_APIS = ("completions", "responses", "messages")
"""Last parts of the paths of requests with prompts. What is asked of an embedding is not its prompt."""
_MOST_LINES = 16
"""Lines that one rule takes from one prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairConfig:
    """One rule. It has one of these.

    Attributes:
        drop_line: pattern of lines that are left out; `*` stands for any characters of the line.
        move_line: pattern of lines that are moved to the end of the last message.
        canonical_tools: whether tools are sorted by their names, with sorted keys and required arguments.
    """

    drop_line: str = ""
    move_line: str = ""
    canonical_tools: bool = False

    def __post_init__(self) -> None:
        if bool(self.drop_line) + bool(self.move_line) + self.canonical_tools != 1:
            raise ConfigError("repair: it must have one of drop_line, move_line and canonical_tools = true")
        pattern = self.drop_line or self.move_line
        if len(pattern) > _MOST_PATTERN or "\n" in pattern:
            raise ConfigError(
                f"repair: the pattern {pattern!r:.60} must be a part of one line, of at most {_MOST_PATTERN} "
                "characters"
            )
        if pattern and not pattern.replace("*", "").strip():
            raise ConfigError(
                f"repair: the pattern {pattern!r} matches every line; it must name some letters"
            )

    @property
    def told(self) -> str:
        """What an answer's header says that was done."""
        if self.canonical_tools:
            return "tools in canonical order"
        return f"dropped: {self.drop_line}" if self.drop_line else f"moved: {self.move_line}"


class Repaired(NamedTuple):
    """A repaired body.

    Attributes:
        fields: fields of the body after the repair.
        edits: places in the body as it came, with the bytes that are to stand there.
        told: what was done, for the header of the answer; "" for nothing.
    """

    fields: Mapping[str, Any]
    edits: Sequence[tuple[Span, bytes]] = ()
    told: str = ""


class Repairs:
    """The rules of a door, in their order."""

    def __init__(self, rules: Sequence[RepairConfig]) -> None:
        self._rules = [(rule, _lines(rule.drop_line or rule.move_line)) for rule in rules]

    def repaired(self, path: str, fields: Mapping[str, Any], body: bytes) -> Repaired:
        """Return the fields of a body, repaired if it asks for answers of an LLM.

        Raises:
            RequestRefused: a field that is edited stands in the body too often.
            RecursionError: tools are nested too deeply.
        """
        if not self._rules or path.rsplit("/", 1)[-1] not in _APIS:
            return Repaired(fields)
        edited, told = dict(fields), []
        for rule, pattern in self._rules:
            done = _canonical(edited) if rule.canonical_tools else _take_lines(edited, pattern, rule)
            if done:
                told.append(rule.told)
        names = [name for name, value in edited.items() if value is not fields[name]]
        edits = [
            (span, json.dumps(edited[name]).encode()) for name in names for span in values_of(body, name)
        ]
        return Repaired(edited, edits, "; ".join(told))


def _lines(pattern: str) -> re.Pattern[str]:
    """Return what matches whole lines, in a time proportional to the text's length for each `*`."""
    first, *rest = map(re.escape, pattern.split("*"))
    if not rest:
        return re.compile(rf"^{first}(?:\n|\Z)", re.MULTILINE)
    *middle, last = rest
    found = "".join(rf"(?>[^\n]*?{one})" for one in middle)
    return re.compile(rf"^{first}{found}[^\n]*(?<={last})(?:\n|\Z)", re.MULTILINE)


def _canonical(fields: dict[str, Any]) -> bool:
    """Put the tools of a body into one order; return whether that changed them."""
    done = False
    for name in TOOL_FIELDS:
        if isinstance(tools := fields.get(name), list):
            try:
                made = canonical_tools(tools)
                is_same = dumped(made) == dumped(tools)
            except RecursionError:
                continue  # nested too deeply; sent as it came
            if not is_same:
                fields[name], done = made, True
    return done


def _take_lines(fields: dict[str, Any], pattern: re.Pattern[str], rule: RepairConfig) -> bool:
    """Take the lines that match from the head of a prompt; return whether there were any. They are put at the
    end of its last message if the rule says so.
    """
    taken: list[str] = []
    is_moved = bool(rule.move_line)
    items = next((name for name in _ITEMS if name in fields), None)
    if items is None and (is_moved or not isinstance(fields.get("prompt"), str)):
        return False  # a text has no last message

    def without(text: str) -> str:
        found = [one[0].removesuffix("\n") for one in pattern.finditer(text)]
        if not found or len(taken) + len(found) > _MOST_LINES:
            return text
        taken.extend(found)
        return pattern.sub("", text)

    def left_of(content: Any, area: Area = "message") -> Any:
        num_taken = len(taken)
        left = _content_without(content, without)
        if left or left is content or area == "system":
            return left
        del taken[num_taken:]
        return content  # servers refuse messages of nothing

    made = dict(fields)
    for name in (*_HEADS, *(("prompt",) if items is None else ())):
        if name in made:
            made[name] = left_of(made[name], "system" if name in _HEADS else "text")
    if items is not None:
        made[items] = _opening_without(made[items], left_of)
    if not taken:
        return False
    if is_moved and items is not None:
        put = _with_end(made[items], "\n".join(taken), "input_text" if items == "input" else "text")
        if put is None:
            return False
        made[items] = put
    fields.update({name: value for name, value in made.items() if value is not fields[name]})
    return True


def _content_without(content: Any, without: Callable[[str], str]) -> Any:
    """Return a content without some lines; the same object if it has none of them."""
    if isinstance(content, str):
        return without(content)
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str) and (left := without(text)) != text:
            if left:
                parts.append({**part, "text": left})
        else:
            parts.append(part)
    is_same = len(parts) == len(content) and all(a is b for a, b in zip(parts, content, strict=True))
    return content if is_same else parts


def _opening_without(items: Any, left_of: Callable[..., Any]) -> Any:
    """Return messages of which those before the first answer have what is left of their contents."""
    if not isinstance(items, list):
        return left_of(items)
    made = list(items)
    for place, item in enumerate(items):
        if not isinstance(item, dict):
            continue
        if area_of(item) == "answer":
            break
        content = item.get("content")
        if (left := left_of(content, area_of(item))) is not content and left != content:
            made[place] = {**item, "content": left}
    return items if all(a is b for a, b in zip(made, items, strict=True)) else made


def _with_end(items: Any, text: str, kind: str) -> Any:
    """Return messages with a text at the end of the last one that is no answer; None if none can have it."""
    if isinstance(items, str):
        return f"{items}\n{text}"
    if not isinstance(items, list):
        return None
    for place in range(len(items) - 1, -1, -1):
        item = items[place]
        if not isinstance(item, dict) or area_of(item) != "message":
            continue
        name = "output" if item.get("type") == "function_call_output" else "content"
        content = item.get(name)
        if isinstance(content, str):
            return [*items[:place], {**item, name: f"{content}\n{text}"}, *items[place + 1 :]]
        if isinstance(content, list) and name == "content":
            added = [*content, {"type": kind, "text": text}]
            return [*items[:place], {**item, name: added}, *items[place + 1 :]]
    return None
