"""The description of a service's routes for programs: an OpenAPI document, with links from the answers of
requests to the requests that may follow.

Source: OpenAPI 3.1.0 §4.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from stretto.http.routes import Operation, Route

_ID = "$response.body#/session_id"
_SAME = "$request.body#/session_id"
_VARIABLE = "$request.body#/semantic_var_id"
_ERROR = {"$ref": "#/components/schemas/Error"}
_REFUSALS = ("400", "401", "404", "405", "408", "409", "410", "413", "422", "429", "502", "503", "504")


def openapi(routes: Iterable[Route[Any]]) -> dict[str, Any]:
    """Return the OpenAPI document of the routes that have an operation. It is the same for all clients."""
    described = [(route, route.operation) for route in routes if route.operation is not None]
    bodies = [operation.body for _, operation in described if operation.body is not None]
    refs, schemas = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    body_refs = dict(zip(bodies, refs, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route, operation in described:
        methods = paths.setdefault(route.path, {})
        if names := re.findall(r"{(\w+)}", route.path):
            methods["parameters"] = [_parameter(name) for name in names]
        body = None if operation.body is None else body_refs[operation.body]
        methods[route.method.lower()] = _described(operation, body, is_open=route.is_open)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Stretto: programs on semantic variables", "version": "1"},
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": {**_in_ecma(schemas), "Error": _error()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def links_of_session() -> dict[str, Any]:
    """Return links from an answer with the id of a session to the requests that may follow."""
    links = {name: _link(name, {"session": _ID}) for name in ("show", "draw", "close")}
    return links | {name: _link(name, body={"session_id": _ID}) for name in ("submit", "set")}


def links_of_variable() -> dict[str, Any]:
    """Return links from a request that names a session and a variable to those that may follow."""
    return {
        "get": _link("get", body={"session_id": _SAME, "semantic_var_id": _VARIABLE}),
        "drop": _link("drop", {"session": _SAME, "variable": _VARIABLE}),
    }


def _described(operation: Operation, body: dict[str, Any] | None, *, is_open: bool) -> dict[str, Any]:
    answers: dict[str, Any] = {kind: {"schema": dict(schema)} for kind, schema in operation.others.items()}
    if operation.answer is not None:
        answers["application/json"] = {"schema": _object(**operation.answer)}
    refusal = {"description": "refused", "content": {"application/json": {"schema": _ERROR}}}
    done = {"description": "done", "content": answers, "links": dict(operation.links)}
    found: dict[str, Any] = {
        "operationId": operation.name,
        "responses": {str(operation.status): done, **dict.fromkeys(_REFUSALS, refusal)},
    }
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if is_open:
        found["security"] = []
    return found


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
