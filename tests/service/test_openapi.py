"""The OpenAPI document of a service says what the service does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.programs import Desk, desk_llm
from support.services import served

from stretto.engines.catalogue import transforms_engine
from stretto.service.config import ServiceConfig, TenantConfig
from stretto.service.service import Service

_METHODS = ("get", "post", "delete", "put", "patch")


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    config = ServiceConfig(port=0, tenant=(TenantConfig(name="a", keys=("k",)),))
    with served([desk_llm(Desk()), transforms_engine()], config) as (service, _):
        yield service


@pytest.fixture(scope="module")
def document(service: Service) -> dict[str, Any]:
    """Return the document as a client without a key gets it."""
    found: dict[str, Any] = httpx.get(f"{service.url}/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the operations of a document by id."""
    return {
        operation["operationId"]: operation
        for path in document["paths"].values()
        for method, operation in path.items()
        if method in _METHODS
    }


def test_the_document_has_the_routes_that_are_described(service: Service, document: dict[str, Any]) -> None:
    written = {
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method in methods
        if method in _METHODS
    }
    assert written == {
        (route.method, route.path) for route in service.app.routes if route.operation is not None
    }
    assert {path for _, path in written} >= {"/health", "/v1/sessions", "/v1/submit", "/v1/get", "/v1/set"}
    names = [route.operation.name for route in service.app.routes if route.operation is not None]
    assert len(names) == len(set(names))


def test_parts_of_paths_are_parameters(document: dict[str, Any]) -> None:
    (parameters,) = [path["parameters"] for name, path in document["paths"].items() if "{variable}" in name]
    assert [one["name"] for one in parameters] == ["session", "variable"]


def test_only_what_is_open_needs_no_key(document: dict[str, Any]) -> None:
    open_ones = {name for name, found in operations(document).items() if found.get("security") == []}
    assert open_ones == {"health"}


def test_links_lead_to_operations_and_name_their_parameters(document: dict[str, Any]) -> None:
    found = operations(document)
    links = [
        link
        for operation in found.values()
        for answer in operation["responses"].values()
        for link in answer.get("links", {}).values()
    ]
    assert len(links) >= 9
    for link in links:
        target = found[link["operationId"]]
        assert ("requestBody" in link) == ("requestBody" in target)
        for key in link.get("requestBody", {}):
            name = target["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            assert key in document["components"]["schemas"][name]["properties"]


@pytest.mark.parametrize(
    "name", ["SessionBody", "SubmitBody", "GetBody", "SetBody", "CallBody", "Placeholder"]
)
def test_bodies_are_described_with_patterns_that_all_parsers_know(
    name: str, document: dict[str, Any]
) -> None:
    schema = document["components"]["schemas"][name]
    assert schema["additionalProperties"] is False
    assert "\\\\A" not in repr(schema)
    assert "\\\\Z" not in repr(schema)
