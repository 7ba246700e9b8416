"""The sentence of a passage that supports an answer, and the pages and sections where it stands."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc

import pytest

from stretto.documents.quotes import cite
from stretto.model.values import Chunk, Mark

PAGES = (
    "The mill stands on a hill. Its wheel turns all day.",
    "A new roof was made of slate. The slate came from Wales.",
    "Bread is baked on Fridays. The oven holds ninety loaves.",
)


def on_pages(*texts: str) -> Chunk:
    """A passage whose parts stand on pages 1, 2 and so on."""
    starts = [sum(len(text) + 1 for text in texts[:at]) for at in range(len(texts))]
    marks = tuple(Mark(start, None, page) for page, start in enumerate(starts[1:], 2))
    return Chunk("a.pdf", 0, "\n".join(texts), page=1, marks=marks)


@pytest.mark.parametrize(
    ("answer", "question", "quote", "place"),
    [
        ("The slate came from Wales.", "", "The slate came from Wales.", "page 2"),
        ("Wales", "Where did the slate come from?", "The slate came from Wales.", "page 2"),
        ("They bake on Fridays, I believe.", "", "Bread is baked on Fridays.", "page 3"),
        ("Ninety.", "How many loaves fit into the oven?", "The oven holds ninety loaves.", "page 3"),
        ("", "What stands on the hill?", "The mill stands on a hill.", "page 1"),
        ("Quantum field theory", "Why?", None, "pages 1–3"),
    ],
)
def test_the_page_is_that_of_the_sentence(answer: str, question: str, quote: str | None, place: str) -> None:
    found = cite(on_pages(*PAGES), answer, question)
    assert (found.quote, found.place) == (quote, place)


def test_an_answer_of_one_word_is_found_by_its_question() -> None:
    chunk = on_pages("Music is played on Fridays.", "Rye bread is sold on Fridays only.")
    assert cite(chunk, "Fridays", "When is rye bread sold?").place == "page 2"
    assert cite(chunk, "Fridays", "When is music played?").place == "page 1"


def test_a_word_of_every_sentence_says_nothing() -> None:
    chunk = on_pages("The the the report of the year.", "In the report, the sum is large.", "Gold rose.")
    assert cite(chunk, "the gold of the year", "").place == "page 1"
    assert cite(chunk, "the price of gold", "").place == "page 3"


def test_a_sentence_across_pages_has_both() -> None:
    chunk = on_pages("Before. The cider press was bought from", "a monastery in Trier. After.")
    assert cite(chunk, "The cider press was bought from a monastery.").place == "pages 1–2"


@pytest.mark.parametrize("number", ["7", "– 7 –", "7 / 12"])
def test_a_page_number_before_the_sentence_does_not_count(number: str) -> None:
    chunk = on_pages(f"An earlier sentence.\n\n{number}", "The press came from Trier.")
    found = cite(chunk, f"{number} The press came from Trier.")
    assert (found.place, found.as_json()["pages"]) == ("page 2", [2, 2])


def test_sentences_that_are_equally_good_are_all_cited() -> None:
    chunk = on_pages("The fee is ten crowns.", "Nothing new.", "The fee is ten crowns.", "The end.")
    found = cite(chunk, "Ten crowns", "How much is the fee?")
    assert (found.quote, found.place) == ("The fee is ten crowns.", "pages 1–3")


def test_sections_are_told_as_pages_are() -> None:
    text = "Harbour\n\nThe pier is green.\n\nBakery\n\nRye bread is sold.\n\nSchool\n\nIt is old."
    marks = tuple(Mark(text.index(title), title) for title in ("Bakery", "School"))
    chunk = Chunk("notes.md", 0, text, "Harbour", marks=marks)
    assert cite(chunk, "Rye bread is sold.").place == "Bakery"
    assert cite(chunk, "Quantum field theory").place == "Harbour – School"
    assert chunk.place == "notes.md, Harbour – School"
    assert cite(chunk, "It is old.").as_json() == {
        "page": None,
        "pages": None,
        "section": "School",
        "sections": ["School"],
        "quote": "It is old.",
    }


def test_a_chunk_of_an_earlier_version_has_the_place_where_it_begins() -> None:
    chunk = Chunk("a.pdf", 0, " ".join(PAGES), page=1)
    assert cite(chunk, "The slate came from Wales.").place == "page 1"
    assert chunk.place == "a.pdf, page 1"


def test_text_before_the_first_heading_has_no_section() -> None:
    chunk = Chunk("a.md", 0, "First words.\n\nTitle\n\nLast words.", marks=(Mark(14, "Title"),))
    assert cite(chunk, "First words.").place == ""
    assert cite(chunk, "Last words.").place == "Title"


def test_the_quote_is_one_line_and_not_too_long() -> None:
    chunk = Chunk("a", 0, "The map was drawn\nby the captain. Rum was\nhis drink.")
    assert cite(chunk, "", "Who drew the map?").quote == "The map was drawn by the captain."
    assert cite(Chunk("a", 0, ""), "anything").quote is None
    long = cite(Chunk("a", 0, "Words " + "and words " * 100 + "to the end."), "words").quote
    assert long is not None
    assert len(long) < 170
    assert long.startswith("Words and")
    assert long.endswith("to the end.")


def test_ties_do_not_depend_on_the_order_of_sets() -> None:
    code = (
        "from stretto.model.values import Chunk, Mark; from stretto.documents.quotes import cite\n"
        "words = 'alpha beta gamma delta epsilon zeta eta theta iota kappa'.split()\n"
        "text = ' '.join(words[3:] + words[:3]).capitalize() + '. Other. ' + ' '.join(words).title() + '.'\n"
        "chunk = Chunk('a', 0, text, page=1, marks=(Mark(text.index('Alpha'), None, 2),))\n"
        "print(cite(chunk, 'iota zeta').place)"
    )
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        assert (
            subprocess.check_output([sys.executable, "-c", code], text=True, env=environment) == "pages 1–2\n"
        )


def test_a_long_question_costs_no_list_of_its_words() -> None:
    chunk = Chunk("a.txt", 0, "Some words of a passage.")
    question = "words " * 200_000
    tracemalloc.start()
    cite(chunk, "words", question)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(question)
