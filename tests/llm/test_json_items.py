from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import BadReply
from stretto.llm.output.json_items import JsonItems


def parse(*deltas: str) -> list[str]:
    parser = JsonItems()
    items = [item for delta in deltas for item in parser.feed(delta)]
    parser.finish()
    return items


@st.composite
def cut_lists(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """A list of strings, and its JSON cut anywhere."""
    items = draw(st.lists(st.text(max_size=12), max_size=6))
    text = json.dumps(items, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 2])))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=20)))
    edges = [0, *cuts, len(text)]
    return items, [text[a:b] for a, b in pairwise(edges)]


@given(cut_lists())
def test_any_cut_of_any_list_yields_exactly_the_list(case: tuple[list[str], list[str]]) -> None:
    items, deltas = case
    assert parse(*deltas) == items == json.loads("".join(deltas))
    assert parse(*"".join(deltas)) == items


def test_item_comes_with_its_closing_quote() -> None:
    parser = JsonItems()
    assert list(parser.feed('["one')) == []
    assert list(parser.feed('"')) == ["one"]
    assert list(parser.feed(', "two", "th')) == ["two"]
    assert not parser.ended
    assert list(parser.feed('ree"]')) == ["three"]
    assert parser.ended


@pytest.mark.parametrize(
    "text",
    [
        'Sure! Here they are:\n```json\n["a", "b"]\n```\nAnything else? ["c"]',
        '{"queries": ["a", "b"]}',
        '\n[ "a"\t,\r\n"b" ]',
    ],
)
def test_what_surrounds_the_list_is_ignored(text: str) -> None:
    assert parse(*text) == ["a", "b"]


@pytest.mark.parametrize("text", ["[]", "[ \n ]", "none: []"])
def test_empty_list(text: str) -> None:
    assert parse(*text) == []


def test_escapes() -> None:
    literal = r'"\"\\\/\b\f\n\r\t\u00e9\uD834\uDD1E"'
    assert parse(*f"[{literal}]") == [json.loads(literal)]


def test_raw_line_break_in_an_item_is_accepted() -> None:
    assert parse('["a\nb"]') == ["a\nb"]


def test_half_a_surrogate_pair_becomes_the_replacement_character() -> None:
    assert parse(r'["a\ud834b"]') == ["a\ufffdb"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('["a", 3]', "item 2 .* is not a string"),
        ('[["a"]]', "item 1 .* is not a string"),
        ('[{"q": "a"}]', "item 1 .* is not a string"),
        ("[null]", "item 1 .* is not a string"),
        ('["a",]', "item 2 .* is not a string"),
        ('["a" "b"]', "expected ',' or ']' after item 1"),
        (r'["\x"]', "item 1 .*escape"),
        (r'["\u12"]', "item 1 .*escape"),
        ("no list at all", "no JSON list.*'no list at all'"),
        ("", "no JSON list"),
        ('["a", "b", "c', "cut off after 2 items.*'.*\"c'"),
        ('["a"', "cut off after 1 items"),
    ],
)
def test_what_is_no_list_of_strings_is_a_bad_reply(text: str, problem: str) -> None:
    with pytest.raises(BadReply, match=problem):
        parse(text)
    with pytest.raises(BadReply, match=problem):
        parse(*text)


def test_items_before_the_fault_are_delivered() -> None:
    items = JsonItems().feed('["a", 3]')
    assert next(items) == "a"
    with pytest.raises(BadReply):
        next(items)
