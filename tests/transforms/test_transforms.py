"""Transforms of values: what each makes of a text, what it refuses, and hostile texts."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest

from stretto.engines.batch.transforms import Transforms, TransformsConfig
from stretto.model.errors import BadReply, CapacityError, ConfigError
from stretto.model.tasks import Task
from stretto.model.values import Chunk
from stretto.transforms.table import chain, steps_of


def apply(steps: str, value: object) -> object:
    return chain(steps_of(steps))(value)


FENCED = 'Here it is:\n```json\n{"code": [1, 2]}\n```\nDone.'
SCHEMA = """json_schema {"type": "object", "required": ["name"], "additionalProperties": false, "properties":
 {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
  "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
  "id": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}""".replace("\n", "")


@pytest.mark.parametrize(
    ("steps", "value", "wanted"),
    [
        ("strip", "  a b\n", "a b"),
        ("strip", 7, "7"),
        ('split ", "', "a, b,c", ["a", "b,c"]),
        ("split", " a  b\nc ", ["a", "b", "c"]),
        ('join "; "', ["a", 1, "b"], "a; 1; b"),
        ('enum ["Yes", "no"]', ' **yes**.\n', "Yes"),
        ("comma", 'red, "green, dark" , blue,', ["red", "green, dark", "blue"]),
        ("numbered", "Of course:\n1. one\n 2) two\n\n3. three 3. x", ["one", "two", "three 3. x"]),
        ("markdown", "List:\n- one\n* two\n  + three", ["one", "two", "three"]),
        ("boolean", "Yes, it is.", True),
        ("boolean", "'false'", False),
        ("number", " -12 ", -12),
        ("number", "1e3", 1000.0),
        ("json", '"\\ud83d\\ude00"', "\N{GRINNING FACE}"),
        ("datetime", "2024-02-29 10:00", "2024-02-29T10:00:00"),
        ('datetime "%b %d, %y at %I:%M %p %z"', "Feb 29, 24 at 1:00 PM +0000", "2024-02-29T13:00:00+00:00"),
        ('datetime "%d.%m.%Y"', "31.12.2025.", "2025-12-31T00:00:00"),
        ("json", FENCED, {"code": [1, 2]}),
        ('json_path "$.code[1]"', FENCED, 2),
        ('json_path "$[*].a"', '[{"a": 1}, {"a": null}]', [1, None]),
        ("""json_path "$['b c'].d-e" """, {"b c": {"d-e": "x"}}, "x"),
        (SCHEMA, '{"name": "x", "age": 3.0, "tags": ["a"], "id": null}',
         {"name": "x", "age": 3.0, "tags": ["a"], "id": None}),
        ("to_json", {"a": ["ü"]}, '{"a": ["ü"]}'),
        ('xml "answer"', "So: <answer>4 &lt; <b>5</b></answer> <answer>x</answer>", "5"),
        ('xml "answer"', "So: <answer> 4 &lt; 5 </answer>", "4 < 5"),
        ("xml", "x <a><b>1</b><b>2</b></a>.", {"a": [{"b": "1"}, {"b": "2"}]}),
        ("yaml", "```yaml\na: [1, 2.5, yes, ~, 'no', true]\nb:\n  c: 1:30:00\n```",
         {"a": [1, 2.5, "yes", None, "no", True], "b": {"c": "1:30:00"}}),
        ('json\njson_path "$.l"\njoin ","', '{"l": [1, 2]}', "1,2"),
    ],
)  # fmt: skip
def test_what_a_transform_makes(steps: str, value: object, wanted: object) -> None:
    found = apply(steps, value)
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("steps", "value", "message"),
    [
        ('enum ["yes", "no"]', "maybe", "no choice among yes, no: 'maybe'"),
        ("boolean", "", "no yes or no"),
        ("number", "NaN", "no number"),
        ("number", "1" * 5000, "no number"),
        ("datetime", "soon", "no date and time"),
        ("numbered", "one, two", "no numbered list"),
        ('join ","', "abc", "no list"),
        ("json", "{'a': 1}", "no JSON"),
        ("json", "NaN", "NaN is no number"),
        ("json", "1e999", "1e999 is too large"),
        ("json", "null", "it is null"),
        ('json_path "$.a[5]"', '{"a": []}', r"nothing at $.a[5]: no '5' in []"),
        ('json_path "$.a"', '{"a": null}', "the value at $.a is null"),
        (SCHEMA, "{}", "$ lacks 'name'"),
        (SCHEMA, '{"name": ""}', "$.name: minLength is 1, got 0"),
        (SCHEMA, '{"name": "x", "age": true}', "$.age must be of type integer, got True"),
        (SCHEMA, '{"name": "x", "tags": ["a", "c"]}', "$.tags[1] must be one of ['a', 'b'], got 'c'"),
        (SCHEMA, '{"name": "x", "id": "1"}', "$.id follows none of the choices"),
        (SCHEMA, '{"name": "x", "more": 1}', "$.more must not be there"),
        ('xml "a"', "<b>1</b>", "no element 'a'"),
        ("xml", "<a><b></a>", "no XML"),
        ("xml", "nothing", "no XML"),
        ("yaml", "a: b: c", "no YAML"),
        ("yaml", "", "it is empty"),
        ("strip", object(), "a object has no textual form"),
        ("strip", [10**5000], "4300 digits"),
        ("json", '["\\ud800"]', "half of a surrogate pair"),
        ("yaml", '"\\ud800"', "half of a surrogate pair"),
        ('json_path "$.a"', [Chunk("s", 0, "text")], "nothing at $.a: no '.a' in [Chunk(source='s'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_a_bad_reply(steps: str, value: object, message: str) -> None:
    with pytest.raises(BadReply) as caught:
        apply(steps, value)
    assert message in str(caught.value)


DEEP = 10_000


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ("json", "[" * DEEP),
        ("json", '{"a":' * DEEP),
        ("json", "[" * DEEP + "]" * DEEP),
        ('json_path "$.a"', '{"a":' * DEEP + "1" + "}" * DEEP),
        ("xml", "<a>" * DEEP + "</a>" * DEEP),
        ("xml", '<!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;&b;">]><a>&c;</a>'),
        ("xml", '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>'),
        ("yaml", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]"),
        ("yaml", "[" * DEEP),
        ("yaml", '- a"\n- ' + "{a: " * DEEP),
        ("yaml", "- " * 20_000),
        ("yaml", "a" * 60_000),
        ("yaml", "!!python/object/apply:os.system [x]: 1"),
        ("strip", "x" * 1_000_001),
        ('json\njoin "%s"' % ("x" * 1000), json.dumps(["x"] * 10_000)),
        ("json", '"' + "\\" * 999_000),
        ("comma", '"' + "x" * 999_000),
        ("number", "1" * 999_000),
        ("boolean", "\n" * 999_000),
        ("numbered", "1" * 999_000),
        ("markdown", " " * 999_000 + "\n" * 900),
    ],
)  # fmt: skip
def test_hostile_texts_are_refused(steps: str, text: str) -> None:
    """None of them takes more than a fraction of a second."""
    with pytest.raises((BadReply, CapacityError)):
        apply(steps, text)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("shout", "there is no transform 'shout'; there are strip, enum"),
        ("strip 1", "strip takes no argument"),
        ("split ,", "the argument of split is no JSON"),
        ('split ""', "split needs a separator"),
        ("join", "join needs a separator, got None"),
        ("enum []", "enum needs choices that differ"),
        ('enum ["a", "A"]', "enum needs choices that differ"),
        ('enum "a"', "enum needs a list"),
        ("json_path", "json_path needs a path"),
        ('json_path "$..a"', "'..a' in '$..a' is no step"),
        ('json_schema {"$ref": "#"}', "$ has the unknown keyword '$ref'"),
        ('json_schema {"items": {"pattern": "a"}}', "$[items] has the unknown keyword 'pattern'"),
        ('json_schema {"type": "text"}', "unknown type 'text'"),
        ('json_schema {"required": 1}', "$.required is no list"),
        ("datetime 1", "datetime needs a form"),
        ('datetime "%d %d"', "datetime needs a form such as '%Y-%m-%d', got '%d %d'"),
        ('datetime "%Y %"', "datetime needs a form"),
        ('datetime "%k"', "datetime needs a form"),
        ('json_schema {"required": [[1]]}', "$.required must be a list of texts"),
        ("xml 1", "xml needs the name"),
    ],
)
def test_bad_transforms_are_refused_before_anything_runs(steps: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        steps_of(steps)
    assert message in str(caught.value)


def test_transforms_that_are_no_texts_are_refused() -> None:
    for given in (3, [3], None):
        with pytest.raises(ConfigError, match="transforms are texts"):
            steps_of(given)  # type: ignore[arg-type]


def test_regular_expressions_need_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(ConfigError, match=r"regex needs the package re2: .*stretto\[transforms\]"):
        steps_of('regex "never seen before"')


def re2() -> ModuleType:
    found: ModuleType = pytest.importorskip("re2")
    return found


def test_regular_expressions() -> None:
    re2()
    assert apply('regex "a(b+)c"', "xabbc") == "bb"
    assert apply('regex "b+"', "xabbc") == "bb"
    assert apply('regex "(a)(z)?"', "xab") == ["a", ""]
    with pytest.raises(BadReply, match="no match of 'z'"):
        apply('regex "z"', "x")
    for pattern in ("(a", "", "a{1000}{1000}", "(?=a)"):
        with pytest.raises(ConfigError, match="regex"):
            steps_of(f"regex {json.dumps(pattern)}")


def test_a_pattern_that_tries_everything_takes_linear_time() -> None:
    re2()
    with pytest.raises(BadReply, match="no match"):
        apply('regex "(a+)+$"', "a" * 900_000 + "b")


def test_the_engine_fails_one_value_and_not_its_neighbours() -> None:
    engine = Transforms(TransformsConfig())
    steps = {"steps": ("boolean",)}
    tasks = [
        Task(0, "q", "one", "transform", {"value": "yes"}, steps),
        Task(1, "q", "two", "transform", {"value": "?"}, steps),
        Task(2, "q", "each", "transform", {"value": ["no", "?", "yes"]}, steps, 3, ("value",)),
        Task(3, "q", "bad", "transform", {"value": Chunk("s", 0, "yes")}, {"steps": "boolean"}),
    ]
    one, two, each, bad = engine.run(tasks)
    assert one is True
    assert isinstance(two, BadReply)
    assert two.step == "two"
    assert isinstance(each, list)
    assert [each[0], type(each[1]), each[2]] == [False, BadReply, True]
    assert isinstance(bad, ConfigError)
    engine.release("q")
    engine.close()
