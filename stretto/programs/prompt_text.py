"""The text of a prompt with placeholders, parsed into constants and places.

    {{input:x}}     the value of the parameter x
    {{output:y}}    what the LLM generates here, named y
    {{x}}           an input, or an output if the parameter x is declared as one
    {{system:}}     the beginning of a message; {{user:}} and {{assistant:}} likewise
    {{{{            two opening braces

Single braces, and closing braces outside a placeholder, stand for themselves. White space around the
beginning of a message is dropped. Values that fill places are never parsed.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stretto.graph.graph import ROLES, Constant
from stretto.model.errors import TemplateError

Kind: TypeAlias = Literal["input", "output", "either"]

_GAP = "[ \t]{0,8}"
_KIND = f"input|output|{'|'.join(ROLES)}"
_PLACE = rf"\{{\{{{_GAP}(?:({_KIND}){_GAP}:{_GAP})?([A-Za-z_]\w*)?{_GAP}\}}\}}"
_KINDS: Mapping[str | None, Kind] = {None: "either", "input": "input", "output": "output"}
_TOKEN = re.compile(rf"\{{\{{\{{\{{|{_PLACE}|\{{(?={_PLACE})|\{{\{{")
"""An escape, a placeholder, a single brace before a placeholder, or two braces that are neither."""


@dataclass(frozen=True, slots=True)
class PromptSlot:
    """A placeholder of a prompt.

    Attributes:
        kind: "input" or "output"; "either" where the text does not say which.
        position: where it stands, for messages of errors: "line 2, column 5".
    """

    name: str
    kind: Kind
    position: str


Part: TypeAlias = Constant | PromptSlot


def dedent(docstring: str) -> str:
    """Return a docstring without the indentation that all its lines but the first share, and without white
    space around it. All other white space stays as it is.
    """
    first, newline, rest = docstring.partition("\n")
    return (first.lstrip() + newline + textwrap.dedent(rest)).strip()


def parse(text: str, function: str) -> tuple[Part, ...]:
    """Parse the text of a prompt; neighbouring constants become one.

    Raises:
        TemplateError: two opening braces begin no placeholder, or text stands before the first message. The
            message names the function, the line and the column.
    """
    parts: list[Part] = []
    fixed: list[str] = []
    role, end = None, 0
    has_messages = False
    line, line_start = 1, 0

    def close(*, is_message_end: bool) -> None:
        nonlocal role
        constant = "".join(fixed)
        if is_message_end:
            constant = constant.rstrip()
        if role is not None:
            constant = constant.lstrip()
        if constant or role is not None:
            parts.append(Constant(constant, role))
        fixed.clear()
        role = None

    for match in _TOKEN.finditer(text):
        start, token, kind, name = match.start(), match[0], match[1], match[2]
        fixed.append(text[end:start])
        if newlines := fixed[-1].count("\n"):  # a token has none
            line, line_start = line + newlines, text.rfind("\n", end, start) + 1
        position = f"line {line}, column {start - line_start + 1}"
        end = match.end()
        if token == "{{{{":
            fixed.append("{{")
        elif token == "{":
            fixed.append("{")
        elif kind in ROLES and not name:
            if not has_messages and (parts or any(map(str.strip, fixed))):
                raise TemplateError(f"{function}, {position}: text stands before the first message")
            if has_messages:
                close(is_message_end=True)
            fixed.clear()
            role, has_messages = kind, True
        elif not name or kind in ROLES:
            raise TemplateError(
                f"{function}, {position}: {text[start : start + 24]!r} begins no placeholder; write "
                "{{input:x}}, {{output:x}} or {{x}}, and {{{{ for two braces"
            )
        else:
            close(is_message_end=False)
            parts.append(PromptSlot(name, _KINDS[kind], position))
    fixed.append(text[end:])
    close(is_message_end=has_messages)
    return tuple(parts)
