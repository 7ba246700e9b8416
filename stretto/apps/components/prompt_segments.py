"""Prompt templates: text with `{variables}`, parsed into segments.

`{{` and `}}` are braces. `{system:}`, `{user:}` and `{assistant:}` begin a message of that role; white space
around them is dropped, and so is that at the end. A template is parsed once; what fills its variables is
never parsed, so a retrieved text that contains `{question}` stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources

from stretto.graph.graph import ROLES, Constant, PromptParts, Slot
from stretto.model.errors import ConfigError

_TOKEN = re.compile(r"\{\{|\}\}|\{(\w+)\}|[{}]")
_ROLE = re.compile(r"(?<!\{)\{(" + "|".join(ROLES) + r"):\}")


def load_prompt(name_or_text: str) -> str:
    """Return the text of a ready-made prompt (a file in `components/prompts`), or the given text itself.

    A string with a brace is taken for text, one without for a name.

    Raises:
        ConfigError: there is no prompt of this name.
    """
    if "{" in name_or_text:
        return name_or_text
    return _read_prompt(name_or_text)


def prompt_names() -> list[str]:
    """Return the names of the ready-made prompts that come with the project, sorted."""
    folder = resources.files("stretto.apps.components").joinpath("prompts")
    return sorted(file.name.removesuffix(".txt") for file in folder.iterdir() if file.name.endswith(".txt"))


@lru_cache(maxsize=256)
def _read_prompt(name: str) -> str:
    if name not in prompt_names():
        raise ConfigError(f"there is no prompt {name!r}; there are {', '.join(prompt_names())}")
    return resources.files("stretto.apps.components").joinpath("prompts", f"{name}.txt").read_text("utf-8")


@lru_cache(maxsize=1024)
def parse_prompt(
    text: str, variables: frozenset[str], constants: tuple[tuple[str, str], ...] = ()
) -> PromptParts:
    """Parse a prompt template, a text with `{variables}`, into constant and variable segments; neighbouring
    constants become one.

    Args:
        variables: names that become slots; each must occur.
        constants: (name, value) pairs known now; the value becomes part of the constant text.

    Raises:
        ConfigError: the text has a lone brace or an unknown variable, lacks one of `variables`, or has an
            empty message or text before its first message.
    """
    first, *messages = _ROLE.split(text)
    parts: list[Constant | Slot] = []
    if not messages:
        parts = _parse(text, variables, dict(constants))
    elif first.strip():
        raise ConfigError(f"a prompt has text before its first message: {first.rstrip()[:60]!r}")
    for role, content in zip(messages[::2], messages[1::2], strict=True):
        message = _parse(content.strip(), variables, dict(constants))
        if not message:
            raise ConfigError(f"a prompt has an empty message of the role {role}")
        head = message.pop(0) if isinstance(message[0], Constant) else Constant("")
        assert isinstance(head, Constant)
        parts += [Constant(head.text, role), *message]
    if missing := variables - {part.port for part in parts if isinstance(part, Slot)}:
        raise ConfigError(f"a prompt does not use {{{min(missing)}}}: {text[:60]!r}")
    return tuple(parts)


def _parse(text: str, variables: frozenset[str], known: Mapping[str, str]) -> list[Constant | Slot]:
    """Return the parts of a prompt, or of one message of it."""
    parts: list[Constant | Slot] = []
    fixed = ""
    end = 0
    for match in _TOKEN.finditer(text):
        fixed += text[end : match.start()]
        end = match.end()
        token, name = match.group(), match.group(1)
        if token in ("{{", "}}"):
            fixed += token[0]
        elif name in variables:
            parts += [Constant(fixed)] if fixed else []
            parts.append(Slot(name))
            fixed = ""
        elif name in known:
            fixed += known[name]
        else:
            offered = ", ".join(f"{{{n}}}" for n in sorted(variables | known.keys()))
            raise ConfigError(f"a prompt has {token!r}; it may use {offered}, and {{{{ }}}} for braces")
    fixed += text[end:]
    return [*parts, Constant(fixed)] if fixed else parts


def known_constants(settings: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Return settings as (name, text) pairs, the form in which `parse_prompt` takes constants, which it
    inserts into a prompt's text.
    """
    return tuple((key, str(value)) for key, value in settings.items())
