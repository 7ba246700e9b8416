"""Parser of HTML pages: one section per heading, without menus, footers and the like."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stretto.core import Section
from stretto.documents.text import decode

if TYPE_CHECKING:
    from bs4.element import PageElement, Tag

_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_BLOCKS = _HEADINGS | {
    *("address", "article", "aside", "blockquote", "body", "caption", "dd", "details", "div", "dl", "dt"),
    *("fieldset", "figcaption", "figure", "footer", "form", "header", "html", "li", "main", "ol", "p", "pre"),
    *("section", "summary", "table", "tr", "ul"),
}
_BOILERPLATE = frozenset(
    {
        *("head", "title", "script", "style", "noscript", "template", "svg", "iframe", "button", "select"),
        *("textarea", "nav", "footer"),
    }
)
_BOILERPLATE_ROLES = frozenset({"navigation", "search", "banner", "contentinfo"})
_SEPARATORS = {"br": "\n", "td": " ", "th": " "}
_SPACE = re.compile(r"\s+")
_LINE_END = re.compile(r"(?<![ \t])[ \t]+\n")  # a run of blanks is tried once, from its beginning
_BLANK_LINES = re.compile(r"\n{3,}")
_ENCODING_BYTES = 4096


def parse_html(data: bytes) -> list[Section]:
    """Parse an HTML page into sections of plain text, one for each heading.

    A section begins with its heading. Text before the first heading makes a section of its own.

    Raises:
        ValueError: the bytes are not text.
    """
    from bs4.dammit import EncodingDetector

    declared = EncodingDetector.find_declared_encoding(data[:_ENCODING_BYTES], is_html=True)
    return html_sections(decode(data, declared))


def html_sections(html: str) -> list[Section]:
    """Cut an HTML page or a part of one into sections at its headings.

    Deeply nested elements do not overflow the stack, and the time does not grow with the depth.
    """
    from bs4 import BeautifulSoup
    from bs4.element import NavigableString, Tag

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # text that looks like a link, or like XML
        soup = BeautifulSoup(_without_open_ends(html), "html.parser")
    texts = [_Text()]
    previous: Tag | None = None
    for node, block, is_preformatted in _walk(soup.find("main") or soup):
        if isinstance(node, Tag):
            texts[-1].separate(_SEPARATORS.get(node.name, ""))
        elif type(node) is NavigableString:  # comments and the like are subclasses
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


def _without_open_ends(html: str) -> str:
    """Make text of the beginnings of tags and comments that never end.

    For each of them, the parser would look through the rest of the page.
    """
    last = html.rfind(">") + 1
    html = html[:last] + html[last:].replace("<", "&lt;")
    last = html.rfind("-->") + 1
    return html[:last] + html[last:].replace("<!--", "&lt;!--")


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


def _walk(root: Tag) -> Iterator[tuple[PageElement, Tag, bool]]:
    """Yield what is below an element, in order, without menus, scripts and the like.

    With each come the innermost block element around it, and whether white space is kept there.
    """
    from bs4.element import Tag

    block = next((tag for tag in (root, *root.parents) if tag.name in _BLOCKS), root)
    is_preformatted = any(tag.name == "pre" for tag in (root, *root.parents))
    stack = [(iter(root.contents), block, is_preformatted)]
    while stack:
        children, block, is_preformatted = stack[-1]
        child = next(children, None)
        if child is None:
            stack.pop()
            continue
        if isinstance(child, Tag) and _is_boilerplate(child):
            continue
        yield child, block, is_preformatted
        if isinstance(child, Tag):
            inner = child if child.name in _BLOCKS else block
            stack.append((iter(child.contents), inner, is_preformatted or child.name == "pre"))


def _is_boilerplate(tag: Tag) -> bool:
    """Return whether an element is a menu, a script or the like, which is no part of the text."""
    return (
        tag.name in _BOILERPLATE
        or tag.get("role") in _BOILERPLATE_ROLES
        or "hidden" in tag.attrs
        or tag.get("aria-hidden") == "true"
        or (tag.name == "a" and "headerlink" in (tag.get("class") or ()))
    )
