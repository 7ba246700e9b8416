"""The sentence that answers a question best, the answers that it supports, and what is taken of drafts."""

from __future__ import annotations

import pytest

from stretto.documents.markdown import parse_markdown
from stretto.documents.support import best_sentence, best_supported, is_answered, is_supported, quote

QUESTION = "What did the captain promise Jim every month?"
BEST = "He promised Jim a silver fourpenny on the first of every month."
INN = "The captain came to the inn in the spring. The doctor never came again."
COIN = f"{BEST} It was not always paid."


@pytest.mark.parametrize(
    ("answer", "is_it"),
    [
        ("A silver fourpenny.", True),
        ("a silver fourpenny on the first of the month", False),  # "every" is left out
        ("He promised Jim the silver fourpenny.", True),
        ("The captain promised Jim a fourpenny.", False),  # "silver" is left out
        ("The captain promised Jim a silver fourpenny.", False),  # "captain" is not in it
        ("The captain promised Jim a gold guinea.", False),
        ("The captain promised Jim every month.", False),  # adds nothing to the question
        ("What did the captain promise is a silver fourpenny.", False),  # says the question again
        ("The answer to the question is:", False),
        ("", False),
    ],
)
def test_an_answer_is_supported_by_a_run_of_words(answer: str, is_it: bool) -> None:
    assert is_supported(QUESTION, answer, BEST, 1.0) is is_it


def test_a_smaller_share_takes_words_that_the_sentence_lacks() -> None:
    answer = "The captain promised Jim a silver fourpenny each time."  # four words of seven
    assert is_supported(QUESTION, answer, BEST, 0.5)
    assert not is_supported(QUESTION, answer, BEST, 0.6)


def test_the_first_supported_draft_is_taken_else_the_quote() -> None:
    drafts = ("A gold guinea.", "A silver fourpenny.", "The first of every month.")
    assert best_supported(QUESTION, BEST, drafts, 1.0) == "A silver fourpenny."
    assert best_supported(QUESTION, BEST, drafts[:1], 1.0) == BEST
    assert best_supported(QUESTION, BEST, (), 1.0) == BEST


def test_the_best_sentence_is_quoted_on_one_line() -> None:
    assert quote(QUESTION, [INN, COIN.replace("silver ", "silver\n")]) == BEST


def test_of_equal_sentences_the_one_of_the_passage_found_first_is_the_best() -> None:
    passages = ["The mill burned in May.", "A mill burned in June."]
    assert best_sentence("When did the mill burn?", passages) == passages[0]
    assert best_sentence("When did the mill burn?", passages[::-1]) == passages[1]


def test_a_rare_word_of_the_question_counts_more_than_a_frequent_one() -> None:
    passage = "The mill is old. The mill is tall. The mill is red. A miller died in the fire."
    assert best_sentence("What fire was at the mill?", [passage]) == "A miller died in the fire."


def test_a_heading_with_the_words_of_the_question_is_no_answer() -> None:
    passage = "Class Names\n\nClass names should normally use the CapWords convention."
    assert best_sentence("How should class names be written?", [passage]) == passage.splitlines()[2]


@pytest.mark.parametrize(
    ("passages", "quoted"), [([], ""), ([""], ""), (["Nothing here. Or there."], "Nothing here.")]
)
def test_the_first_sentence_is_quoted_where_none_shares_a_word(passages: list[str], quoted: str) -> None:
    assert best_sentence("Who?", passages) is None
    assert quote("Who?", passages) == quoted


def test_a_number_of_a_list_is_not_quoted() -> None:
    assert quote("Who?", ["6. Future skills\nMore."]) != "6."
    assert quote("Who?", ["6."]) == "6."


SCREWS = "| Item: M4 screws | Stock: 1200"
SHIPS = "| Ship: Ada | Length, 2018: 12 m | Length, 2019: 13 m | Home: Oslo"


def test_an_answer_that_says_itself_again_is_not_supported() -> None:
    question = "How many M4 screws are there?"
    assert not is_supported(question, "1200 M4 screws are 1200 screws", quote(question, [SCREWS]), 1.0)
    assert is_supported(question, "There are 1200.", quote(question, [SCREWS]), 1.0)
    assert is_supported("Which city?", "New York, New York", "It was New York, New York.", 1.0)


@pytest.mark.parametrize(
    ("question", "quoted"),
    [
        ("How many M4 screws are there?", "Item: M4 screws; Stock: 1200"),
        ("What was the length of the Ada in 2019?", "Ship: Ada; Length, 2019: 13 m"),
        ("How did the length of the Ada change?", "Ship: Ada; Length, 2018: 12 m; Length, 2019: 13 m"),
        ("What is the home of the Ada?", "Ship: Ada; Home: Oslo"),
        ("Which ship is at home in Oslo?", "Ship: Ada; Home: Oslo"),
        ("Which ship is in Oslo?", "Ship: Ada; Home: Oslo"),
        ("What is with the Oslo one?", "Ship: Ada; Length, 2018: 12 m; Length, 2019: 13 m; Home: Oslo"),
    ],
)
def test_of_a_row_the_cells_are_quoted_that_are_asked_for(question: str, quoted: str) -> None:
    assert quote(question, [f"The yard.\n\n{SCREWS}\n{SHIPS}"]) == quoted


@pytest.mark.parametrize(
    ("question", "quoted"),
    [
        ("How do I install it with HTTP/2?", "For HTTP/2, use: $ pip install x[http2]"),
        ("How are changes made?", "Changes are made in these steps: Merge it. Wait until it is green."),
        ("What is the default of max_hold_s?", "max_hold_s = 600 # by default"),
        ("How long may clients have held bytes?", "max_held_bytes = 5 # the default, of all clients"),
        ("What does rolling back take?", "It takes 90 seconds."),  # the heading's words count
        ("Does Word need the extra office?", "Kind: Word; Extra: office"),  # nothing is new
        ("Who owns db-02?", "Host: db-02; Owner: Ada"),  # the last row of a table is no heading
        ("Which host is well-known?", "The host of Ada is well-known."),  # an introduction says less
        ("What shows racks?", "The following table shows well-known hosts by rack:"),  # more than nothing
    ],
)
def test_the_best_sentence_of_technical_documents(question: str, quoted: str) -> None:
    markdown = (
        "# Changes\n\nFor HTTP/2, use:\n\n```sh\n$ pip install x[http2]\n```\n\n"
        "Changes are made in these steps:\n\n- Merge it.\n- Wait until it is green.\n\nThen go on.\n\n"
        "```toml\nmax_held_bytes = 5  # the default, of all clients\nmax_hold_s = 600  # by default\n```\n\n"
        "## Rolling back\n\nIt takes 90 seconds. Clients wait. Extras are as follows:\n\n"
        "| Kind | Extra |\n|---|---|\n| Word | office |\n| Mail | local |\n\n"
        "| Host | Cores | Owner |\n|---|---|---|\n| web-02 | 8 | Bob |\n| db-02 | 32 | Ada |\n\n"
        "The following table shows well-known hosts by rack:\n\nThe host of Ada is well-known.\n"
    )
    assert quote(question, [section.text for section in parse_markdown(markdown.encode())]) == quoted


@pytest.mark.parametrize(
    ("question", "is_it"),
    [
        ("When did the captain come to the inn?", True),
        ("Who is the president of Mongolia?", False),
        ("How much does the captain weigh, and how tall is he?", False),  # only one of three words
        ("Was he there?", True),  # no word that says something
        ("\u8239\u9577\u306f\u4f55\u3092\u7d04\u675f\u3057\u305f\u304b", True),  # no spaces, no words
    ],
)
def test_a_question_is_answered_where_a_passage_has_half_of_its_words(question: str, is_it: bool) -> None:
    assert is_answered(question, [COIN, INN]) is is_it
