"""Parser of HTML pages: one section per heading, without menus, footers and the like."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from stretto.documents.code import code_text
from stretto.documents.html_tables import data_table_text
from stretto.documents.text import decode
from stretto.model.values import Section

if TYPE_CHECKING:
    from bs4.element import NavigableString, Tag

_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_BLOCKS = _HEADINGS | {
    *("address", "article", "aside", "blockquote", "body", "caption", "dd", "details", "div", "dl", "dt"),
    *("fieldset", "figcaption", "figure", "footer", "form", "header", "html", "li", "main", "ol", "p", "pre"),
    *("section", "summary", "table", "tr", "ul"),
}
_NO_PROSE = frozenset({"script", "style", "svg"})
_BOILERPLATE = _NO_PROSE | {
    *("head", "title", "noscript", "template", "iframe", "button", "select", "textarea", "nav", "footer"),
}
_BOILERPLATE_ROLES = frozenset({"navigation", "search", "banner", "contentinfo"})
_HIDDEN_STYLE = re.compile(r"(?:^|[;\s])(?:display\s*:\s*none|visibility\s*:\s*hidden)\b", re.IGNORECASE)
_NO_DATA = _HEADINGS | {"table", "pre", "form"}
"""Elements that no table of data has in it; a table that has one only places what is in it."""
_IN_CODE = frozenset({"code", "span", "kbd", "samp"})
"""Elements that preformatted text has in it if it is code."""
_ITEM_MARK = "- "
_SEPARATORS = {"br": "\n", "td": " ", "th": " "}
_SPACE = re.compile(r"\s+")
_LINE_END = re.compile(r"(?<![ \t])[ \t]+\n")  # a run of blanks is tried once, from its beginning
_BLANK_LINES = re.compile(r"\n{3,}")
_ENCODING_BYTES = 4096
_ENCODINGS = {
    **dict.fromkeys(("ascii", "us-ascii", "latin1", "latin-1", "iso-8859-1"), "cp1252"),
    **dict.fromkeys(("utf-16", "utf-16le", "utf-16be"), "utf-8"),  # else these bytes would not be read
}
"""Encodings that pages with such a declaration have. Source: WHATWG Encoding §4.2 and HTML §13.2.3.2."""


def parse_html(data: bytes) -> list[Section]:
    """Parse an HTML page into sections of plain text, one for each heading.

    A section begins with its heading. Text before the first heading makes a section of its own. Menus,
    footers and the like are left out, and all that is outside of `<main>`, if that has visible text.

    Raises:
        ValueError: the bytes are not text.
    """
    from bs4.dammit import EncodingDetector

    declared = EncodingDetector.find_declared_encoding(data[:_ENCODING_BYTES], is_html=True)
    if declared is not None:
        declared = _ENCODINGS.get(declared.lower(), declared)
    return html_sections(decode(data, declared), is_page=True)


def html_sections(html: str, *, is_page: bool) -> list[Section]:
    """Cut an HTML page, or a text with HTML in it, into sections at its headings. A table that holds data is
    a line for each row, which names the columns.

    A text that is no page has no menus and the like: all that is visible counts. Deeply nested elements do
    not overflow the stack, and the time does not grow with the depth.
    """
    from bs4 import BeautifulSoup

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # text that looks like a link, or like XML
        soup = BeautifulSoup(_without_open_ends(html), "html.parser")
    nodes = list(_walk(soup, _BOILERPLATE if is_page else _NO_PROSE))
    if is_page and any(
        node.in_main and isinstance(node.element, str) and node.element.strip() for node in nodes
    ):
        nodes = [node for node in nodes if node.in_main]
    texts = [_Text()]
    items: set[int] = set()
    previous: Tag | None = None
    for node in _with_rows(list(_with_statements(nodes))):
        if not isinstance(node.element, str):
            texts[-1].separate(_SEPARATORS.get(node.element.name, ""))
        else:
            is_heading = node.block.name in _HEADINGS
            if node.block is not previous:
                if node.element.isspace():
                    continue
                if is_heading:
                    texts.append(_Text())
                texts[-1].separate("\n\n")
                if (item := _item(node.block)) is not None and id(item) not in items:
                    items.add(id(item))
                    texts[-1].separate(_ITEM_MARK)
                previous = node.block
            if node.is_preformatted:
                texts[-1].parts.append(node.element)
            else:
                texts[-1].flow(node.element, is_heading)
    return [section for text in texts if (section := text.section()).text]


def _item(block: Tag) -> Tag | None:
    """Return the item of a list that a block is, or is a paragraph of."""
    around = block.parent if block.name == "p" else block
    return around if around is not None and around.name == "li" else None


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
        at_line_start = not self.parts or self.parts[-1].endswith(("\n", _ITEM_MARK))
        self.parts.append(text.lstrip() if at_line_start else text)

    def section(self) -> Section:
        text = _LINE_END.sub("\n", "".join(self.parts))
        return Section(_BLANK_LINES.sub("\n\n", text).strip(), title=self.title.strip() or None)


class _Node(NamedTuple):
    """An element or a text that is visible, and where it stands.

    Attributes:
        block: innermost block element around it.
        is_preformatted: whether white space is kept there.
        in_main: whether it is in the part of the page that is marked as its main part.
        table: innermost table around it.
    """

    element: Tag | NavigableString
    block: Tag
    is_preformatted: bool
    in_main: bool
    table: Tag | None


def _with_statements(nodes: Sequence[_Node]) -> Iterator[_Node]:
    """Replace the content of each block of code by its text, with a mark at each statement."""
    from bs4.element import NavigableString

    at = 0
    while at < len(nodes):
        node = nodes[at]
        yield node
        at += 1
        if isinstance(node.element, str) or node.element.name != "pre":
            continue
        end = at
        while end < len(nodes) and nodes[end].block is node.element:
            end += 1
        inside = [one.element for one in nodes[at:end]]
        if any(not isinstance(one, str) and one.name in _IN_CODE for one in inside):
            texts = (one if isinstance(one, str) else _SEPARATORS.get(one.name, "") for one in inside)
            yield node._replace(element=NavigableString(code_text("".join(texts))), is_preformatted=True)
            at = end


def _with_rows(nodes: Sequence[_Node]) -> Iterator[_Node]:
    """Replace each table that holds data by its text, with a line for each row."""
    from bs4.element import NavigableString

    places = {
        id(node.table)
        for node in nodes
        if not isinstance(node.element, str) and node.element.name in _NO_DATA
    }
    at = 0
    while at < len(nodes):
        node, table = nodes[at], nodes[at].element
        at += 1
        if not isinstance(table, str) and table.name == "table" and id(table) not in places:
            end = at
            while end < len(nodes) and nodes[end].table is table:
                end += 1
            if text := data_table_text(inside.element for inside in nodes[at:end]):
                yield node._replace(element=NavigableString(text), is_preformatted=True)
                at = end
                continue
        yield node


def _walk(root: Tag, left_out: Set[str]) -> Iterator[_Node]:
    """Yield what is below an element, in order, without hidden elements and those of the names `left_out`."""
    from bs4.element import NavigableString, Tag, TemplateString

    stack = [(iter(root.contents), _Node(root, root, False, False, None))]
    while stack:
        children, parent = stack[-1]
        child = next(children, None)
        if child is None:
            stack.pop()
        elif isinstance(child, Tag):
            if _is_left_out(child, left_out):
                continue
            block = child if child.name in _BLOCKS else parent.block
            is_preformatted = parent.is_preformatted or child.name == "pre"
            is_main = parent.in_main or child.name == "main"
            node = _Node(child, block, is_preformatted, is_main, parent.table)
            yield node
            inside = node._replace(table=child) if child.name == "table" else node
            stack.append((iter(child.contents), inside))
        elif isinstance(child, NavigableString) and type(child) in (NavigableString, TemplateString):
            yield parent._replace(element=child)  # comments and the like are other subclasses


def _is_left_out(tag: Tag, names: Set[str]) -> bool:
    """Return whether an element is hidden, or a menu, a script or the like, which is no part of the text."""
    return (
        tag.name in names
        or tag.get("role") in _BOILERPLATE_ROLES
        or tag.get("hidden", "until-found") != "until-found"
        or tag.get("aria-hidden") == "true"
        or _HIDDEN_STYLE.search(str(tag.get("style", ""))) is not None
        or (tag.name == "a" and "headerlink" in (tag.get("class") or ()))
    )
