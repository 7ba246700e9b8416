"""Parser of Word files: one section per heading, tables row by row, notes at the end.

python-docx opens the file. Its text is read from the XML, because the library's own texts lack content
controls, insertions that are not accepted yet, and text boxes. Left out are deleted and hidden text, tables
of contents, comments, and what is repeated on each page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

from stretto.documents.office.package import check_package
from stretto.documents.tables import Row, table_text
from stretto.model.values import Section

if TYPE_CHECKING:
    from lxml.etree import _Element as Element

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_PARAGRAPH, _TABLE, _BOX = f"{_W}p", f"{_W}tbl", f"{_W}txbxContent"
_AROUND_BLOCKS = frozenset(f"{_W}{name}" for name in ("sdt", "sdtContent", "customXml", "ins", "moveTo"))
_LEFT_OUT = frozenset({_FALLBACK, _BOX, *(f"{_W}{name}" for name in ("del", "moveFrom", "pPr"))})
_TEXTS = {f"{_W}tab": " ", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-"}
_MAX_SPAN = 64
_NOTES = ("/footnotes", "/endnotes")


def parse_docx(data: bytes) -> list[Section]:
    """Parse a Word file into sections of plain text, one for each heading, which begins it.

    Raises:
        ValueError: the file is encrypted, of an older format, or no Word file.
    """
    check_package(data)
    import docx

    document = docx.Document(BytesIO(data))
    styles = _Styles.of(document.styles.element)
    sections: list[tuple[str | None, list[str]]] = [(None, [])]
    for block in _blocks(document.element.body):
        if block.tag == _TABLE:
            sections[-1][1].append(_table(block))
            continue
        text, style = _text(block), styles.of_paragraph(block)
        if style == "heading" and text:
            sections.append((" ".join(text.split()), []))
        if style != "contents":
            sections[-1][1].append(f"- {text}" if style == "list" and text else text)
        sections[-1][1].extend(_text(inner) for box in _boxes(block) for inner in box.iter(_PARAGRAPH))
    sections.append(("Notes", list(_notes(document.part.rels.values()))))
    return [Section("\n\n".join(filter(None, texts)), title=title) for title, texts in sections if any(texts)]


def _blocks(parent: Element) -> Iterator[Element]:
    """Yield the paragraphs and tables of a body, a cell or a note, in order."""
    for child in parent:
        if child.tag in (_PARAGRAPH, _TABLE):
            yield child
        elif child.tag in _AROUND_BLOCKS:
            yield from _blocks(child)


def _boxes(paragraph: Element) -> list[Element]:
    """Return the text boxes that are anchored in a paragraph. Each has a copy for old programs."""
    return [box for box in paragraph.iter(_BOX) if next(box.iterancestors(_FALLBACK), None) is None]


def _text(paragraph: Element) -> str:
    """Return the text of a paragraph that a reader sees, without that of its text boxes."""
    from lxml.etree import iterwalk

    parts: list[str] = []
    walk = iterwalk(paragraph, events=("start",))
    for _, node in walk:
        if node.tag in _LEFT_OUT or (node.tag == f"{_W}r" and _is_on(node, "rPr", "vanish")):
            walk.skip_subtree()
        elif node.tag in (f"{_W}t", f"{_M}t"):
            parts.append(node.text or "")
        else:
            parts.append(_TEXTS.get(node.tag, ""))
    return "".join(parts).strip()


def _table(table: Element) -> str:
    """Write a table. One of a single column is a frame around text."""
    rows: list[Row] = []
    above: list[str] = []
    for line in table.iter(f"{_W}tr"):
        if next(line.iterancestors(_TABLE)) is not table or line.find(f"{_W}trPr/{_W}del") is not None:
            continue  # a row of a table in a cell, or a deleted row
        cells: list[str | None] = []
        for cell in line.iter(f"{_W}tc"):
            if next(cell.iterancestors(f"{_W}tr")) is line:
                is_merged = (
                    _value(cell, "tcPr", "vMerge") == "" or _value(cell, "tcPr", "vMerge") == "continue"
                )
                text = above[len(cells)] if is_merged and len(cells) < len(above) else _cell_text(cell)
                cells += [text, *[None] * (_span(cell) - 1)]
        rows.append(cells)
        above = [cell or "" for cell in cells]
    if all(len(row) <= 1 for row in rows):
        return "\n\n".join(filter(None, (cell for row in rows for cell in row)))
    return table_text(rows)


def _cell_text(cell: Element) -> str:
    return "\n".join(filter(None, map(_text, cell.iter(_PARAGRAPH))))


def _span(cell: Element) -> int:
    span = _value(cell, "tcPr", "gridSpan") or "1"
    return min(int(span), _MAX_SPAN) if span.isdecimal() else 1


def _notes(relationships: Iterable[object]) -> Iterator[str]:
    """Yield the footnotes and endnotes, which are parts of their own."""
    from docx.oxml import parse_xml

    for one in relationships:
        if str(getattr(one, "reltype", "")).endswith(_NOTES) and not getattr(one, "is_external", False):
            for note in parse_xml(one.target_part.blob):  # type: ignore[attr-defined]
                if note.get(f"{_W}type") in (None, "normal"):
                    yield "\n".join(filter(None, map(_text, note.iter(_PARAGRAPH))))


def _value(node: Element, properties: str, name: str) -> str | None:
    """Return the value of a property of a node: "" if it has none, None if the property is absent."""
    found = node.find(f"{_W}{properties}/{_W}{name}")
    return None if found is None else found.get(f"{_W}val", "")


def _is_on(node: Element, properties: str, name: str) -> bool:
    return _value(node, properties, name) not in (None, "0", "false", "off")


@dataclass(frozen=True, slots=True)
class _Styles:
    """What the styles of a document are for, by their ids: "heading", "list" or "contents"."""

    uses: dict[str, str]

    @classmethod
    def of(cls, styles: Element) -> _Styles:
        """Read the styles. A style that says nothing is used as the one that it is based on."""
        own: dict[str, str] = {}
        based_on: dict[str, str] = {}
        for style in styles.iter(f"{_W}style"):
            key = style.get(f"{_W}styleId", "")
            name = style.find(f"{_W}name")
            own[key] = _use("" if name is None else name.get(f"{_W}val", "").lower(), style)
            base = style.find(f"{_W}basedOn")
            based_on[key] = "" if base is None else base.get(f"{_W}val", "")
        uses: dict[str, str] = {}
        for key in own:
            at, seen = key, set[str]()
            while not own.get(at) and at in based_on and at not in seen:
                seen.add(at)
                at = based_on[at]
            uses[key] = own.get(at, "")
        return cls(uses)

    def of_paragraph(self, paragraph: Element) -> str:
        """Return what a paragraph is: "heading", "list", "contents" or "" for text."""
        level = _value(paragraph, "pPr", "outlineLvl")
        if level is not None and level != "9":
            return "heading"
        use = self.uses.get(_value(paragraph, "pPr", "pStyle") or "", "")
        is_numbered = paragraph.find(f"{_W}pPr/{_W}numPr") is not None
        return "list" if is_numbered and not use else use


def _use(name: str, style: Element) -> str:
    level = _value(style, "pPr", "outlineLvl")
    if name.startswith("heading ") or name == "title" or (level is not None and level != "9"):
        return "heading"
    if name.startswith("toc "):
        return "contents"
    is_list = name.startswith("list ") and name != "list paragraph"
    return "list" if is_list or style.find(f"{_W}pPr/{_W}numPr") is not None else ""
