"""Thoughts before an answer are no part of it, wherever deltas end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.llm.output.output import DecodeOutput
from stretto.llm.output.thoughts import TAGS, Opening, Thoughts, opens_thoughts
from stretto.model.errors import BadReply
from stretto.model.tasks import Decode, Finish
from stretto.model.values import Segment

OPENINGS: tuple[Opening, ...] = ("none", "maybe", "likely", "certain")
LONG = "I think of this and that, and of <tags> too. " * 20


def answer(text: str, opening: Opening = "none", *, is_cut: bool = False, step: int = 1) -> str:
    thoughts = Thoughts(opening)
    parts = [thoughts.feed(text[at : at + step]) for at in range(0, len(text), step)]
    return "".join([*parts, thoughts.finish(is_cut=is_cut)])


@pytest.mark.parametrize("step", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("tags", TAGS)
def test_thoughts_of_every_family_are_dropped(tags: tuple[str, str], opening: Opening, step: int) -> None:
    text = f"\n{tags[0]}\n{LONG}\n{tags[1]}\n\nThe answer: <b>4</b> {tags[0]} {tags[1]}"
    assert answer(text, opening, step=step) == f"The answer: <b>4</b> {tags[0]} {tags[1]}"


@pytest.mark.parametrize("step", [1, 5, 10_000])
@pytest.mark.parametrize("closing", ["\n</think>\n\n", ".</think>\n\n", "\n</think>\n", "\n </think> \n"])
@pytest.mark.parametrize("opening", ["maybe", "likely", "certain"])
def test_the_opening_tag_may_stand_in_the_prompt(opening: Opening, closing: str, step: int) -> None:
    assert answer(f"{LONG}{closing}Four.", opening, step=step) == "Four."


@pytest.mark.parametrize(
    "text",
    [
        "Plain text.",
        "  \n indented",
        "A model writes <think> and then </think>\n\nbefore it answers.",
        "The tag <think>\nopens\n</think>\nthoughts.",
        "It ends with </think> in the middle of a line.",
        "<thinking about it> is no tag",
        "[THIN] [TH",
        "<",
        '["a", "b"]',
        LONG,
        LONG + "\n" + LONG,
        "",
    ],
)
@pytest.mark.parametrize("step", [1, 4, 10_000])
def test_text_that_mentions_tags_stays_text(text: str, step: int) -> None:
    for opening in ("none", "maybe"):
        assert answer(text, opening, step=step) == text


def test_several_thoughts_in_a_row_are_all_dropped() -> None:
    assert answer("<think>a</think>\n<think>b</think>\n\nFour.") == "Four."
    assert answer("<think></think>Four.") == "Four."
    assert answer("a\n</think>\n\n<think>b</think>\n\nFour.", "likely") == "Four."


def test_unclosed_thoughts_are_all_thoughts() -> None:
    assert answer("<think>I was going to") == ""
    assert answer("<think>I was going to", is_cut=True) == ""
    assert answer("I was going to", "certain") == ""
    assert answer("I was going to", "likely", is_cut=True) == ""
    assert answer("This time I do not think.", "likely") == "This time I do not think."
    assert answer("Nothing is known of me.", "maybe", is_cut=True) == "Nothing is known of me."
    assert answer("I thought\n</think>", "maybe") == ""


def test_a_stream_without_thoughts_is_not_held_back() -> None:
    thoughts = Thoughts()
    assert [thoughts.feed(delta) for delta in (" ", "Fo", "ur <", "think>")] == ["", " Fo", "ur <", "think>"]
    assert Thoughts("maybe").feed("Four.") == ""


def test_a_closing_tag_without_an_opening_one_is_remembered() -> None:
    for text, lacked in (("a\n</think>\nb", True), ("<think>a</think>b", False), ("b", False)):
        thoughts = Thoughts("maybe")
        thoughts.feed(text)
        thoughts.finish(is_cut=False)
        assert (thoughts.lacked_opening, thoughts.has_any) == (lacked, text != "b")


_PARTS = st.sampled_from(
    ["a", " ", "\n", "<", "<think>", "</think>", "[THINK]", "[/THINK]", "think>", "\n</think>\n", "b" * 90]
)


@given(
    st.lists(_PARTS, max_size=12).map("".join), st.sampled_from(OPENINGS), st.booleans(), st.integers(1, 9)
)
def test_deltas_of_any_length_give_the_same_answer(
    text: str, opening: Opening, is_cut: bool, step: int
) -> None:
    assert answer(text, opening, is_cut=is_cut, step=step) == answer(
        text, opening, is_cut=is_cut, step=len(text) + 1
    )


@given(st.lists(_PARTS, max_size=12).map("".join))
def test_an_answer_is_the_end_of_the_reply(text: str) -> None:
    for opening in OPENINGS:
        assert text.endswith(answer(text, opening))


def test_prompts_that_open_thoughts_are_seen() -> None:
    assert opens_thoughts("<|Assistant|><think>\n")
    assert opens_thoughts("assistant\n<think>")
    assert not opens_thoughts("assistant\n<think>\n\n</think>\n\n")
    assert not opens_thoughts("Explain <think> to me.")


def _output(text: str, decode: Decode, reason: Finish = "stop", prompt: str = "Q:") -> tuple[object, Finish]:
    output = DecodeOutput(decode, (Segment(prompt),))
    for char in text:
        if output.feed(char)[1]:
            break
    _, value = output.finish(reason)
    return value, output.finish_reason


def test_lists_and_stop_strings_of_thoughts_do_not_count() -> None:
    text = '<think>perhaps ["no"]\n\n1. nor this\n</think>\n\n["yes"]'
    assert _output(text, Decode(items="json_list")) == (["yes"], "stop")
    assert _output("<think>a\n\nb</think>\n\nc\n\nd", Decode(stop=("\n\n",))) == ("c", "stop")
    assert _output("no\n</think>\nyes", Decode(), prompt="Think: <think>") == ("yes", "stop")


def test_how_an_output_has_ended_is_known() -> None:
    assert _output("a b", Decode()) == ("a b", "stop")
    assert _output("a b", Decode(), "length") == ("a b", "length")
    assert _output("a|b", Decode(stop=("|",)), "length") == ("a", "stop")
    assert _output('["a"] and', Decode(items="json_list"), "length") == (["a"], "stop")
    assert _output('["a", "b', Decode(items="json_list"), "length") == (["a"], "length")
    assert _output("", Decode(), "content_filter") == ("", "content_filter")
    assert _output("<think>a", Decode(), "length") == ("", "thoughts")
    assert _output("<think>a</think>b", Decode(), "length") == ("b", "length")


def test_a_list_that_was_only_thought_of_is_none() -> None:
    with pytest.raises(BadReply, match="no list in the reply; the reply is empty"):
        _output('<think>["a"]', Decode(items="json_list"), "length")
