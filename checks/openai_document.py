"""OpenAI's API as an OpenAPI document, as far as a fuzzer needs it: which fields requests may have.

It says nothing of answers, which clients of OpenAI read (`openai_clients_check.py`).
"""

from __future__ import annotations

from typing import Any

_TEXT = {"type": "string", "maxLength": 200}
_FLAG = {"type": "boolean"}
_OBJECT = {"type": "object"}


def _one(*values: object) -> dict[str, object]:
    return {"enum": list(values)}


def _list(of: object, most: int = 4) -> dict[str, object]:
    return {"type": "array", "items": of, "maxItems": most}


def _any(*schemas: object) -> dict[str, object]:
    return {"anyOf": list(schemas)}


def _fields(needed: tuple[str, ...] = (), **properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": list(needed)}


def _number(least: float, most: float) -> dict[str, object]:
    return {"type": "number", "minimum": least, "maximum": most}


def _count(most: int) -> dict[str, object]:
    return {"type": "integer", "minimum": 1, "maximum": most}


_FUNCTION = _fields(("name",), name=_one("f", "g"), description=_TEXT, parameters=_OBJECT, strict=_FLAG)
_SAMPLING = {
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "stream": _FLAG,
    "user": _TEXT,
    "metadata": _OBJECT,
    "service_tier": _one("auto", "default", "flex", "priority"),
    "prompt_cache_key": _TEXT,
}
_GENERATING = {
    **_SAMPLING,
    "max_tokens": _count(16),
    "seed": _count(9),
    "n": _count(3),
    "stop": _any(_TEXT, _list(_TEXT)),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "logprobs": _any(_FLAG, _count(3)),
    "logit_bias": _OBJECT,
    "stream_options": _fields(include_usage=_FLAG),
    "structured_outputs": _fields(regex=_TEXT, choice=_list(_TEXT)),
}
_PARTS = _list(_fields(("type",), type=_one("text", "image_url", "file", "input_text"), text=_TEXT))
_CALL = _fields(("id",), id=_TEXT, type=_one("function"), function=_fields(name=_TEXT, arguments=_TEXT))
_MESSAGE = _fields(
    ("role",),
    role=_one("system", "developer", "user", "assistant", "tool"),
    content=_any(_TEXT, _PARTS, {"type": "null"}),
    tool_calls=_list(_CALL),
    tool_call_id=_TEXT,
    name=_TEXT,
)
_FORM = _fields(
    ("type",),
    type=_one("text", "json_object", "json_schema"),
    json_schema=_fields(("name",), name=_TEXT, schema=_OBJECT),
    name=_TEXT,
    schema=_OBJECT,
)
_CHOICE = _any(_one("auto", "none", "required"), _fields(type=_one("function"), function=_FUNCTION))
_ITEM = _any(
    _fields(("role",), role=_one("user", "assistant", "system"), content=_any(_TEXT, _PARTS)),
    _fields(("type",), type=_one("function_call"), call_id=_TEXT, name=_TEXT, arguments=_TEXT),
    _fields(("type",), type=_one("function_call_output", "reasoning"), call_id=_TEXT, output=_TEXT),
)


def openai_document(models: tuple[str, ...]) -> dict[str, Any]:
    """Return the document of a server with these models."""
    model = {"model": _one(*models, "", "missing")}
    tools: dict[str, object] = {"tools": _list(_fields(("type",), type=_one("function"), function=_FUNCTION))}
    tools["tool_choice"], tools["parallel_tool_calls"] = _CHOICE, _FLAG
    newer = {"tools": _list(_any(_FUNCTION, _fields(type=_one("function", "web_search"))))}
    bodies: dict[str, object] = {
        "/v1/chat/completions": _fields(
            ("messages",), **model, messages=_list(_MESSAGE), **_GENERATING, **tools, response_format=_FORM
        ),
        "/v1/completions": _fields(("prompt",), **model, prompt=_any(_TEXT, _list(_TEXT)), **_GENERATING),
        "/v1/responses": _fields(
            ("input",),
            **model,
            **_SAMPLING,
            **newer,
            input=_any(_TEXT, _list(_ITEM)),
            instructions=_TEXT,
            max_output_tokens=_count(16),
            text=_fields(format=_FORM),
            tool_choice=_CHOICE,
            store=_FLAG,
            previous_response_id=_TEXT,
            include=_list(_TEXT),
            reasoning=_fields(effort=_one(None, "low")),
        ),
        "/v1/embeddings": _fields(
            ("input",),
            model=_one("embedding", *models),
            input=_any(_TEXT, _list(_TEXT)),
            encoding_format=_one("float", "base64"),
            dimensions=_count(400),
        ),
        "/v1/rerank": _fields(
            ("query", "documents"),
            query=_TEXT,
            documents=_list(_TEXT),
            top_n=_count(4),
            return_documents=_FLAG,
        ),
    }
    paths: dict[str, Any] = {
        path: {"post": {"requestBody": _json(body), "responses": {"default": {"description": "any"}}}}
        for path, body in bodies.items()
    }
    named = {"name": "name", "in": "path", "required": True, "schema": _TEXT}
    listing = {"responses": {"default": {"description": "any"}}}
    paths["/v1/models"] = {"get": listing}
    paths["/v1/models/{name}"] = {"get": {"parameters": [named], **listing}}
    paths["/v1/responses/{name}"] = {"get": {"parameters": [named], **listing}}
    return {"openapi": "3.1.0", "info": {"title": "OpenAI's API", "version": "1"}, "paths": paths}


def _json(schema: object) -> dict[str, object]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}
