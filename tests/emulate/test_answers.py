"""The texts of emulated models: they depend on nothing but model, prompt and number."""

from __future__ import annotations

from stretto.emulate.answers import ended_answer, random_source, write_words
from stretto.emulate.tokens import FOUR_CHARACTERS, Piece, encode_chat
from stretto.wire.requests import ChatMessage

tokens = FOUR_CHARACTERS
PROMPT = tokens.encode("Which house has a kitchen?")


def words(num_tokens: int, *, model: str = "m", number: int = 0, ends: bool = False) -> list[Piece]:
    return write_words(tokens, random_source(model, PROMPT, number), num_tokens, ends=ends)


def test_equal_prompts_have_equal_answers() -> None:
    assert words(20) == words(20)
    assert words(20) != words(20, model="another")
    assert words(20) != words(20, number=1)


def test_a_longer_answer_begins_with_a_shorter_one() -> None:
    assert words(40)[:20] == words(20)


def test_an_answer_that_ends_has_as_many_tokens_when_it_is_read_again() -> None:
    text = "".join(piece for _, piece in words(20, ends=True))
    assert tokens.encode(text) == list(ended_answer(words(20, ends=True), max_tokens=30).ids)


def test_an_answer_is_cut_at_its_limit() -> None:
    answer = ended_answer(words(20), max_tokens=5)
    assert (len(answer.ids), answer.finish, answer.stop_reason) == (5, "length", None)
    assert ended_answer(words(20), max_tokens=21).finish == "stop"


def test_a_stop_string_may_lie_across_tokens_and_is_not_shown() -> None:
    pieces = tokens.cut(" one two six")
    answer = ended_answer(pieces, max_tokens=3, stop=("e tw",))
    assert answer.text == " on"
    assert (len(answer.ids), answer.finish, answer.stop_reason) == (2, "stop", "e tw")


def test_the_stop_that_is_complete_first_counts() -> None:
    pieces = tokens.cut(" one two six")
    assert ended_answer(pieces, max_tokens=3, stop=("six", "two")).stop_reason == "two"
    ids = ended_answer(pieces, max_tokens=3).ids
    answer = ended_answer(pieces, max_tokens=3, stop=("six",), stop_tokens=(ids[1],))
    assert (answer.text, answer.stop_reason, len(answer.ids)) == (" one", ids[1], 2)


def test_nothing_stops_an_answer_before_its_least_length() -> None:
    pieces = tokens.cut(" one two one two")
    answer = ended_answer(pieces, max_tokens=4, min_tokens=2, stop=("one",))
    assert (answer.text, len(answer.ids)) == (" one two ", 3)
    ids = answer.ids
    assert len(ended_answer(pieces, max_tokens=4, min_tokens=2, stop_tokens=(ids[1],)).ids) == 4


def test_text_and_tokens_are_the_same() -> None:
    assert tokens.decode(tokens.encode("Every house has a kitchen.")) == "Every house has a kitchen."
    assert tokens.encode("") == []


def test_the_prompt_of_a_later_turn_begins_with_the_earlier_one_and_its_answer() -> None:
    first = (ChatMessage("user", "Which house has a kitchen?"),)
    answer = "".join(piece for _, piece in words(9, ends=True))
    later = (*first, ChatMessage("assistant", answer), ChatMessage("user", "And a table?"))
    before = encode_chat(tokens, first) + tokens.encode(answer)
    assert encode_chat(tokens, later)[: len(before)] == before
