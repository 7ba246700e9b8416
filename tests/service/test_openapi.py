"""The OpenAPI document of a service says what the service does."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from support.programs import Desk, desk_llm
from support.services import served

from stretto.engines.catalogue import transforms_engine
from stretto.service.config import ServiceConfig, TenantConfig
from stretto.service.openapi import openapi

OF_OPENAI = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank"),
    *("/v1/models", "/v1/models/{model}"),
)
"""Routes that OpenAI describes."""
_METHODS = ("get", "post", "delete", "put", "patch")


def operations() -> dict[str, dict[str, Any]]:
    """Return the operations of the document by id."""
    paths = openapi()["paths"].values()
    return {
        operation["operationId"]: operation
        for path in paths
        for method, operation in path.items()
        if method in _METHODS
    }


def test_the_document_has_the_routes_of_sessions() -> None:
    config = ServiceConfig(port=0, tenant=(TenantConfig(name="a", keys=("k",)),))
    with served([desk_llm(Desk()), transforms_engine()], config) as (service, url):
        written_out = json.loads(json.dumps(openapi()))
        assert httpx.get(f"{url}/openapi.json").json() == written_out, "and needs no key"
        written = {
            (method.upper(), path)
            for path, methods in openapi()["paths"].items()
            for method in methods
            if method in _METHODS
        }
        for method, path in written:
            route, _ = service.app.routes.find(method, path.replace("{", "").replace("}", ""))
            assert (route.method, route.path) == (method, path)
        own = {
            (method, path)
            for method, path in service.app.routes
            if path != "/openapi.json" and "/apps" not in path and path not in OF_OPENAI
        }
        assert own == written


def test_links_lead_to_operations_and_name_their_parameters() -> None:
    found = operations()
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
            assert key in openapi()["components"]["schemas"][name]["properties"]


@pytest.mark.parametrize(
    "name", ["SessionBody", "SubmitBody", "GetBody", "SetBody", "CallBody", "Placeholder"]
)
def test_bodies_are_described_with_patterns_that_all_parsers_know(name: str) -> None:
    schema = openapi()["components"]["schemas"][name]
    assert schema["additionalProperties"] is False
    assert "\\\\A" not in repr(schema)
    assert "\\\\Z" not in repr(schema)
