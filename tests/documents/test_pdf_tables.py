"""Tables and paragraphs on the pages of PDF files."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

from reportlab.pdfgen.canvas import Canvas

from stretto.documents.pdf import parse_pdf
from stretto.documents.support import quote

_TABS = (60, 180, 260, 340)


def text_of(lines: Sequence[Sequence[str]], tabs: Sequence[int] = _TABS, leading: int = 14) -> str:
    """Draw lines on a page, each string at its tab and none where it is "", and return the parsed text."""
    file = BytesIO()
    canvas = Canvas(file)
    for at, cells in enumerate(lines):
        for tab, cell in zip(tabs, cells, strict=False):
            canvas.drawString(tab, 800 - leading * at, cell)
    canvas.showPage()
    canvas.save()
    (section,) = parse_pdf(file.getvalue())
    return section.text


def test_rows_name_their_columns_and_paragraphs_are_parted() -> None:
    text = text_of(
        [
            ["The X200 measures pressure, and must be calibrated"],
            ["again every 24 months."],
            [],
            ["Limits"],
            ["Parameter", "Minimum", "Maximum", "Remark"],
            ["Voltage", "9", "32 V", "without a fuse"],
            ["", "", "", "on its line"],
            ["Temperature:"],
            ["in use", "-40", "85 °C"],
            ["in store", "", "$ 125 °C"],
            ["Values hold at sea level, and not above it; there, ask us."],
            ["1.", "Open it."],
            ["2.", "Close it."],
            ["3.", "Go home."],
        ]
    )
    assert text.split("\n") == [
        "The X200 measures pressure, and must be calibrated",
        "again every 24 months.",
        "",
        "Limits",
        "| Parameter: Voltage | Minimum: 9 | Maximum: 32 V | Remark: without a fuse on its line",
        "| Parameter: Temperature:",
        "| Parameter: in use | Minimum: -40 | Maximum: 85 °C",
        "| Parameter: in store | Maximum: $ 125 °C",
        "Values hold at sea level, and not above it; there, ask us.",
        "1. Open it.",
        "2. Close it.",
        "3. Go home.",
    ]
    assert quote("What is the maximum temperature in use?", [text]) == "Parameter: in use; Maximum: 85 °C"


def test_a_row_that_is_read_in_two_parts_is_one() -> None:
    rows = [
        ["Item", "Price", "Stock"],
        ["Nut 1", "3.50", "7"],
        ["Nut 2", "6.50", "14"],
        ["Nut 3", "9.50", "8"],
    ]
    assert text_of(rows, (72, 192, 312), leading=16).split("\n") == [
        f"| Item: {name} | Price: {price} | Stock: {stock}" for name, price, stock in rows[1:]
    ]


def test_prose_in_columns_and_names_without_a_header_are_no_tables_with_one() -> None:
    prose = [
        "There are ten or more words on this line",
        "as there are many of them on this one, too",
    ]
    assert "| " not in text_of([prose] * 4, (30, 330))
    options = [["-h", "show this help"], ["-v", "show the version"], ["-q", "be quiet"]]
    assert text_of(options) == "| -h | show this help\n| -v | show the version\n| -q | be quiet"
