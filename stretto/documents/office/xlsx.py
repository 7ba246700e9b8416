"""Parser of Excel files: one section per sheet, row by row."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Iterator
from io import BytesIO
from itertools import zip_longest
from typing import Any
from zipfile import ZipFile

from stretto.documents.office.package import check_package
from stretto.documents.tables import Row, table_text
from stretto.model.values import Section

_READ_BYTES = 1 << 20


def parse_xlsx(data: bytes) -> list[Section]:
    """Parse an Excel file into sections of plain text, one for each sheet with cells, which begins with the
    sheet's name.

    A formula stands as the value that the file was saved with, or as it is written where there is none.

    Raises:
        ValueError: the file is encrypted, of an older format, or no Excel file.
    """
    check_package(data)
    import openpyxl

    sections = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parts that openpyxl does not keep when it writes
        values = openpyxl.load_workbook(BytesIO(data), read_only=True, data_only=True)
        formulas = openpyxl.load_workbook(BytesIO(data), read_only=True) if _has_formulas(data) else None
        for sheet in values.worksheets:
            other = None if formulas is None else formulas[sheet.title]
            if text := table_text(_rows(sheet, other)):
                sections.append(Section(f"{sheet.title}\n\n{text}", title=sheet.title))
    return sections


def _has_formulas(data: bytes) -> bool:
    with ZipFile(BytesIO(data)) as archive:
        return any(
            _holds(archive, name, b"<f>", b"<f ")
            for name in archive.namelist()
            if name.startswith("xl/worksheets/")
        )


def _holds(archive: ZipFile, name: str, *wanted: bytes) -> bool:
    end = b""
    with archive.open(name) as file:
        while read := file.read(_READ_BYTES):
            if any(one in end + read for one in wanted):
                return True
            end = read[-2:]
    return False


def _rows(sheet: Any, formulas: Any | None) -> Iterator[Row]:
    """Yield the rows of a sheet. The size that a sheet claims is not believed."""
    sheet.reset_dimensions()
    if formulas is None:
        yield from ([_text(cell) for cell in row] for row in sheet.iter_rows())
        return
    formulas.reset_dimensions()
    for row, written in zip_longest(sheet.iter_rows(), formulas.iter_rows(), fillvalue=()):
        yield [
            _text(cell) or ("" if other is None or other.data_type != "f" else str(other.value))
            for cell, other in zip_longest(row, written)
        ]


def _text(cell: Any) -> str:
    """Return the value of a cell as a reader sees it: dates as in ISO 8601, shares in percent."""
    value = None if cell is None else cell.value
    match value:
        case None:
            return ""
        case bool():
            return str(value).upper()
        case float() | int():
            is_share = "%" in (cell.number_format or "")
            return f"{value * 100:.10g}%" if is_share else f"{value:.15g}"
        case datetime.datetime() if value.time() == datetime.time():
            return value.date().isoformat()
        case datetime.datetime():
            return value.isoformat(" ", "seconds")
    return str(value)
