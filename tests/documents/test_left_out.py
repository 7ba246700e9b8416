"""What is left out of the documents is named: pages without text, and files of kinds that are not read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from reportlab.pdfgen.canvas import Canvas

from stretto.documents import load_documents
from stretto.documents.pdf import unread_pages_note
from stretto.model.errors import DocumentError
from stretto.model.values import Document


def write_pages(path: Path, kinds: str) -> Path:
    """Write a PDF file with a page for each letter: t(ext), d(rawing), b(lank), s(paces)."""
    canvas = Canvas(str(path))
    for kind in kinds:
        if kind == "t":
            canvas.drawString(72, 700, "Some text.")
        elif kind == "s":
            canvas.drawString(72, 700, "   ")
        elif kind == "d":
            canvas.rect(72, 300, 200, 300, fill=1)
        canvas.showPage()
    canvas.save()
    return path


def left_out(paths: Sequence[Path]) -> tuple[list[Document], list[str]]:
    told: list[DocumentError] = []
    documents = load_documents(paths, on_left_out=told.append)
    return documents, [error.message for error in told]


@pytest.mark.parametrize(
    ("kinds", "unread", "named"),
    [
        ("td", (2,), "page 2 holds no text"),
        ("dtbdd", (1, 4, 5), "pages 1, 4–5 hold no text"),
        ("tsd", (2, 3), "pages 2–3 hold no text"),
    ],
)
def test_pages_of_scans_are_named(tmp_path: Path, kinds: str, unread: Sequence[int], named: str) -> None:
    path = write_pages(tmp_path / "a.pdf", kinds)
    (document,), told = left_out([path])
    assert document.unread_pages == unread
    assert told == [f"{path}: {named}, only pictures or drawings, which are not read"]


@pytest.mark.parametrize("kinds", ["t", "tbt", "bt"])
def test_blank_pages_are_no_loss(tmp_path: Path, kinds: str) -> None:
    (document,), told = left_out([write_pages(tmp_path / "a.pdf", kinds)])
    assert (unread_pages_note(document), told) == (None, [])


def test_a_document_of_scans_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="contains no text, only pictures or drawings"):
        load_documents([write_pages(tmp_path / "a.pdf", "dd")])


def test_files_of_other_kinds_in_a_folder_are_named_and_counted(tmp_path: Path) -> None:
    for name in ("a.txt", "b.odt", "sub/c.PNG", ".hidden.png", "sub/noext", "d.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    documents, told = left_out([tmp_path, tmp_path / "b.odt"])
    assert [Path(document.source).name for document in documents] == ["a.txt", "d.md", "b.odt"]
    (message,) = told
    assert message.startswith(
        f"{tmp_path}: 3 files of other kinds: b.odt, sub/c.PNG, sub/noext (read are .pdf, "
    )


def test_many_files_of_other_kinds_are_not_all_named(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}.png").write_text("x")
    with pytest.raises(DocumentError, match=r"only 40 files of other kinds: 00\.png, .*09\.png and 30 more"):
        load_documents([tmp_path])
    (tmp_path / "a.txt").write_text("text")
    _, (message,) = left_out([tmp_path])
    assert message.count(".png") == 10


@pytest.mark.parametrize("others", [("b.odt",), ("b.key", "c.tex"), ("deep/er/photo.heic", "noext", "x.zip")])
def test_what_is_left_out_is_logged_or_refused(
    tmp_path: Path, others: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("text")
    for name in others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    number = f"{len(others)} file{'s' * (len(others) > 1)} of other kinds: {', '.join(others)} (read are "
    assert len(load_documents([tmp_path])) == 1
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{tmp_path}: {number}")

    def refuse(error: DocumentError) -> None:
        raise error

    with pytest.raises(DocumentError) as refused:
        load_documents([tmp_path], on_left_out=refuse)
    assert number in refused.value.message
