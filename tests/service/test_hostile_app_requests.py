"""Whatever a request for an app holds, it is a query or a refusal with a place, never a bug."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.apps import advanced_rag
from stretto.http.refusals import Refused
from stretto.service.apps.inputs import checked_inputs
from stretto.service.apps.query_request import read_query
from stretto.service.apps.settings import checked_settings, setting_types_of
from stretto.service.refusals import Misplaced


def keyed(values: st.SearchStrategy[Any], *keys: str) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(keys) if keys else st.text(max_size=8)
    return st.dictionaries(names, values, max_size=3)


APP = advanced_rag()
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | keyed(inner), max_leaves=6)
COMPONENTS = [component.name for component in APP.components]
SETTINGS = sorted({name for component in APP.components for name in setting_types_of(component)})
DOCUMENTS = keyed(VALUES, "name", "text", "base64", "url", "more")


@settings(max_examples=60)
@given(keyed(keyed(VALUES, *SETTINGS) | VALUES, *COMPONENTS) | VALUES)
def test_settings_are_usable_types_or_refused(given_settings: Any) -> None:
    with contextlib.suppress(Misplaced):
        hash(tuple(tuple(found.items()) for found in checked_settings(APP, given_settings).values()))


@settings(max_examples=60)
@given(keyed(VALUES | st.lists(DOCUMENTS | VALUES, max_size=3), "question", "files", "more") | VALUES)
def test_inputs_are_checked_or_refused(inputs: Any) -> None:
    with contextlib.suppress(Misplaced):
        assert set(checked_inputs(APP, inputs, {})) == {"question", "files"}


@settings(max_examples=60)
@given(st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_bodies_are_read_or_refused(body: bytes) -> None:
    multipart = b"--x\r\nContent-Disposition: form-data; name=" + body + b"\r\n--x--"
    for content_type, sent in (
        ("application/json", body),
        ("multipart/form-data; boundary=x", body),
        ("multipart/form-data; boundary=x", multipart),
    ):
        with contextlib.suppress(Refused):
            read_query(content_type, sent)
