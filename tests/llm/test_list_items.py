from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.llm.output.list_items import ListItems
from stretto.llm.output.tool_calls import read_tool_call
from stretto.model.errors import BadReply


def parse(*deltas: str) -> list[str]:
    parser = ListItems()
    items = [item for delta in deltas for item in parser.feed(delta)]
    return items + parser.finish()


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
    parser = ListItems()
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
        ("[3]", "item 1 .* is not a string"),
        ('[["a', "cut off in its first item"),
        ("see [1] and [2]", "item 1 .* is not a string"),
        ('[{"q": 3}]', "item 1 .* has no text"),
        ("[null]", "item 1 .* is not a string"),
        (r'["\x"]', "item 1 .*escape"),
        (r'["\u12"]', "item 1 .*escape"),
        ("no list at all", "no list in.*'no list at all'"),
        ("", "no list"),
        ("{question}", "no list"),
        ("-5 is 3.5 - no mark", "no list"),
        ('["a', "cut off in its first item"),
        ('[{"q": "a"', "cut off in its first item"),
    ],
)
def test_what_is_no_list_of_strings_is_a_bad_reply(text: str, problem: str) -> None:
    with pytest.raises(BadReply, match=problem):
        parse(text)
    with pytest.raises(BadReply, match=problem):
        parse(*text)


@pytest.mark.parametrize(
    "text",
    [
        "1. a\n2. b",
        "Sure, here are two:\n\n1) a\n2) b\n",
        '- "a",\n- "b"',
        "  * **a**\n  * `b`\n\nDo they help?",
        "• a\n• b",
        '[{"query": "a"}, {"query": "b", "weight": 1}]',
        '{"queries": [{"n": 1, "text": "a"}, {"n": 2, "text": "b"}]}',
        '{"1": "a", "2": "b"}',
        '{"query": "a"}\n{"query": "b"}',
        '1. ["a", "b"]',
        '["a", "b",]',
        '["a" "b"]',
    ],
)
def test_numbered_lists_objects_and_small_slips_are_lists(text: str) -> None:
    assert parse(text) == ["a", "b"]
    assert parse(*text) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("[“a”, “b”]", ["a", "b"]),
        ("[“a “so-called” b”, ‘c’, «d»]", ["a “so-called” b", "c", "d"]),
        ("['a', 'b']", ["a", "b"]),
        ("['the harbour's colour', \"b\", 'c\\'d']", ["the harbour's colour", "b", "c'd"]),
        ("['a', 'b'", ["a", "b"]),
        ("['a', 'b", ["a"]),
        ("['caf\\u00e9', 'say \"hi\"']", ["café", 'say "hi"']),
        ('[["a"], ["b", "c"]]', ["a", "b", "c"]),
        ('[["a", "b"]] ["c"]', ["a", "b"]),
        ('{"queries": [["a"]]}', ["a"]),
        ('As [1] and [2, 3] say: ["a", "b"]', ["a", "b"]),
        ('[Source 1] says so.\n\n["a"]', ["a"]),
        ('Here:\n"a"\n"b"', ["a", "b"]),
        ('"a",\n"b",\n', ["a", "b"]),
        ("“a”\n“b”", ["a", "b"]),
        ('"a \\"b\\" c"', ['a "b" c']),
        ('"Queries": ["a", "b"]', ["a", "b"]),
        ('"Two" of them:\n"x"\n["a", "b"]', ["a", "b"]),
        ('\'tis this: ["a"]', ["a"]),
        ('<tool_call>\n{"name": "search", "arguments": {"q": ["x"]}}\n</tool_call>\n["a"]', ["a"]),
        ('<tool_call>\n{"name": "search", "arguments": {"q": "x"}}\n</tool_call>\n["a"]', ["a"]),
    ],
)
def test_usual_broken_lists_are_read(text: str, items: list[str]) -> None:
    for size in (1, 3, len(text)):
        assert parse(*(text[at : at + size] for at in range(0, len(text), size))) == items


@given(
    st.text(alphabet="[]{}\",:'“”\\\\ \na1.", max_size=40),
    st.lists(st.integers(0, 40), max_size=4),
    st.booleans(),
)
def test_other_quotes_and_calls_are_read_the_same_however_they_are_cut(
    text: str, cuts: list[int], takes_calls: bool
) -> None:
    def outcome(*deltas: str) -> object:
        parser = ListItems(takes_calls=takes_calls)
        try:
            return [item for delta in deltas for item in parser.feed(delta)] + parser.finish()
        except BadReply as error:
            return error.message

    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert outcome(*(text[a:b] for a, b in pairwise(edges))) == outcome(text)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('["weather: Oslo", "now: "]', ["weather: Oslo", "now: "]),
        ('[{"name": "weather", "arguments": {"city": "Oslo"}}]', [("weather", '{"city": "Oslo"}')]),
        ('[{"name": "a", "arguments": {"x": ["[", "{"]}}, "b: c"]', [("a", '{"x": ["[", "{"]}'), ("b", "c")]),
        (
            '[{"type":"function","function":{"name":"weather","arguments":"{\\"city\\":\\"Oslo\\"}"}}]',
            [("weather", '{"city":"Oslo"}')],
        ),
        (
            '<tool_call>\n{"name": "a", "arguments": {"x": [1]}}\n</tool_call>\n'
            '<tool_call>{"name": "b", "arguments": {}}</tool_call>',
            [("a", '{"x": [1]}'), ("b", "{}")],
        ),
        ('[TOOL_CALLS][{"name": "a", "arguments": {"x": 1}}]', [("a", '{"x": 1}')]),
        ('<|python_tag|>{"name": "a", "parameters": {"x": 1}}', [("a", '{"x": 1}')]),
        ('{"type": "tool_use", "name": "a", "input": {"x": 1}}', [("a", '{"x": 1}')]),
        ('{"calls": ["a: 1", {"name": "b", "arguments": null}]}', [("a", "1"), ("b", "")]),
        ('I think {of this} and {"x": 1}. []', []),
    ],
)
def test_calls_of_tools_come_as_texts_or_objects(text: str, calls: list[object]) -> None:
    for size in (1, len(text)):
        parser = ListItems(takes_calls=True)
        deltas = [text[at : at + size] for at in range(0, len(text), size)]
        found = [item for delta in deltas for item in parser.feed(delta)] + parser.finish()
        read = [read_tool_call(one) for one in found]
        expected = [one if isinstance(one, tuple) else tuple(str(one).split(": ", 1)) for one in calls]
        assert [(one.name, one.given) for one in read] == expected


@pytest.mark.parametrize(
    "text",
    ['{"name": "a"}', '{"arguments": {}}', '{"name": 3, "arguments": {}}', "{'name': 'a'}", '{"a'],
)
def test_a_call_that_cannot_be_read_is_none(text: str) -> None:
    with pytest.raises(BadReply, match="write NAME: INPUT"):
        read_tool_call(text)


@pytest.mark.parametrize(
    "tail",
    ['"c', "", ", ", ', "', ', "c', ", 3]", ", null]", r', "\x"]', ', ["c"]', ', {"n": 1}]', ', {"q": "c"'],
)
def test_broken_tail_costs_no_item_before_it(tail: str) -> None:
    assert parse('["a", "b"' + tail) == ["a", "b"]


@given(st.text(alphabet='[]{}",:\\ \na1.-*', max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_any_text_gives_items_or_a_bad_reply_however_it_is_cut(text: str, cuts: list[int]) -> None:
    def outcome(*deltas: str) -> object:
        try:
            return parse(*deltas)
        except BadReply as error:
            return error.message

    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert outcome(*(text[a:b] for a, b in pairwise(edges))) == outcome(text)
