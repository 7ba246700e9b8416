"""Parser of HTML pages: one section per heading, without menus, footers and the like."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stretto.core import Section
from stretto.documents.text import decode

if TYPE_CHECKING:
    from bs4.element import NavigableString, Tag

_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_BLOCKS = _HEADINGS | {
    *("address", "article", "aside", "blockquote", "body", "caption", "dd", "details", "div", "dl", "dt"),
    *("fieldset", "figcaption", "figure", "footer", "form", "header", "html", "li", "main", "ol", "p", "pre"),
    *("section", "summary", "table", "tr", "ul"),
}
_BOILERPLATE = (
    "head, title, script, style, noscript, template, svg, iframe, button, select, textarea, nav, footer,"
    " [role=navigation], [role=search], [role=banner], [role=contentinfo], [hidden], [aria-hidden=true],"
    " a.headerlink"
)
_SEPARATORS = {"br": "\n", "td": " ", "th": " "}
_SPACE = re.compile(r"\s+")
_LINE_END = re.compile(r"[ \t]+\n")
_BLANK_LINES = re.compile(r"\n{3,}")


def parse_html(data: bytes) -> list[Section]:
    """Parse an HTML page into sections of plain text, one for each heading.

    A section begins with its heading. Text before the first heading makes a section of its own.

    Raises:
        ValueError: the bytes are not text.
    """
    from bs4.dammit import EncodingDetector

    declared = EncodingDetector.find_declared_encoding(data, is_html=True)
    return html_sections(decode(data, declared))


def html_sections(html: str) -> list[Section]:
    """Cut an HTML page or a part of one into sections at its headings.

    Deeply nested elements do not overflow the stack.
    """
    from bs4 import BeautifulSoup
    from bs4.element import NavigableString, Tag

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # text that looks like a link, or like XML
        soup = BeautifulSoup(html, "html.parser")
    for tag in soup.select(_BOILERPLATE):
        tag.decompose()
    texts = [_Text()]
    previous: Tag | None = None
    for node in (soup.find("main") or soup).descendants:
        if isinstance(node, Tag):
            texts[-1].separate(_SEPARATORS.get(node.name, ""))
        elif type(node) is NavigableString:  # comments and the like are subclasses
            block, is_preformatted = _surroundings(node)
            is_heading = block.name in _HEADINGS
            if block is not previous:
                if node.isspace():
                    continue
                if is_heading:
                    texts.append(_Text())
                texts[-1].separate("\n\n")
                previous = block
            if is_preformatted:
                texts[-1].parts.append(node)
            else:
                texts[-1].flow(node, is_heading)
    return [section for text in texts if (section := text.section()).text]


@dataclass(slots=True)
class _Text:
    """The text of a section that is being built."""

    parts: list[str] = field(default_factory=list)
    title: str = ""

    def separate(self, separator: str) -> None:
        if separator:
            self.parts.append(separator)

    def flow(self, text: str, is_heading: bool) -> None:
        text = _SPACE.sub(" ", text)
        if is_heading:
            self.title += text
        at_line_start = not self.parts or self.parts[-1].endswith("\n")
        self.parts.append(text.lstrip() if at_line_start else text)

    def section(self) -> Section:
        text = _LINE_END.sub("\n", "".join(self.parts))
        return Section(_BLANK_LINES.sub("\n\n", text).strip(), title=self.title.strip() or None)


def _surroundings(node: NavigableString) -> tuple[Tag, bool]:
    """The innermost block element around a string, and whether white space is kept there."""
    block: Tag | None = None
    for parent in node.parents:
        if block is None and parent.name in _BLOCKS:
            block = parent
        if parent.name == "pre":
            return block or parent, True
    return block or parent, False
