"""The body of a request that starts a query of an app, as JSON or as multipart/form-data with files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from stretto.apps.template import Configuration, Template
from stretto.model.tasks import Objective
from stretto.service.apps.inputs import Upload, checked_inputs, document_name
from stretto.service.apps.multipart import read_parts
from stretto.service.apps.settings import checked_settings
from stretto.service.bodies import checked_object, read_json
from stretto.service.refusals import Misplaced
from stretto.service.sizes import check_num_items

_KEYS = ("inputs", "settings", "deadline_s", "objective", "stream", "background")
_JSON_FIELD = "query"
"""Name of the multipart field that holds the JSON; all other fields are files."""


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """A request to run an app once.

    Attributes:
        inputs: inputs by name, as values of JSON.
        settings: settings to change, by component.
        deadline_s: seconds from the arrival of the request; None for no deadline.
        objective: what its requests at engines are served for.
        stream: whether the answer is a stream of events.
        background: whether the answer comes at once, and the result is fetched later.
        files: uploaded files, by the name of their input.
        program: program that the query is a part of; "" where it is one by itself.
    """

    inputs: object = field(default_factory=dict)
    settings: object = field(default_factory=dict)
    deadline_s: float | None = None
    objective: Objective = "throughput"
    stream: bool = False
    background: bool = False
    files: Mapping[str, Sequence[Upload]] = field(default_factory=dict)
    program: str = ""


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A request that fits its app.

    Attributes:
        asked: what it asks for, without the inputs, settings and files that were read: they may be large.
        inputs: inputs by name, with an `Upload` in place of each document.
        configuration: settings by component.
    """

    asked: QueryRequest
    inputs: dict[str, object]
    configuration: Configuration


def checked_request(template: Template, content_type: str, body: bytes | bytearray) -> CheckedRequest:
    """Read a request from its body, and check that it fits the app.

    Raises:
        Refused: the body is no JSON, or something in it is unknown, of another type or too large.
    """
    asked = read_request(content_type, body)
    check_num_items((asked.inputs,), "inputs")
    inputs = checked_inputs(template, asked.inputs, asked.files)
    configuration = checked_settings(template, asked.settings)
    return CheckedRequest(replace(asked, inputs=None, settings=None, files={}), inputs, configuration)


def read_request(content_type: str, body: bytes | bytearray) -> QueryRequest:
    """Read a request from its body.

    Raises:
        Refused: the body is no JSON, or a key is unknown or has a value of another type.
    """
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        return _request(read_json(body, "body"), {})
    given: object = {}
    files: dict[str, list[Upload]] = {}
    for part in read_parts(content_type, body):
        if part.name == _JSON_FIELD:
            given = read_json(part.data, _JSON_FIELD)
            continue
        place = f"inputs.{part.name}"
        if part.filename is None:
            raise Misplaced(
                place, f"is no file; give what is not a file as JSON in the field {_JSON_FIELD!r}"
            )
        name = document_name(part.filename, f"{place}.filename")
        files.setdefault(part.name, []).append(Upload(name, part.data, None, place))
    return _request(given, files)


def _request(content: object, files: Mapping[str, Sequence[Upload]]) -> QueryRequest:
    given = checked_object(content, "body")
    if unknown := [key for key in given if key not in _KEYS]:
        raise Misplaced("body", f"has the unknown key {unknown[0]!r:.80}; it may have {', '.join(_KEYS)}")
    deadline_s = given.get("deadline_s")
    if deadline_s is not None:
        is_number = isinstance(deadline_s, int | float) and not isinstance(deadline_s, bool)
        if not is_number or not 0 < deadline_s < math.inf or deadline_s > 1e9:
            raise Misplaced("deadline_s", "must be a number of seconds above 0")
    objective = given.get("objective", "throughput")
    if not isinstance(objective, str) or objective not in get_args(Objective):
        raise Misplaced("objective", f"must be one of {', '.join(get_args(Objective))}")
    for key in ("stream", "background"):
        if not isinstance(given.get(key, False), bool):
            raise Misplaced(key, "must be true or false")
    if given.get("stream") and given.get("background"):
        raise Misplaced("stream", "cannot be true together with background; stream the query's events later")
    return QueryRequest(**given, files=files)
