"""Parser of PDF files: one section per page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stretto.documents.pdf_tables import page_text
from stretto.model.values import Document, Section

if TYPE_CHECKING:
    from pypdfium2 import PdfPage

MAX_PAGES = 10_000
_PASSWORD_WANTED = 4  # FPDF_ERR_PASSWORD
_LINE_END_HYPHEN = re.compile(r"(?<=\w)[\u2010\u00ad\ufffe\x02]\n?(?=\w)")
_NO_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]")


def parse_pdf(data: bytes, max_pages: int = MAX_PAGES) -> list[Section]:
    """Parse a PDF file into sections of plain text, one for each page that is not blank, with the page's
    number. The text of a page that only shows pictures or drawings, as scans do, is "".

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
        texts = [_page_text(page) for page in pdf]
    except pypdfium2.PdfiumError as cause:
        raise ValueError(f"is a corrupt PDF: {cause}") from cause
    finally:
        pdf.close()
    return [Section(text, page=number) for number, text in enumerate(texts, start=1) if text is not None]


def _page_text(page: PdfPage) -> str | None:
    """The text of a page, None if it is blank. The page is closed."""
    textpage = page.get_textpage()
    text = page_text(textpage)
    textpage.close()
    is_blank = not text.strip() and next(page.get_objects(), None) is None
    page.close()
    return None if is_blank else _NO_TEXT.sub("", _LINE_END_HYPHEN.sub("", text)).strip()


def unread_pages_note(document: Document) -> str | None:
    """Return a message that names the pages of a document which show something but hold no text; None if
    there are none.
    """
    if not document.unread_pages:
        return None
    runs: list[list[int]] = []
    for page in document.unread_pages:
        if runs and page == runs[-1][-1] + 1:
            runs[-1].append(page)
        else:
            runs.append([page])
    named = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
    is_one = len(document.unread_pages) == 1
    pages, hold = ("page", "holds") if is_one else ("pages", "hold")
    return f"{document.source}: {pages} {named} {hold} no text, only pictures or drawings, which are not read"
