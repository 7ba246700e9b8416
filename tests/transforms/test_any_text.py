"""Every transform makes a value of any text, or says what is wrong with it."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.model.errors import BadReply, CapacityError, ConfigError
from stretto.model.values import as_text
from stretto.transforms.table import TRANSFORMS, chain, steps_of

ARGUMENTS = {
    "split": ",",
    "join": ",",
    "enum": ["yes", "no"],
    "datetime": "%Y-%m-%d %H:%M",
    "json_path": "$.a[0][*].b",
    "json_schema": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"required": ["a"]}]}},
    "regex": "(a+)+b",
    "xml": "a",
}
NEED_ONE = ("join", "enum", "json_path", "json_schema", "regex")
texts = st.one_of(
    st.text(max_size=60),
    st.sampled_from(["\\ud83d", "\\ude00", "\\U0000DC00"]).map(lambda escape: f'["{escape}"]'),
    st.text(alphabet="{}[]\":,<>/&;-*#|!? \n\t\\'01.9eEaby", max_size=60),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    ).map(json.dumps),
    st.sampled_from(["<a>{}</a>", "<a b='{}'/>", "- {}\n- x", "1. {}", "a: {}", "```json\n{}\n```"]).flatmap(
        lambda form: st.text(max_size=20).map(lambda text: form.replace("{}", text))
    ),
)


def steps(name: str, *, has_argument: bool) -> tuple[str, ...]:
    """A chain of one transform; skips the test where a package is missing."""
    try:
        return steps_of([f"{name} {json.dumps(ARGUMENTS[name])}" if has_argument else name])
    except ConfigError as error:
        if "not installed" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize(
    ("name", "has_argument"),
    [
        *((name, True) for name in ARGUMENTS),
        *((name, False) for name in TRANSFORMS if name not in NEED_ONE),
    ],
)  # fmt: skip
@settings(max_examples=30, deadline=None)
@given(text=texts)
def test_any_text_gives_a_value_or_a_typed_error(name: str, has_argument: bool, text: str) -> None:
    function = chain(steps(name, has_argument=has_argument))
    with suppress(BadReply, CapacityError):
        value = function(text)
        assert value is not None
        json.dumps(value, ensure_ascii=False).encode()
        if isinstance(value, str):
            assert as_text(value) == value


@settings(max_examples=100, deadline=None)
@given(written=st.text(max_size=30) | st.sampled_from(sorted(TRANSFORMS)).flatmap(
    lambda name: texts.map(lambda argument: f"{name} {argument}")
))  # fmt: skip
def test_any_writing_of_a_transform_is_one_or_refused(written: str) -> None:
    with suppress(ConfigError):
        steps_of([written])
