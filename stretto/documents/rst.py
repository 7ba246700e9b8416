"""Parser of reStructuredText files: one section per heading, as plain text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stretto.documents.code import code_text
from stretto.documents.text import decode
from stretto.model.values import Section

if TYPE_CHECKING:
    from docutils.nodes import Element

_SETTINGS = {
    "_disable_config": True,
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "syntax_highlight": "none",
    "warning_stream": False,
    "halt_level": 5,  # never
    "line_length_limit": sys.maxsize,  # a long line is text too
}


def parse_rst(data: bytes) -> list[Section]:
    """Parse a reStructuredText file into sections of plain text, one for each heading.

    A section begins with its heading. Text before the first heading makes a section of its own. Markup that
    docutils does not know, such as directives of Sphinx, is kept as it is written.

    Raises:
        ValueError: the bytes are not text, or substitutions are endless or too large.
    """
    from docutils import nodes
    from docutils.core import publish_doctree

    from stretto.documents.rst_reader import RstReader

    document = publish_doctree(decode(data), reader=RstReader(), settings_overrides=_SETTINGS)
    sections: list[tuple[str | None, list[str]]] = [(None, [])]
    for node in document.findall(nodes.TextElement):
        if isinstance(node, nodes.Inline | nodes.Invisible) or _is_message(node):
            continue
        if isinstance(node, nodes.title) and isinstance(node.parent, nodes.section | nodes.document):
            sections.append((node.astext(), []))
        text = node.astext().strip("\n")
        sections[-1][1].append(code_text(text) if isinstance(node, nodes.literal_block) else text)
    return [Section("\n\n".join(blocks), title=title) for title, blocks in sections if blocks]


def _is_message(node: Element) -> bool:
    """Return whether an element is a message of docutils, or the source of a directive that is off."""
    from docutils import nodes

    message = node.parent
    while message is not None and not isinstance(message, nodes.system_message):
        message = message.parent
    return message is not None and (
        not isinstance(node, nodes.literal_block) or "disabled" in message.astext()
    )
