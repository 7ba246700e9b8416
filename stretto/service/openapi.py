"""The description of a service's routes for programs: an OpenAPI document, with links from the answers of
requests to the requests that may follow.

Source: OpenAPI 3.1.0 §4.8.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stretto.service.schema import GetBody, SessionBody, SetBody, SubmitBody

_ID = "$response.body#/session_id"
_SAME = "$request.body#/session_id"
_VARIABLE = "$request.body#/semantic_var_id"
_ERROR = {"$ref": "#/components/schemas/Error"}
_REFUSALS = ("400", "401", "404", "405", "408", "409", "410", "413", "422", "429", "502", "503", "504")


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of the routes of sessions. It is the same for all clients."""
    bodies = (SessionBody, SubmitBody, GetBody, SetBody)
    refs, schemas = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    opened, submit, get, set_ = refs
    graph = {"text/plain": {"schema": {"type": "string"}}, "text/html": {"schema": {"type": "string"}}}
    events: dict[str, Any] = {"text/event-stream": {"schema": {}}}
    session = [_parameter("session")]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Stretto: programs on semantic variables", "version": "1"},
        "security": [{"key": []}],
        "paths": {
            "/health": {"get": {**_operation("health", _object(status="string")), "security": []}},
            "/v1/sessions": {
                "post": _operation(
                    "open", _object(session_id="string", idle_s="number"), opened, _of_session(), 201
                )
            },
            "/v1/sessions/{session}": {
                "parameters": session,
                "get": _operation(
                    "show", _object(session_id="string", num_variables="integer", usage="object")
                ),
                "delete": _operation("close", _object()),
            },
            "/v1/sessions/{session}/graph": {
                "parameters": session,
                "get": _operation("draw", content=graph),
            },
            "/v1/sessions/{session}/variables/{variable}": {
                "parameters": [*session, _parameter("variable")],
                "delete": _operation("drop", _object()),
            },
            "/v1/submit": {
                "post": _operation(
                    "submit",
                    _object(session_id="string", request_id="string", calls="array"),
                    submit,
                    _of_session(),
                )
            },
            "/v1/get": {"post": _operation("get", _object(semantic_var_id="string"), get, content=events)},
            "/v1/set": {
                "post": _operation(
                    "set",
                    _object(semantic_var_id="string"),
                    set_,
                    {
                        "get": _link("get", body={"session_id": _SAME, "semantic_var_id": _VARIABLE}),
                        "drop": _link("drop", {"session": _SAME, "variable": _VARIABLE}),
                    },
                )
            },
        },
        "components": {
            "schemas": {**_in_ecma(schemas), "Error": _error()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(
    name: str,
    answer: dict[str, Any] | None = None,
    body: dict[str, Any] | None = None,
    links: dict[str, Any] | None = None,
    status: int = 200,
    content: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the description of a method of a path.

    Args:
        answer: JSON schema of the answer; None if it is never JSON.
        content: answers that are no JSON, by type.
    """
    answers = dict(content or {})
    if answer is not None:
        answers["application/json"] = {"schema": answer}
    refusal = {"description": "refused", "content": {"application/json": {"schema": _ERROR}}}
    found: dict[str, Any] = {
        "operationId": name,
        "responses": {
            str(status): {"description": "done", "content": answers, "links": links or {}},
            **dict.fromkeys(_REFUSALS, refusal),
        },
    }
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return found


def _of_session() -> dict[str, Any]:
    """Return links from an answer with the id of a session to the requests that may follow."""
    links = {name: _link(name, {"session": _ID}) for name in ("show", "draw", "close")}
    return links | {name: _link(name, body={"session_id": _ID}) for name in ("submit", "set")}


def _link(
    operation: str, parameters: dict[str, str] | None = None, body: dict[str, str] | None = None
) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": operation}
    if parameters is not None:
        found["parameters"] = parameters
    if body is not None:
        found["requestBody"] = body
    return found


def _parameter(name: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _object(**types: str) -> dict[str, Any]:
    properties = {name: {"type": type_} for name, type_ in types.items()}
    return {"type": "object", "properties": properties, "required": list(types)}


def _error() -> dict[str, Any]:
    inner = _object(code="string", message="string", request_id="string")
    inner["properties"]["step"] = {"type": ["string", "null"]}
    return {"type": "object", "properties": {"error": inner}, "required": ["error"]}


def _in_ecma(schema: Any) -> Any:
    """Return a JSON schema with the ends of its patterns as ECMAScript, which OpenAPI takes, writes them."""
    if isinstance(schema, dict):
        return {
            key: value.replace(r"\A", "^").replace(r"\Z", "$")
            if key == "pattern" and isinstance(value, str)
            else _in_ecma(value)
            for key, value in schema.items()
        }
    return [_in_ecma(item) for item in schema] if isinstance(schema, list) else schema
