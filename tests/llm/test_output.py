from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.llm.output.output import DecodeOutput
from stretto.model.errors import BadReply, ConfigError
from stretto.model.tasks import Decode
from stretto.model.values import Segment


def run(decode: Decode, *deltas: str) -> tuple[list[str], object]:
    """Feed deltas as an engine does, until the output is finished or the text is over; return pieces
    and value.
    """
    output = DecodeOutput(decode)
    pieces: list[str] = []
    for delta in deltas:
        new, finished = output.feed(delta)
        pieces += new
        if finished:
            break
    last, value = output.finish()
    return pieces + last, value


def expected_text(text: str, stop: tuple[str, ...], *, strip: bool = True) -> str:
    """Return the value by definition, character by character."""
    for end in range(1, len(text) + 1):
        complete = [len(s) for s in stop if text[:end].endswith(s)]
        if complete:
            text = text[: end - max(complete)]
            break
    return text.strip() if strip else text


few_letters = st.text(alphabet="ab \n", max_size=30)
stops = st.lists(st.text(alphabet="ab \n", min_size=1, max_size=4), max_size=3).map(tuple)


def cut(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


@given(few_letters, stops, st.lists(st.integers(0, 100), max_size=10), st.booleans())
def test_text_is_the_same_however_it_is_cut(
    text: str, stop: tuple[str, ...], cuts: list[int], strip: bool
) -> None:
    pieces, value = run(Decode(stop=stop, strip=strip), *cut(text, cuts))
    assert value == expected_text(text, stop, strip=strip)
    assert "".join(pieces) == value
    assert all(pieces)


@given(few_letters, stops)
def test_no_character_is_held_longer_than_it_may_have_to_go(text: str, stop: tuple[str, ...]) -> None:
    """Before the end, all but a possible beginning of a stop string and trailing space is out."""
    output = DecodeOutput(Decode(stop=stop))
    out = ""
    for end, char in enumerate(text, start=1):
        pieces, finished = output.feed(char)
        out += "".join(pieces)
        if finished:
            return
        seen = text[:end]
        held = max((n for s in stop for n in range(len(s)) if seen.endswith(s[:n])), default=0)
        assert out == seen[: end - held].strip()


@given(
    st.lists(st.text(max_size=8), max_size=5), st.none() | st.integers(1, 6), st.lists(st.integers(0, 200))
)
def test_list_pieces_are_its_items_up_to_max_items(
    items: list[str], max_items: int | None, cuts: list[int]
) -> None:
    deltas = cut(json.dumps(items), cuts)
    pieces, value = run(Decode(items="json_list", max_items=max_items), *deltas)
    assert pieces == value == items[:max_items]


def test_list_finishes_with_its_bracket() -> None:
    output = DecodeOutput(Decode(items="json_list"))
    assert output.feed('["a"') == (["a"], False)
    assert output.feed("] and more") == ([], True)
    assert output.finish() == ([], ["a"])


@pytest.mark.parametrize("rest", ['", 3, broken', '"'])
def test_nothing_behind_max_items_matters(rest: str) -> None:
    assert run(Decode(items="json_list", max_items=1), '["a' + rest) == (["a"], ["a"])


def test_list_that_was_cut_off_has_its_whole_items() -> None:
    assert run(Decode(items="json_list"), '["a", "b') == (["a"], ["a"])


QUESTION = (Segment("Reword "), Segment("Who?", "question"), Segment("\nJSON:"))


@pytest.mark.parametrize("text", ["I cannot do that.", "", "[3]", '["a'])
def test_what_is_no_list_falls_back_to_a_variable_with_a_warning(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    output = DecodeOutput(Decode(items="json_list", fallback="question"), QUESTION)
    pieces, _ = output.feed(text)
    last, value = output.finish()
    assert [*pieces, *last] == value == ["Who?"]
    (record,) = caplog.records
    assert "used instead: 'Who?'" in record.getMessage()


def test_without_a_fallback_what_is_no_list_is_a_bad_reply() -> None:
    for decode, prompt in (
        (Decode(items="json_list"), QUESTION),
        (Decode(items="json_list", fallback="x"), ()),
    ):
        output = DecodeOutput(decode, prompt)
        output.feed("no")
        with pytest.raises(BadReply, match="no list"):
            output.finish()


def test_stop_string_that_never_completes_is_text() -> None:
    assert run(Decode(stop=("END",)), "THE E", "N") == (["THE", " EN"], "THE EN")


@pytest.mark.parametrize("decode", [Decode(items="yaml"), Decode(max_tokens=0)])
def test_senseless_decode_is_a_config_error(decode: Decode) -> None:
    with pytest.raises(ConfigError):
        DecodeOutput(decode)
