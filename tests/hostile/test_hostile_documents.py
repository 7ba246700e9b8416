"""Documents that cost too much, alone and beside good ones: none costs more than itself."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from support.hostile import show

from stretto.documents import ParseLimits, load_documents
from stretto.documents.html import parse_html
from stretto.documents.parser_process import ParserProcess
from stretto.model.errors import ConfigError, DocumentError
from stretto.model.values import Section


def pdf_bomb(path: Path, num_operators: int) -> Path:
    """Write a PDF file of one page whose content stream is compressed a thousand times."""
    content = zlib.compress(b"BT /F1 9 Tf 72 700 Td " + b"(aaaaaaaaaaaaaaaaaaaa) Tj " * num_operators + b"ET")
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        b" /Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(content), content),
    ]
    data = b"%PDF-1.4\n"
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(data)
    data += b"xref\n0 5\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % at for at in offsets)
    path.write_bytes(data + b"trailer << /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % table)
    return path


def read_beside_a_good_page(bad: Path, limits: ParseLimits) -> str:
    """Read a bad file between two good pages; return why it was skipped."""
    before, after = bad.with_name("before.html"), bad.with_name("z.html")
    for page in (before, after):
        page.write_text("<p>good")
    errors: list[DocumentError] = []
    documents = load_documents([before, bad, after], on_bad=errors.append, limits=limits)
    assert [document.source for document in documents] == [str(before), str(after)]
    (error,) = errors
    assert str(bad) in error.message
    return error.message


def test_small_pdf_that_becomes_huge_is_refused_by_name(tmp_path: Path) -> None:
    bomb = pdf_bomb(tmp_path / "bomb.pdf", 400_000)
    assert bomb.stat().st_size < 100_000
    assert "bytes of memory" in read_beside_a_good_page(bomb, ParseLimits(memory_bytes=150_000_000))


def test_file_that_takes_too_long_is_refused_by_name(tmp_path: Path) -> None:
    slow = tmp_path / "slow.html"
    slow.write_text("<b><i>" * 500_000)
    assert "takes longer" in read_beside_a_good_page(slow, ParseLimits(parse_s=4))


def test_pdf_of_too_many_pages_is_refused_by_name(tmp_path: Path) -> None:
    from reportlab.pdfgen.canvas import Canvas

    canvas = Canvas(str(tmp_path / "long.pdf"))
    for _ in range(3):
        canvas.drawString(72, 700, "page")
        canvas.showPage()
    canvas.save()
    message = read_beside_a_good_page(tmp_path / "long.pdf", ParseLimits(pages=2))
    assert "has 3 pages, more than the 2 allowed" in message


HOSTILE: Mapping[str, bytes] = {
    "nested.html": b"<div>a" * 60_000,
    "open.html": b"<p>a" * 60_000,
    "blanks.html": b"<pre>" + b" " * 2_000_000 + b"x",
    "comments.html": b"<!-- a" * 200_000,
    "tags.html": b"<a " * 200_000,
    "meta.html": b"<meta charset" * 100_000,
    "attributes.html": b"<a " + b"b=c " * 200_000 + b">x",
    "quotes.md": b">" * 20_000,
    "brackets.md": b"[" * 20_000,
    "lists.rst": b"".join(b"  " * depth + b"a\n\n" for depth in range(300)),
    "long.rst": b"word " * 100_000,
    "stars.rst": b"*a " * 20_000,
    "binary.txt": bytes(range(256)) * 100,
    "cut.pdf": b"%PDF-1.7\n1 0 obj\n<<",
}


@pytest.mark.long
def test_a_folder_of_hostile_files_costs_each_its_own_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in HOSTILE.items():
        (tmp_path / name).write_bytes(data)
    pdf_bomb(tmp_path / "bomb.pdf", 400_000)
    (tmp_path / "good.md").write_text("# Good\n\nText.")
    ends_s = [time.monotonic()]
    bad: list[DocumentError] = []

    def note(_: object) -> None:
        ends_s.append(time.monotonic())

    def skip(error: DocumentError) -> None:
        bad.append(error)
        note(error)

    limits = ParseLimits(parse_s=10, memory_bytes=300_000_000)
    documents = load_documents([tmp_path], limits=limits, on_document=note, on_bad=skip)
    longest_s = max(b - a for a, b in pairwise(ends_s))
    show(capsys, "documents", read=len(documents), skipped=len(bad), longest=f"{longest_s:.1f} s")
    assert str(tmp_path / "good.md") in [document.source for document in documents]
    assert len(documents) + len(bad) == len(HOSTILE) + 2


def test_limits_are_above_zero() -> None:
    with pytest.raises(ConfigError, match="parse_s must be above 0"):
        ParseLimits(parse_s=0)


@pytest.mark.parametrize(
    "page",
    [
        "<div>a" * 20_000,
        "<p>a" * 20_000,
        "<pre>" + " " * 400_000 + "x",
        "<h1>" + "<i>a</i>" * 20_000,
        "<!-- a" * 60_000,
        "<a " * 60_000,
        "<meta charset" * 60_000,
    ],
)
def test_html_is_parsed_in_linear_time(page: str) -> None:
    """A quadratic parser takes more than the 60 seconds that the suite's tests may take in all."""
    assert parse_html(page.encode())


def test_beginnings_of_tags_and_comments_are_text_where_they_never_end() -> None:
    assert parse_html(b"<p>one <!-- two</p> three <b four") == [Section("one <!-- two\n\nthree <b four")]


def test_surrogates_are_replaced_by_the_reader(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    page.write_bytes(rb'<meta charset="raw_unicode_escape"><h1>t\ud800</h1><p>a\ud83d')
    (document,) = load_documents([page])
    assert document.sections == (Section("t\ufffd\n\na\ufffd", title="t\ufffd"),)


def test_long_lines_of_rst_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.rst"
    path.write_text("word " * 4_000)
    (document,) = load_documents([path])
    assert document.sections[0].text == ("word " * 4_000).strip()


def test_bad_files_are_reported_and_skipped_or_refused(tmp_path: Path) -> None:
    for name, text in (("a.txt", ""), ("b.txt", "good"), ("c.html", "<nav>menu"), ("d.pdf", "no PDF")):
        (tmp_path / name).write_text(text)
    errors: list[DocumentError] = []
    (document,) = load_documents([tmp_path], on_bad=errors.append)
    assert document.source == str(tmp_path / "b.txt")
    assert [error.message.split(":")[0] for error in errors] == [
        str(tmp_path / name) for name in ("a.txt", "c.html", "d.pdf")
    ]
    with pytest.raises(DocumentError, match="is empty"):
        load_documents([tmp_path])
    (tmp_path / "b.txt").write_text("")
    with pytest.raises(DocumentError, match=r"none of 4 can be read; the first: .*is empty"):
        load_documents([tmp_path], on_bad=errors.append)


def test_a_parser_that_is_killed_between_two_files_costs_neither(tmp_path: Path) -> None:
    path = tmp_path / "good.md"
    path.write_text("# Good\n\nText.")
    with ParserProcess(ParseLimits()) as parser:
        first = parser.parse(str(path))
        process = parser._process._process
        assert process is not None
        process.kill()
        process.wait()
        assert parser.parse(str(path)) == first
