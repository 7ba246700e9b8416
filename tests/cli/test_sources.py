"""Sources of answers: how a reader finds the passage, and the sentence that the answer rests on."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.cli.ask.answers import answer_source, lines_of_chunk, named_places
from stretto.model.values import Chunk, Hit, Mark

PASSAGE = "The map was drawn\nby the captain. Rum was\nhis drink."


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tale.txt"
    path.write_bytes(("\nFirst line.\n\n" + PASSAGE + "\nThe end.\n").replace("\n", "\r\n").encode())
    return path


def test_a_passage_without_a_section_is_found_by_number_lines_and_quote(file: Path) -> None:
    source = answer_source(
        Hit(Chunk(str(file), 2, PASSAGE, num_chunks=5), 0.5), "tale.txt", "His drink was rum."
    )
    assert source.place == "passage 3 of 5, lines 4–6: “Rum was his drink.”"
    assert source.as_json() == {
        "file": "tale.txt",
        "page": None,
        "pages": None,
        "section": None,
        "sections": [],
        "quote": "Rum was his drink.",
        "passage": 3,
        "lines": (4, 6),
        "score": 0.5,
        "text": PASSAGE,
    }


def test_a_page_or_section_is_enough(file: Path) -> None:
    of_page = Chunk(str(file), 0, PASSAGE, page=3, num_chunks=2)
    of_section = Chunk(str(file), 0, PASSAGE, title="Rum", num_chunks=2)
    assert answer_source(Hit(of_page, 1.0), "t", "rum").place == "page 3"
    assert answer_source(Hit(of_section, 1.0), "t", "rum").place == "Rum"


def test_the_page_is_that_of_the_quote(file: Path) -> None:
    hit = Hit(Chunk(str(file), 0, PASSAGE, page=3, num_chunks=2, marks=(Mark(34, None, 4),)), 1.0)
    source = answer_source(hit, "t", "Rum", "What was his drink?")
    assert source.place == "page 4"
    assert (source.as_json()["page"], source.as_json()["pages"]) == (4, [4, 4])
    assert answer_source(hit, "t", "Quantum field theory").place == "pages 3–4"


def test_lines_are_unknown_where_the_file_is_not_what_was_read(file: Path, tmp_path: Path) -> None:
    assert lines_of_chunk(Chunk(str(file), 0, "The end.")) == (7, 7)
    assert lines_of_chunk(Chunk(str(file), 0, PASSAGE, marks=(Mark(34, "Rum"),))) is None
    assert lines_of_chunk(Chunk(str(file), 0, "Something else.")) is None
    assert lines_of_chunk(Chunk(str(tmp_path / "gone.txt"), 0, PASSAGE)) is None
    file.write_bytes(b"\0\1binary")
    assert lines_of_chunk(Chunk(str(file), 0, PASSAGE)) is None
    assert answer_source(Hit(Chunk(str(file), 0, PASSAGE), 1.0), "t", "nothing alike?").place == ""


def test_a_document_is_named_once_with_all_its_places(file: Path) -> None:
    first, again = (Chunk(str(file), 0, PASSAGE, page=page, num_chunks=2) for page in (3, 9))
    other, whole = Chunk("o", 0, PASSAGE, title="Rum"), Chunk("w", 0, PASSAGE)
    chunks = ((first, "t"), (other, "o"), (again, "t"), (whole, "w"), (first, "t"))
    sources = [answer_source(Hit(chunk, 1.0), name, "Quantum field theory") for chunk, name in chunks]
    assert named_places(sources) == ["t, page 3; page 9", "o, Rum", "w"]
    quoted = answer_source(Hit(Chunk("w", 0, "Rum was his drink."), 1.0), "w", "His drink was rum.")
    assert named_places([quoted]) == ["w: “Rum was his drink.”"]
