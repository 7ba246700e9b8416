"""Parser of Markdown files: one section per heading, as plain text; code blocks are kept."""

from __future__ import annotations

import re

from stretto.core import Section
from stretto.documents.html import html_sections
from stretto.documents.text import decode

_FRONT_MATTER = re.compile(r"---\n.*?\n(?:---|\.\.\.)\n", re.DOTALL)


def parse_markdown(data: bytes) -> list[Section]:
    """Parse a Markdown file into sections of plain text, one for each heading.

    A section begins with its heading. Text before the first heading makes a section of its own.

    Raises:
        ValueError: the bytes are not text.
    """
    from markdown_it import MarkdownIt

    text = decode(data)
    if front_matter := _FRONT_MATTER.match(text):
        text = text[front_matter.end() :]
    return html_sections(MarkdownIt("commonmark").enable("table").render(text))
