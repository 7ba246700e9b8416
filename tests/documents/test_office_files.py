"""Word, PowerPoint and Excel files as their libraries write them, and those that no library should open."""

from __future__ import annotations

import datetime
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from stretto.documents import ParseLimits, load_documents
from stretto.documents import parse as parse_module
from stretto.model.errors import DocumentError
from stretto.model.values import Section

WITHOUT = "the extra office is not installed"
docx = pytest.importorskip("docx", reason=WITHOUT)
pptx = pytest.importorskip("pptx", reason=WITHOUT)
charts = pytest.importorskip("pptx.chart.data", reason=WITHOUT)
openpyxl = pytest.importorskip("openpyxl", reason=WITHOUT)

OLD_FORMAT = bytes.fromhex("d0cf11e0a1b11ae1")
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def sections(path: Path) -> list[Section]:
    (document,) = load_documents([path])
    return list(document.sections)


def refusal(path: Path, limits: ParseLimits | None = None) -> str:
    """Read a file that is no document; return the message, which names it."""
    with pytest.raises(DocumentError) as refused:
        load_documents([path], limits=limits or ParseLimits())
    assert str(path) in refused.value.message
    return refused.value.message


def rewritten(path: Path, change: Callable[[str, bytes], bytes], more: Mapping[str, bytes]) -> Path:
    """Write a zip archive again, with its parts changed and further parts added; return its new path."""
    changed = path.with_name(f"changed-{path.name}")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
        for name, data in more.items():
            new.writestr(name, data)
    return changed


def word_file(path: Path) -> Path:
    document = docx.Document()
    document.add_paragraph("Before the first heading.")
    document.add_heading("The harbour", level=1)
    document.add_paragraph("Ships rest here.")
    document.add_paragraph("Ada", style="List Bullet")
    table = document.add_table(rows=0, cols=3)
    for row in (("Ship", "Length", "Home"), ("Ada", "12 m", "Oslo"), ("Bob", "9 m", "")):
        for cell, text in zip(table.add_row().cells, row, strict=True):
            cell.text = text
    document.add_paragraph("After the table.")
    document.add_heading("The town", level=2)
    document.add_paragraph("It is old.")
    document.save(str(path))
    return path


def slides_file(path: Path) -> Path:
    presentation = pptx.Presentation()
    first = presentation.slides.add_slide(presentation.slide_layouts[1])
    first.shapes.title.text = "The fleet"
    first.placeholders[1].text_frame.text = "Two ships"
    first.notes_slide.notes_text_frame.text = "Say that Ada is older."
    presentation.slides.add_slide(presentation.slide_layouts[6])
    third = presentation.slides.add_slide(presentation.slide_layouts[5])
    third.shapes.title.text = "Lengths"
    box = pptx.util.Inches(1)
    table = third.shapes.add_table(2, 2, box, box, box, box).table
    for at, text in enumerate(("Ship", "Length", "Ada", "12 m")):
        table.cell(at // 2, at % 2).text = text
    fourth = presentation.slides.add_slide(presentation.slide_layouts[6])
    fourth.shapes.add_shape(1, box, box, box, box)
    chart = charts.CategoryChartData()
    chart.categories = ["May", "June"]
    chart.add_series("Ships", (3, 4.5))
    fifth = presentation.slides.add_slide(presentation.slide_layouts[6])
    fifth.shapes.add_chart(pptx.enum.chart.XL_CHART_TYPE.BAR_CLUSTERED, box, box, box, box, chart)
    presentation.save(str(path))
    return path


def workbook(path: Path) -> Path:
    book = openpyxl.Workbook()
    ships = book.active
    ships.title = "Ships"
    for row in (
        ["All ships of the harbour"],
        [],
        ["Ship", "Length", "Share", "Built", "Sum"],
        ["Ada", 12.5, 0.125, datetime.datetime(1907, 3, 1), "=B4*2"],
        ["Bob", 9, 0.5, datetime.datetime(1951, 1, 2, 3, 4), None],
    ):
        ships.append(row)
    for at in (4, 5):
        ships.cell(at, 3).number_format = "0.0%"
    book.create_sheet("Empty")
    book.create_sheet("Crew").append(["Ada", True])
    book.save(path)
    return path


WRITERS = {".docx": word_file, ".pptx": slides_file, ".xlsx": workbook}


def test_word_files_have_a_section_for_each_heading(tmp_path: Path) -> None:
    assert sections(word_file(tmp_path / "a.docx")) == [
        Section("Before the first heading."),
        Section(
            "The harbour\n\nShips rest here.\n\n- Ada\n\n"
            "| Ship: Ada | Length: 12 m | Home: Oslo\n| Ship: Bob | Length: 9 m\n\nAfter the table.",
            title="The harbour",
        ),
        Section("The town\n\nIt is old.", title="The town"),
    ]


def test_word_files_show_what_a_reader_sees(tmp_path: Path) -> None:
    """Insertions, links, content controls, footnotes and merged cells are read; deleted and hidden text is
    not.
    """
    document = docx.Document()
    document.add_paragraph("The PLACE.")
    table = document.add_table(rows=3, cols=2)
    table.cell(0, 0).text, table.cell(0, 1).text = "Town", "Sold"
    table.cell(1, 0).merge(table.cell(2, 0)).text = "Oslo"
    table.cell(1, 1).text, table.cell(2, 1).text = "5", "7"
    document.save(str(tmp_path / "a.docx"))
    run = "<w:r>{}<w:t>{}</w:t></w:r>".format
    hidden = run("<w:rPr><w:vanish/></w:rPr>", "hidden ")
    inserted = f'<w:ins w:id="1" w:author="a">{run("", "old ")}</w:ins>'
    deleted = '<w:del w:id="2" w:author="a"><w:r><w:delText>new </w:delText></w:r></w:del>'
    link = f"<w:hyperlink>{run('', 'har')}</w:hyperlink>{run('', 'bour')}"
    controlled = f"<w:sdt><w:sdtContent><w:p>{run('', 'In a control.')}</w:p></w:sdtContent></w:sdt>"

    def change(name: str, data: bytes) -> bytes:
        if name != "word/document.xml":
            return data
        at = b"<w:t>The PLACE.</w:t></w:r>"
        assert at in data
        xml = f"{run('', 'An ')}{hidden}{inserted}{deleted}{link}".encode()
        data = data.replace(b"<w:r>" + at, xml)
        return data.replace(b"<w:tbl>", controlled.encode() + b"<w:tbl>", 1)

    (section,) = sections(rewritten(tmp_path / "a.docx", change, {}))
    assert section.text == "An old harbour\n\nIn a control.\n\n| Town: Oslo | Sold: 5\n| Town: Oslo | Sold: 7"


def test_headings_are_found_by_what_their_style_is_based_on(tmp_path: Path) -> None:
    document = docx.Document()
    own = document.styles.add_style("Chapter", docx.enum.style.WD_STYLE_TYPE.PARAGRAPH)
    own.base_style = document.styles["Heading 2"]
    document.add_paragraph("One", style="Chapter")
    document.add_paragraph("text")
    document.save(str(tmp_path / "a.docx"))
    assert sections(tmp_path / "a.docx") == [Section("One\n\ntext", title="One")]


def test_slides_are_pages_with_their_titles(tmp_path: Path) -> None:
    (document,) = load_documents([slides_file(tmp_path / "a.pptx")])
    assert document.sections == (
        Section("The fleet\n\nTwo ships\n\nNotes: Say that Ada is older.", title="The fleet", page=1),
        Section("Lengths\n\n| Ship: Ada | Length: 12 m", title="Lengths", page=3),
        Section("| May | Ships: 3\n| June | Ships: 4.5", page=5),
    )
    assert document.unread_pages == (4,)


def test_sheets_are_sections_with_a_line_for_each_row(tmp_path: Path) -> None:
    assert sections(workbook(tmp_path / "a.xlsx")) == [
        Section(
            "Ships\n\n| All ships of the harbour\n"
            "| Ship: Ada | Length: 12.5 | Share: 12.5% | Built: 1907-03-01 | Sum: =B4*2\n"
            "| Ship: Bob | Length: 9 | Share: 50% | Built: 1951-01-02 03:04:00",
            title="Ships",
        ),
        Section("Crew\n\n| Ada | TRUE", title="Crew"),
    ]


def test_a_formula_stands_as_the_value_that_was_saved(tmp_path: Path) -> None:
    def change(name: str, data: bytes) -> bytes:
        return data.replace(b"<f>B4*2</f><v></v>", b"<f>B4*2</f><v>25</v>").replace(
            b"<f>B4*2</f><v />", b"<f>B4*2</f><v>25</v>"
        )

    first, _ = sections(rewritten(workbook(tmp_path / "a.xlsx"), change, {}))
    assert "| Sum: 25\n" in first.text


@pytest.mark.parametrize("suffix", WRITERS)
def test_macros_and_other_parts_are_not_read(tmp_path: Path, suffix: str) -> None:
    plain = WRITERS[suffix](tmp_path / f"a{suffix}")
    other = rewritten(plain, lambda name, data: data, {"word/vbaProject.bin": OLD_FORMAT + b"Sub AutoOpen"})
    assert sections(other) == sections(plain)


@pytest.mark.parametrize("suffix", WRITERS)
def test_entities_are_refused_before_anything_expands_them(tmp_path: Path, suffix: str) -> None:
    bomb = b'<!DOCTYPE a [<!ENTITY b "bbbbbbbbbb">' + b"".join(
        b'<!ENTITY b%d "%s">' % (n, (b"&b%d;" % (n - 1) if n else b"&b;") * 10) for n in range(9)
    )

    def change(name: str, data: bytes) -> bytes:
        if name not in ("word/document.xml", "ppt/presentation.xml", "xl/workbook.xml"):
            return data
        start = data.index(b"?>") + 2 if data.startswith(b"<?xml") else 0
        return data[:start] + bomb + b"]>" + data[start:]

    path = rewritten(WRITERS[suffix](tmp_path / f"a{suffix}"), change, {})
    assert "declares a document type" in refusal(path)


@pytest.mark.parametrize(
    "suffix", [".docx", *(pytest.param(one, marks=pytest.mark.long) for one in WRITERS if one != ".docx")]
)
def test_an_archive_that_unpacks_to_too_much_is_refused_unread(tmp_path: Path, suffix: str) -> None:
    bomb = rewritten(
        WRITERS[suffix](tmp_path / f"a{suffix}"), lambda name, data: data, {"media/a.png": bytes(500_000_000)}
    )
    assert bomb.stat().st_size < 1_000_000
    assert "more than the 500000000 allowed" in refusal(bomb)


def test_a_small_file_of_many_paragraphs_costs_no_more_than_the_memory_allowed(tmp_path: Path) -> None:
    def change(name: str, data: bytes) -> bytes:
        if name != "word/document.xml":
            return data
        return data.replace(b"<w:sectPr", b"<w:p><w:r><w:t>x</w:t></w:r></w:p>" * 2_000_000 + b"<w:sectPr", 1)

    path = rewritten(word_file(tmp_path / "a.docx"), change, {})
    assert path.stat().st_size < 1_000_000
    refusal(path, ParseLimits(memory_bytes=200_000_000))


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (OLD_FORMAT + bytes(504) + "EncryptedPackage".encode("utf-16-le"), "is encrypted"),
        (OLD_FORMAT + bytes(504) + "WordDocument".encode("utf-16-le"), "of before 2007"),
        (b"PK\x03\x04 no archive", "is no readable Office file"),
        (b"text", "is no readable Office file"),
    ],
)
@pytest.mark.parametrize("suffix", WRITERS)
def test_files_that_are_no_office_files_are_refused_by_name(
    tmp_path: Path, suffix: str, data: bytes, cause: str
) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(data)
    assert cause in refusal(path)


def test_an_archive_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    for suffix, other in ((".docx", ".pptx"), (".pptx", ".xlsx"), (".xlsx", ".docx")):
        path = WRITERS[other](tmp_path / f"a{other}").rename(tmp_path / f"b{suffix}")
        refusal(path)


def test_without_the_extra_files_are_counted_and_named_with_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write(tmp_path / f"a{suffix}") for suffix, write in WRITERS.items()]
    (tmp_path / "b.txt").write_text("text")
    (tmp_path / "c.png").write_text("picture")
    monkeypatch.setattr(parse_module, "is_installed", lambda *packages: False)
    told: list[DocumentError] = []
    (document,) = load_documents([tmp_path], on_left_out=told.append)
    assert document.source == str(tmp_path / "b.txt")
    (error,) = told
    assert error.message.startswith(
        f"{tmp_path}: 1 file of other kinds: c.png; "
        "3 files that need an extra (pip install 'stretto[office]'): a.docx, a.pptx, a.xlsx (read are "
    )
    with pytest.raises(DocumentError, match=r"a\.docx: needs an extra: pip install 'stretto\[office\]'"):
        parse_module.parse_file(str(paths[0]))


def test_importing_the_documents_imports_no_library_of_office() -> None:
    import subprocess

    libraries = {"docx", "pptx", "openpyxl", "lxml"}
    code = f"import sys, stretto.documents; print(sorted({libraries!r} & sys.modules.keys()))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
