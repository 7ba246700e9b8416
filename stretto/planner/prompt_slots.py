"""The slots of a node's prompt: {prompt}, {chunk}, {so_far} and {name of an input} stand for texts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stretto.planner.application import ModelNode

_SLOT = re.compile(r"\{([^{}\n]+)\}")


def slots_of(prompt: str) -> list[str]:
    """Return the names of the slots of a prompt, in their order."""
    return _SLOT.findall(prompt)


def constant_text(prompt: str) -> str:
    """Return the text of a prompt without its slots."""
    return _SLOT.sub("", prompt)


def shows(prompt: str, name: str) -> bool:
    """Return whether the text of this name is part of what `fill` makes of a prompt."""
    slots = slots_of(prompt)
    return not slots or name in slots


def known_slots(node: ModelNode) -> tuple[str, ...]:
    """Return the names that slots in the prompt of a node may have."""
    chunk = ("chunk",) if node.is_by_chunk else ()
    return "prompt", *chunk, *(("so_far",) if node.chain else ()), *node.inputs


def fill(prompt: str, texts: Mapping[str, str]) -> str:
    """Return a prompt with texts in its slots; a slot without a text is left out.

    A prompt without slots is followed by the texts, which blank lines separate.
    """
    if _SLOT.search(prompt):
        return _SLOT.sub(lambda found: texts.get(found[1], ""), prompt)
    return "\n\n".join(text for text in (prompt, *texts.values()) if text)
