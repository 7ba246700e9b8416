"""The body of a request that starts a query of an app, as JSON or as multipart/form-data with files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from stretto.apps.template import Configuration, Template
from stretto.model.tasks import Objective
from stretto.schema.typed import ValueProblem, read_as
from stretto.service.apps.inputs import UnparsedDocument, checked_inputs, document_name
from stretto.service.apps.multipart import read_parts
from stretto.service.apps.settings import checked_settings
from stretto.service.bodies import untyped_json
from stretto.service.refusals import Misplaced
from stretto.service.sizes import check_item_counts

_JSON_FIELD = "query"
"""Name of the multipart field that holds the JSON; all other fields are files."""


class QueryBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the JSON of a request to run an app may say.

    Attributes:
        inputs: inputs by name, as values of JSON.
        settings: settings to change, by component.
        deadline_s: seconds from the arrival of the request; None for no deadline.
        objective: what its requests at engines are served for.
        stream: whether the answer is a stream of events.
        background: whether the answer comes at once, and the result is fetched later.
    """

    inputs: Any = {}
    settings: Any = {}
    deadline_s: Annotated[float, Meta(gt=0, le=1e9, description="a number of seconds above 0")] | None = None
    objective: Objective = "throughput"
    stream: bool = False
    background: bool = False


class QueryRequest(QueryBody, frozen=True):
    """A request to run an app once.

    Attributes:
        files: uploaded files, by the name of their input.
        program: program that the query is a part of; "" where it is one by itself.
    """

    files: Mapping[str, Sequence[UnparsedDocument]] = {}
    program: str = ""


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A request that fits its app.

    Attributes:
        asked: what it asks for, without the inputs, settings and files that were read: they may be large.
        inputs: inputs by name, with an `UnparsedDocument` in place of each document.
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
    asked = read_query(content_type, body)
    check_item_counts((asked.inputs,), "inputs")
    inputs = checked_inputs(template, asked.inputs, asked.files)
    configuration = checked_settings(template, asked.settings)
    return CheckedRequest(
        msgspec.structs.replace(asked, inputs=None, settings=None, files={}), inputs, configuration
    )


def read_query(content_type: str, body: bytes | bytearray) -> QueryRequest:
    """Read a request from its body.

    Raises:
        Refused: the body is no JSON, or a key is unknown or has a value of another type.
    """
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        return _request(untyped_json(body, "body"), {})
    given: object = {}
    files: dict[str, list[UnparsedDocument]] = {}
    for part in read_parts(content_type, body):
        if part.name == _JSON_FIELD:
            given = untyped_json(part.data, _JSON_FIELD)
            continue
        place = f"inputs.{part.name}"
        if part.filename is None:
            raise Misplaced(
                place, f"is no file; give what is not a file as JSON in the field {_JSON_FIELD!r}"
            )
        name = document_name(part.filename, f"{place}.filename")
        files.setdefault(part.name, []).append(UnparsedDocument(name, part.data, None, place))
    return _request(given, files)


def _request(content: object, files: Mapping[str, Sequence[UnparsedDocument]]) -> QueryRequest:
    try:
        given = read_as(QueryBody, content)
    except ValueProblem as problem:
        is_known = problem.keys and problem.keys[0] in QueryBody.__struct_fields__
        raise Misplaced(str(problem.keys[0]) if is_known else "body", problem.reason) from problem
    if given.stream and given.background:
        raise Misplaced("stream", "cannot be true together with background; stream the query's events later")
    return QueryRequest(**msgspec.structs.asdict(given), files=files)
