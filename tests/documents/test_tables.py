"""Tables keep their rows: each line names its columns, and nothing cuts a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.documents import load_documents
from stretto.documents.html import parse_html
from stretto.documents.markdown import parse_markdown
from stretto.documents.records import parse_csv, parse_json
from stretto.documents.sentences import split_sentences
from stretto.documents.tables import MAX_ROW_CHARS, table_text
from stretto.engines.batch.chunking import DEFAULT_TOKENS, chunk_document, tokenizer_of
from stretto.engines.batch.local_models import MINILM
from stretto.model.errors import DocumentError


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([["Product", "Price"], ["Lamp", "3 EUR"], ["", ""], ["Chair", ""]],
         "| Product: Lamp | Price: 3 EUR\n| Product: Chair"),
        ([["Sales"], [], ["Town", "2023", "2024"], ["Oslo", "5", "6"]],
         "| Sales\n| Town: Oslo | 2023: 5 | 2024: 6"),
        ([["Sales", ""], ["Town", "Sold"], ["Oslo", "5"]], "Sales\n| Town: Oslo | Sold: 5"),
        ([["", "2019", None, "2018"], ["Income", "5", "6", "7"]], "| Income | 2019: 5 | 2019: 6 | 2018: 7"),
        ([["", "2019"], ["Income", "5"]], "| Income | 2019: 5"),
        ([["Lamp", "3.5"], ["Chair", "7"]], "| Lamp | 3.5\n| Chair | 7"),
        ([["Only", "a header"]], "| Only | a header"),
        ([["one"], ["two"]], "| one\n| two"),
        ([["A:", "B"], ["x", "y\n z"]], "| A: x | B: y z"),
        ([], ""),
        ([[""]], ""),
    ],
)  # fmt: skip
def test_a_row_is_a_line_that_names_its_columns(rows: list[list[str | None]], text: str) -> None:
    assert table_text(rows) == text


def test_a_row_that_is_too_long_becomes_lines_with_its_first_cell_and_the_names() -> None:
    note = "It is heavy. " * 80
    text = table_text([["Product", "Price", "Note"], ["Lamp", "3", note]])
    lines = text.split("\n")
    assert len(lines) > 2
    assert all(line.startswith("| Product: Lamp | ") and len(line) <= MAX_ROW_CHARS for line in lines)
    assert all("Note: " in line for line in lines)
    assert text.count("heavy") == 80


def test_a_row_is_one_sentence_whatever_its_cells_hold() -> None:
    text = "Before. It is.\n| Date: 3. Oktober | Note: Good. Very good!\n- no row\n| A: b\nAfter."
    assert [text[start:end] for start, end in split_sentences(text)] == [
        *("Before.", "It is.", "| Date: 3. Oktober | Note: Good. Very good!", "- no row", "| A: b", "After."),
    ]


def test_no_chunk_parts_a_row_from_its_columns(tmp_path: Path) -> None:
    """At the usual size of chunks and at smaller ones, each chunk consists of whole rows."""
    rows = [f"Item {n};{n / 7:.2f};Made in 19{n % 90 + 10}. It is no. {n}. Fine!" for n in range(300)]
    path = tmp_path / "items.csv"
    path.write_text("\n".join(["Name;Weight in kg;Note", *rows]))
    (document,) = load_documents([path])
    lines = set(document.sections[0].text.split("\n"))
    assert len(lines) == 300
    tokenizer = tokenizer_of(MINILM)
    for budget in (64, DEFAULT_TOKENS - 2):
        for chunk in chunk_document(document, tokenizer, budget, 30):
            assert set(chunk.text.split("\n")) <= lines


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("Name,Age\nAda,36\nBob,\n", "| Name: Ada | Age: 36\n| Name: Bob"),
        ("Name;Sum\nAda;1,5\nBob;2,5\n", "| Name: Ada | Sum: 1,5\n| Name: Bob | Sum: 2,5"),
        ("Name\tAge\nAda\t36\n", "| Name: Ada | Age: 36"),
        ('Name,Note\nAda,"one, two\nthree"\n', "| Name: Ada | Note: one, two three"),
        ("just a line\n", "| just a line"),
    ],
)
def test_values_are_separated_as_fits_best(data: str, text: str) -> None:
    (section,) = parse_csv(data.encode())
    assert section.text == text


def test_json_lists_of_objects_are_tables() -> None:
    (section,) = parse_json(
        b'[{"name": "Ada", "home": {"town": "London"}}, {"name": "Bob", "tags": ["a", 2]}]'
    )
    assert section.text == "| name: Ada | home.town: London\n| name: Bob | tags: a, 2"


def test_json_objects_are_lines_and_their_lists_of_objects_are_sections() -> None:
    first, second = parse_json(
        b'{"title": "Fleet", "ok": true, "ships": [{"name": "Ada"}, {}], "none": null}'
    )
    assert first.text == "title: Fleet\n\nok: true"
    assert (second.title, second.text) == ("ships", "ships\n\n| name: Ada")


@pytest.mark.parametrize(
    ("name", "data", "cause"),
    [
        ("a.json", b"{", "is no JSON"),
        ("a.json", b"[" * 100_000, "is nested too deeply"),
        ("a.json", b"{}", "contains no text"),
        ("a.csv", b'a,"' + b"x" * 200_000, "is no readable table"),
        ("a.csv", b",,,\n", "contains no text"),
    ],
)
def test_data_that_cannot_be_read_is_refused_by_name(
    tmp_path: Path, name: str, data: bytes, cause: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DocumentError, match=cause) as refused:
        load_documents([path])
    assert str(path) in refused.value.message


def test_deep_json_is_read_to_a_depth_and_then_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text('{"a":' * 150 + "1" + "}" * 150)
    (document,) = load_documents([path])
    assert document.sections[0].text.startswith("a.a.a.a.")
    assert document.sections[0].text.endswith("}" * 50)


@pytest.mark.parametrize(
    ("html", "text"),
    [
        (
            "<table><caption>Ships</caption><thead><tr><th>Ship<th>Home<tbody>"
            "<tr><td>Ada <b>II</b><td>Oslo<br>Bergen<tr><td>Bob<td>Rome</table>",
            "Ships\n| Ship: Ada II | Home: Oslo Bergen\n| Ship: Bob | Home: Rome",
        ),
        (
            "<table><tr><th></th><th colspan=2>2023</th><th>2024</th></tr>"
            "<tr><td rowspan=2>Oslo</td><td>1</td><td>2</td><td>3</td></tr>"
            "<tr><td>4</td><td>5</td><td>6</td></tr></table>",
            "| Oslo | 2023: 1 | 2023: 2 | 2024: 3\n| Oslo | 2023: 4 | 2023: 5 | 2024: 6",
        ),
        ("<table><tr><td>menu<td><table><tr><td>a<td>b</table></table>", "menu\n\na b"),
        ("<table><tr><td>one<td>row</table>", "one row"),
        ("<table><tr><td><h2>Head</h2>text<td>side</table>", "Head\n\ntext side"),
        (
            "<p>Before<table><tr><td>a<td>b<tr><td>1</td><td hidden>2</td><td colspan=x>3</td></table>After",
            "Before\n\n| a: 1 | b: 3\n\nAfter",
        ),
    ],
)
def test_tables_of_pages_that_hold_data_are_rows(html: str, text: str) -> None:
    assert "\n\n".join(section.text for section in parse_html(html.encode())) == text


def test_tables_of_markdown_are_rows() -> None:
    (section,) = parse_markdown(b"Text.\n\n| Ship | Home |\n|---|---|\n| Ada | Oslo |\n\nMore.")
    assert section.text == "Text.\n\n| Ship: Ada | Home: Oslo\n\nMore."


@pytest.mark.parametrize("table", ["<table><tr><td>a", "<table>a", "<table><tr><td>a<td>b<tr><td>c<td>d"])
def test_many_tables_within_each_other_are_read(table: str) -> None:
    assert parse_html(table.encode() * 4_000)


def test_a_header_of_few_names_is_no_row() -> None:
    """Tables in Markdown begin with a header, which people leave empty where none is needed."""
    rows = "| Dockerfile | an image |\n| compose.yaml | a door |\n"
    for header, first in (("| | |", ""), ("| file | |", "file: ")):
        (section,) = parse_markdown(f"{header}\n|---|---|\n{rows}".encode())
        assert section.text == f"| {first}Dockerfile | an image\n| {first}compose.yaml | a door"
    (section,) = parse_html(
        b"<table><tr><th>Sales</th></tr><tr><th>Town</th><th>Sold</th></tr><tr><td>Oslo</td><td>5</td></tr></table>"
    )
    assert section.text == "Sales\n| Town: Oslo | Sold: 5"
