"""Reads applications (YAML) and requests (JSON lines) for the planner; every mistake names its place.

    name: ensemble
    nodes:
      - {name: vicuna, model: vicuna-13b-v1.5, max_tokens: 256}
      - {name: judge, model: Llama-2-70b-chat-hf, max_tokens: 100, inputs: [vicuna], calls: 3}

A request has a `custom_id`, and a `prompt` (text; about four characters make a token) or `prompt_tokens`. It
may have `chunks` (texts or numbers of tokens) for chains, `nodes` that it is for, and `answers` (tokens by
node) if their lengths are known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from stretto.errors import ConfigError
from stretto.planner.application import Application, Node, Request

_NODE_FIELDS = tuple(Node.__slots__)
_REQUEST_FIELDS = ("custom_id", "prompt", "prompt_tokens", "chunks", "nodes", "answers")
_CHARACTERS_PER_TOKEN = 4


def read_application(path: Path) -> Application:
    """Read an application from a YAML file.

    Raises:
        ConfigError: it cannot be read, or a field or name is missing, unknown or of the wrong kind.
    """
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("nodes"), list):
        raise ConfigError(f"{path}: an application is a mapping with a list of `nodes`")
    _check_fields(found, ("name", "nodes"), str(path))
    try:
        nodes = [_node(fields, f"node {at}") for at, fields in enumerate(found["nodes"], 1)]
        return Application(str(found.get("name", path.stem)), nodes)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from error


def _node(fields: Any, place: str) -> Node:
    if not isinstance(fields, dict):
        raise ConfigError(f"{place} must be a mapping, got {fields!r}")
    _check_fields(fields, _NODE_FIELDS, place)
    for name in ("name", "model", "max_tokens"):
        if name not in fields:
            raise ConfigError(f"{place} has no {name}")
    values = {**fields}
    if "inputs" in values:
        values["inputs"] = _names(values["inputs"], f"{place}: inputs")
    kinds = get_type_hints(Node)
    for name, value in values.items():
        if name != "inputs" and type(value) is not kinds[name]:
            raise ConfigError(f"{place}: {name} must be of type {kinds[name].__name__}, got {value!r}")
    node = Node(**values)
    if node.max_tokens < 1 or node.calls < 1 or node.prompt_tokens < 0:
        raise ConfigError(f"{place}: max_tokens and calls must be at least 1, prompt_tokens at least 0")
    if node.chain and node.calls > 1:
        raise ConfigError(f"{place}: a chain makes one call for each chunk, so calls must be 1")
    return node


def read_requests(path: Path) -> list[Request]:
    """Read requests from a file of JSON lines.

    Raises:
        ConfigError: it cannot be read, a line is wrong (the message has its number), or two requests have the
            same `custom_id`.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    requests, places = [], dict[str, int]()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            request = _request(json.loads(line))
        except (ValueError, ConfigError) as error:
            raise ConfigError(f"{path}, line {number}: {error}") from error
        if request.id in places:
            raise ConfigError(
                f"{path}, line {number}: custom_id {request.id!r} was used in line {places[request.id]}"
            )
        places[request.id] = number
        requests.append(request)
    return requests


def _request(found: Any) -> Request:
    if not isinstance(found, dict):
        raise ConfigError(f"a request is a mapping, got {found!r}")
    _check_fields(found, _REQUEST_FIELDS, "the request")
    if not isinstance(found.get("custom_id"), str) or not found["custom_id"]:
        raise ConfigError(f"custom_id must be a text, got {found.get('custom_id')!r}")
    if ("prompt" in found) and ("prompt_tokens" in found):
        raise ConfigError("a request has a prompt or prompt_tokens, not both")
    chunks = found.get("chunks", [])
    answers = found.get("answers", {})
    if not isinstance(chunks, list):
        raise ConfigError(f"chunks must be a list, got {chunks!r}")
    if not isinstance(answers, dict):
        raise ConfigError(f"answers must be a mapping from node to tokens, got {answers!r}")
    if not chunks and "prompt" not in found and "prompt_tokens" not in found:
        raise ConfigError("a request needs a prompt, prompt_tokens or chunks")
    return Request(
        found["custom_id"],
        _tokens(found.get("prompt", found.get("prompt_tokens", 0)), "prompt"),
        tuple(_tokens(chunk, "a chunk") for chunk in chunks),
        _names(found.get("nodes", []), "nodes"),
        {str(name): max(1, _tokens(tokens, f"answer of {name}")) for name, tokens in answers.items()},
    )


def _tokens(value: Any, what: str) -> int:
    if isinstance(value, str):
        return -(-len(value) // _CHARACTERS_PER_TOKEN)
    if type(value) is not int or value < 0:
        raise ConfigError(f"{what} must be a text or a number of tokens, got {value!r}")
    return value


def _names(value: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"{what} must be a list of names, got {value!r}")
    return tuple(value)


def _check_fields(found: Mapping[Any, Any], known: tuple[str, ...], place: str) -> None:
    if unknown := [name for name in found if name not in known]:
        raise ConfigError(f"{place}: unknown field {unknown[0]!r}; known are {', '.join(known)}")
