"""Parser of PowerPoint files: one section per slide, with its number as the page, and the speaker's notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any

from stretto.documents.office.package import check_package
from stretto.documents.tables import record_text, table_text
from stretto.model.values import Section

_REPEATED = frozenset({"DATE", "FOOTER", "HEADER", "SLIDE_NUMBER"})


def parse_pptx(data: bytes) -> list[Section]:
    """Parse a PowerPoint file into sections of plain text, one for each slide that is not empty. The text of
    a slide that only shows pictures is "".

    Raises:
        ValueError: the file is encrypted, of an older format, or no PowerPoint file.
    """
    check_package(data)
    from pptx import Presentation

    sections = []
    for number, slide in enumerate(Presentation(BytesIO(data)).slides, start=1):
        title = slide.shapes.title
        heading = "" if title is None else " ".join(title.text_frame.text.split())
        texts = [heading, *_texts(shape for shape in slide.shapes if not _is_same(shape, title))]
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
            texts.append(f"Notes: {notes.text}" if notes.text.strip() else "")
        text = "\n\n".join(filter(None, (text.replace("\v", "\n").strip() for text in texts)))
        if text or len(slide.shapes):
            sections.append(Section(text, heading or None, number))
    return sections


def _is_same(shape: Any, other: Any) -> bool:
    return other is not None and shape.shape_id == other.shape_id


def _texts(shapes: Iterable[Any]) -> Iterator[str]:
    """Yield the texts of shapes, and of those in groups, without what is repeated on each slide."""
    for shape in shapes:
        if shape.is_placeholder and shape.placeholder_format.type.name in _REPEATED:
            continue
        if hasattr(shape, "shapes"):
            yield from _texts(shape.shapes)
        elif shape.has_text_frame:
            yield shape.text_frame.text
        elif shape.has_table:
            yield table_text([_cell_text(cell) for cell in row.cells] for row in shape.table.rows)
        elif shape.has_chart:
            yield "\n".join(_chart_rows(shape.chart))


def _cell_text(cell: Any) -> str | None:
    return None if cell.is_spanned else str(cell.text_frame.text)


def _chart_rows(chart: Any) -> Iterator[str]:
    """Yield the values of a chart as rows: one for each category, with a column for each series."""
    for plot in chart.plots:
        series = [(str(one.name), one.values) for one in plot.series]
        for at, category in enumerate(plot.categories):
            values = [(name, all_values[at]) for name, all_values in series if at < len(all_values)]
            filled = [(name, f"{value:.15g}") for name, value in values if value is not None]
            yield record_text([("", str(category)), *filled])
