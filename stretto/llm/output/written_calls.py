"""Calls of tools that a model has written in a reply of its own form, in place of the one that was asked for.

Servers that do not parse them leave them as text, perhaps in a fence or between tags.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from stretto.llm.output.list_items import ListItems
from stretto.llm.output.tool_calls import WrittenCall, read_tool_call
from stretto.model.errors import BadReply

_LIKE_CALLS = re.compile(r"\s*(?:```(?:json)?\s*)?(?:<\|?(?:tool_call|python_tag)\|?>\s*)?[\[{]")
_TAGS = re.compile(r"</?tool_call>|<\|python_tag\|>")
_MOST_BEFORE = 40
"""Characters within which calls have begun."""


def may_begin_calls(text: str) -> bool:
    """Return whether a reply that begins with a text may turn out to be calls."""
    if _LIKE_CALLS.match(text):
        return True
    begin = text.lstrip()
    return not begin or (begin[0] in "`<" and len(begin) < _MOST_BEFORE)


def written_calls_of_objects(text: str, names: Collection[str]) -> list[WrittenCall]:
    """Return the calls in a reply, as `written_calls`, if the arguments of each are a JSON object; else none,
    as those who sent schemas of objects can use nothing else.
    """
    calls = written_calls(text, names) or []
    return calls if all(call.given.startswith("{") for call in calls) else []


def written_calls(text: str, names: Collection[str]) -> list[WrittenCall] | None:
    """Return the calls in a reply; None if it has anything else than calls of tools with these names."""
    if not _LIKE_CALLS.match(text):
        return None
    parser = ListItems(takes_calls=True)
    try:
        items = [*parser.feed(_TAGS.sub(" ", text)), *parser.finish()]
        calls = [read_tool_call(item) for item in items]
    except BadReply:
        return None
    return calls if all(call.name in names for call in calls) else None
