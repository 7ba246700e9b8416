"""Parser of PDF files: one section per page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stretto.core import Section

if TYPE_CHECKING:
    from pypdfium2 import PdfPage

MAX_PAGES = 10_000
_PASSWORD_WANTED = 4  # FPDF_ERR_PASSWORD
_LINE_END_HYPHEN = re.compile(r"(?<=\w)[\u2010\u00ad\ufffe\x02]\n?(?=\w)")
_NO_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]")


def parse_pdf(data: bytes, max_pages: int = MAX_PAGES) -> list[Section]:
    """Parse a PDF file into sections of plain text, one for each page, with the page's number.

    Words that are hyphenated at a line end are joined again.

    Raises:
        ValueError: the file is encrypted or corrupt, or has more than `max_pages` pages.
    """
    import pypdfium2

    try:
        pdf = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as cause:
        if cause.err_code == _PASSWORD_WANTED:
            raise ValueError("is encrypted: it opens only with a password") from cause
        raise ValueError(f"is not a readable PDF: {cause}") from cause
    try:
        if len(pdf) > max_pages:
            raise ValueError(f"has {len(pdf)} pages, more than the {max_pages} allowed")
        return [Section(_page_text(page), page=number) for number, page in enumerate(pdf, start=1)]
    except pypdfium2.PdfiumError as cause:
        raise ValueError(f"is a corrupt PDF: {cause}") from cause
    finally:
        pdf.close()


def _page_text(page: PdfPage) -> str:
    textpage = page.get_textpage()
    text = textpage.get_text_range().replace("\r\n", "\n")
    textpage.close()
    page.close()
    return _NO_TEXT.sub("", _LINE_END_HYPHEN.sub("", text)).strip()
