"""Documents of every format, and every way in which a file can be no document."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.pdfgen.canvas import Canvas

from stretto.documents import load_documents
from stretto.documents.parse import parse_file
from stretto.documents.sentences import split_sentences
from stretto.model.errors import ConfigError, DocumentError
from stretto.model.values import Section


def write_pdf(path: Path, pages: Sequence[Sequence[str]], password: str | None = None) -> Path:
    encryption = None if password is None else StandardEncryption(password, canPrint=0)
    canvas = Canvas(str(path), encrypt=encryption)
    for lines in pages:
        for number, line in enumerate(lines):
            canvas.drawString(72, 750 - 20 * number, line)
        canvas.showPage()
    canvas.save()
    return path


def sections(path: Path, data: bytes | str) -> list[Section]:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    (document,) = load_documents([path])
    return list(document.sections)


# Formats


def test_pdf_has_a_section_per_page_that_has_text(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf", [["The first", "page."], [], ["The third."]])
    (document,) = load_documents([path])
    assert document.sections == (Section("The first\npage.", page=1), Section("The third.", page=3))
    assert document.sha256 == sha256(path.read_bytes()).hexdigest()


def test_html_sections_begin_with_their_headings(tmp_path: Path) -> None:
    html = """<title>T</title><p>Before &amp; <b>bold</b>
        words<br>line<h1>One <i>two</i></h1><div>text</div><h3>Three</h3><ul><li>a<li>b</ul>"""
    assert sections(tmp_path / "a.html", html) == [
        Section("Before & bold words\nline"),
        Section("One two\n\ntext", title="One two"),
        Section("Three\n\n- a\n\n- b", title="Three"),
    ]


def test_html_drops_scripts_styles_menus_and_comments(tmp_path: Path) -> None:
    html = """<style>s</style><nav>menu</nav><script>s()</script><p>kept</p><!-- no --><footer>f</footer>
        <div role="navigation">menu</div><p hidden>no</p>"""
    assert sections(tmp_path / "a.htm", html) == [Section("kept")]


def test_html_reads_the_main_part_where_it_is_marked(tmp_path: Path) -> None:
    assert sections(tmp_path / "a.html", "<div>Shop</div><main><p>text</p></main>") == [Section("text")]


def test_html_keeps_white_space_of_code_and_rows_of_tables(tmp_path: Path) -> None:
    html = "<pre>def f():\n    return  1</pre><table><tr><td>a<td>b<tr><td>c</table>"
    assert sections(tmp_path / "a.html", html) == [Section("def f():\n    return  1\n\n| a: c")]


def test_html_uses_the_declared_encoding(tmp_path: Path) -> None:
    html = '<meta charset="iso-8859-5"><p>Привет</p>'.encode("iso-8859-5")
    assert sections(tmp_path / "a.html", html) == [Section("Привет")]


def test_html_may_be_nested_deeply(tmp_path: Path) -> None:
    assert sections(tmp_path / "a.html", "<div>" * 5000 + "deep") == [Section("deep")]


def test_markdown_becomes_plain_text_by_heading(tmp_path: Path) -> None:
    markdown = (
        "---\nkey: v\n---\nBefore *it*.\n\n# One `x`\n\nSee [a link](u).\n\n"
        "## Two\n\n```py\nif x:\n    y\n```\n"
    )
    assert sections(tmp_path / "a.md", markdown) == [
        Section("Before it."),
        Section("One x\n\nSee a link.", title="One x"),
        Section("Two\n\n\tif x:\n\t    y", title="Two"),
    ]


def test_rst_becomes_plain_text_by_heading(tmp_path: Path) -> None:
    rst = "Before.\n\nOne\n===\n\nSome *text*.\n\nTwo\n---\n\n::\n\n    if x:\n        y\n\n.. comment\n"
    assert sections(tmp_path / "a.rst", rst) == [
        Section("Before."),
        Section("One\n\nSome text.", title="One"),
        Section("Two\n\n\tif x:\n\t    y", title="Two"),
    ]


def test_rst_keeps_the_source_of_unknown_directives_in_silence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rst = "Text :unknown:`role`.\n\n.. versionadded:: 3.5\n   The new thing.\n"
    (section,) = sections(tmp_path / "a.rst", rst)
    assert "Text" in section.text
    assert "The new thing." in section.text
    assert capfd.readouterr() == ("", "")


def test_rst_substitutions_have_an_end(tmp_path: Path) -> None:
    chain = [f".. |a{n}| replace:: |a{n + 1}| |a{n + 1}|\n" for n in range(30)]
    for end, reason in (
        (".. |a30| replace:: x\n", "expand to more than"),
        (".. |a30| replace:: |a0|\n", "circle"),
    ):
        with pytest.raises(DocumentError, match=reason):
            sections(tmp_path / "a.rst", "Text |a0|.\n\n" + "".join(chain) + end)
    fine = "Text |A|.\n\n.. |a| replace:: one |b|\n.. |b| replace:: two |c|\n"
    assert sections(tmp_path / "a.rst", fine.replace(" |c|", "")) == [Section("Text one two.")]


def test_rst_reads_no_other_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    rst = f"Text.\n\n.. include:: {tmp_path}/secret\n\n.. raw:: html\n   :file: {tmp_path}/secret\n"
    assert sections(tmp_path / "a.rst", rst) == [Section("Text.")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_text_encodings(tmp_path: Path, encoding: str) -> None:
    text = "The café costs 5 €, “quoted”."
    assert sections(tmp_path / "a.txt", text.encode(encoding)) == [Section(text)]


def test_line_ends_are_made_one_kind(tmp_path: Path) -> None:
    assert sections(tmp_path / "a.txt", b"one\r\ntwo\rthree") == [Section("one\ntwo\nthree")]


# Which files


def test_directory_is_walked_in_sorted_order_without_hidden_and_unknown_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/c.md", ".hidden.txt", ".git/x.txt", "image.png", "a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    sources = [document.source for document in load_documents([tmp_path])]
    assert sources == [str(tmp_path / name) for name in ("a/c.md", "a/z.txt", "a.txt", "b.txt")]


def test_source_is_the_path_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    assert [document.source for document in load_documents(["docs"])] == ["docs/a.txt"]
    assert [document.source for document in load_documents(["./docs/a.txt"])] == ["./docs/a.txt"]


def test_file_met_twice_counts_once(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    documents = load_documents([tmp_path / "b.txt", tmp_path, tmp_path / "b.txt"])
    assert [document.source for document in documents] == [
        str(tmp_path / name) for name in ("b.txt", "a.txt")
    ]


def test_named_file_of_unknown_suffix_is_read_as_text(tmp_path: Path) -> None:
    assert sections(tmp_path / "notes.log", "text") == [Section("text")]


def test_progress_names_every_document(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    seen: list[str] = []
    documents = load_documents([tmp_path], on_document=seen.append)
    assert seen == [document.source for document in documents]


# What is no document


def assert_refused(path: Path, cause: str, max_bytes: int = 50_000_000) -> None:
    good = path.with_name("good.txt")
    good.write_text("text")
    with pytest.raises(DocumentError, match=cause) as refused:
        load_documents([good, path], max_bytes=max_bytes)
    assert str(path) in str(refused.value)


def test_missing_file_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    seen: list[str] = []
    with pytest.raises(DocumentError, match="No such file"):
        load_documents([tmp_path / "a.txt", tmp_path / "b.txt"], on_document=seen.append)
    assert seen == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("text")
    path.chmod(0)
    assert_refused(path, "Permission denied")


def test_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    assert_refused(tmp_path / "a.txt", "is not a file")


@pytest.mark.parametrize(
    ("name", "data", "cause"),
    [
        ("a.txt", b"", "is empty"),
        ("a.txt", b" \n\t\n", "no text"),
        ("a.html", b"<script>x()</script>", "no text"),
        ("a.md", b"<!-- nothing -->", "no text"),
        ("a.txt", b"text \0 text", "binary"),
        ("a.html", b"\x89PNG\r\n\x1a\n\0\0", "binary"),
        ("a.rst", b"text \x01\x02", "binary"),
        ("a.txt", "Совсем не по-английски".encode("koi8-r"), "encoding"),
        ("a.txt", b"\xff\xfet", "can't decode"),
        ("a.pdf", b"no PDF at all", "not a readable PDF"),
        ("a.pdf", b"%PDF-1.7\n1 0 obj\n<<", "not a readable PDF"),
    ],
)
def test_file_without_text_is_refused(tmp_path: Path, name: str, data: bytes, cause: str) -> None:
    (tmp_path / name).write_bytes(data)
    assert_refused(tmp_path / name, cause)


def test_pdf_without_text_is_refused(tmp_path: Path) -> None:
    assert_refused(write_pdf(tmp_path / "a.pdf", [[]]), "no text")


def test_encrypted_pdf_is_refused(tmp_path: Path) -> None:
    assert_refused(write_pdf(tmp_path / "a.pdf", [["secret"]], password="pw"), "encrypted")


def test_large_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert_refused(path, "more than the 1000 allowed", max_bytes=1000)


def test_directory_without_documents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert_refused(tmp_path / "folder", "no documents")


def test_no_paths_are_refused() -> None:
    with pytest.raises(DocumentError):
        load_documents([])


def test_missing_parser_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    path = write_pdf(tmp_path / "a.pdf", [["text"]])
    with pytest.raises(ConfigError, match=r"pip install 'stretto\[local\]'"):
        parse_file(str(path))


def test_importing_the_package_imports_no_parser() -> None:
    parsers = {"bs4", "markdown_it", "docutils", "pypdfium2"}
    code = f"import sys, stretto.documents; print(sorted({parsers!r} & sys.modules.keys()))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


# Sentences


@pytest.mark.parametrize(
    "text",
    [
        "One two.| Three four!| Five?| “Six.”| Seven",
        "See Fig. 3 and Dr. J. Smith, e.g. The Times, i.e. U.S. Steel etc. and so on.| Then stop.",
        "A line\nbroken here.\n|\nA new paragraph\n |\n- first item|\n- second\n  goes on|\n2. numbered",
        "Version 3.5 of x.y is out.| 42 is a number.",
        "これは文です。|次の文です。",
        "Do it:\n\n|\tone --a.\n|\ttwo(\n  b)\n|\tc\n\n|Then stop.",
    ],
)
def test_sentence_borders(text: str) -> None:
    expected = [part.strip() for part in text.split("|")]
    plain = text.replace("|", "")
    assert [plain[start:end] for start, end in split_sentences(plain)] == expected


@given(st.text("aB.!?\"' \n\t-1é。", max_size=80) | st.text("aB.!?| \n\t-1", max_size=80))
def test_sentences_cover_everything_but_white_space(text: str) -> None:
    spans = list(split_sentences(text))
    borders = [0, *(border for span in spans for border in span), len(text)]
    assert borders == sorted(borders)
    assert all(text[start:end] == text[start:end].strip(" \t\r\n") != "" for start, end in spans)
    between = "".join(text[a:b] for a, b in zip(borders[::2], borders[1::2], strict=True))
    assert between.strip(" \t\r\n") == ""
