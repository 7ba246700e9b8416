"""Reads applications (YAML) and requests (JSON lines) for the planner; every mistake names its place.

    name: ensemble
    nodes:
      - {name: vicuna, model: vicuna-13b-v1.5, max_tokens: 256}
      - {name: judge, model: Llama-2-70b-chat-hf, max_tokens: 100, inputs: [vicuna], calls: 3}

A node may have the text of its `prompt`, with slots: {prompt} for the text of the request, {chunk} in a chain
and a map, {so_far} in a chain, and the name of an input for its answers.

A request has a `custom_id`, and a `prompt` (text; about four characters make a token) or `prompt_tokens`. It
may have `chunks` (texts or numbers of tokens), `nodes` that it is for, and `answers` (tokens by
node) if their lengths are known.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from stretto.model.errors import ConfigError, UserError
from stretto.model.user_files import is_in_file
from stretto.model.values import Segment
from stretto.model.wording import why_unreadable
from stretto.planner.application import Application, AppRequest, ModelNode, Named, NumTokens, check_model
from stretto.planner.deciding.app_file import app_of, is_deciding
from stretto.planner.prompt_slots import constant_text, known_slots, slots_of
from stretto.planner.token_counts import TextTokens, tokens_of
from stretto.planner.yaml_file import YAML_ERRORS, read_yaml
from stretto.schema.typed import read_as

T = TypeVar("T")

NO_ANSWERS: Mapping[str, int] = {}
"""The answers of requests that have none, one object for all of them: an empty mapping takes 64 bytes."""


class _Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An application as its file has it."""

    nodes: list[Any]
    name: str | None = None


class _RequestLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request as its line has it."""

    custom_id: Named
    prompt: str | None = None
    prompt_tokens: NumTokens | None = None
    chunks: tuple[str | NumTokens, ...] = ()
    nodes: tuple[str, ...] = ()
    answers: dict[str, NumTokens] = {}


def read_application(path: Path) -> Application:
    """Read an application from a YAML file, or one of a Python file that is given as FILE.py:NAME.

    Raises:
        ConfigError: it cannot be read, or a field or name is missing, unknown or of the wrong kind.
    """
    if is_in_file(str(path)):
        return app_of(None, path)
    try:
        found = read_yaml(path)
    except YAML_ERRORS as error:
        raise ConfigError(f"{path}: {why_unreadable(error)}") from error
    try:
        if is_deciding(found):
            return app_of(found, path)
        written = read_as(_Written, found)
        nodes = [_node(fields, f"node {at}") for at, fields in enumerate(written.nodes, 1)]
        return Application(path.stem if written.name is None else written.name, nodes)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from error


def _node(fields: Any, place: str) -> ModelNode:
    node = read_as(ModelNode, fields, place)
    if node.prompt and "prompt_tokens" not in fields:
        node = replace(node, prompt_tokens=tokens_of(constant_text(node.prompt)))
    check_model(node.model)
    if not node.name.isprintable():
        raise ConfigError(f"{place}: name must have printable characters, got {node.name!r}")
    known = known_slots(node)
    if unknown := [name for name in slots_of(node.prompt) if name not in known]:
        raise ConfigError(f"{place}: prompt has {{{unknown[0]}}}; known are {', '.join(known)}")
    if node.chain and node.map:
        raise ConfigError(f"{place}: cannot be a chain and a map at once")
    if node.is_by_chunk and node.calls > 1:
        raise ConfigError(f"{place}: makes one call for each chunk, so calls must be 1")
    return node


def checked_lines(
    file: BinaryIO,
    path: Path,
    parse: Callable[[Any], T],
    id_of: Callable[[T], str],
    is_refused: Callable[[int, bytes, str], bool] = lambda number, line, problem: False,
) -> Iterator[tuple[int, bytes, T]]:
    """Yield the lines of an open file that are not empty: where each begins, its text, and its request.

    A line that is wrong is left out if `is_refused`, which gets its number, its text and what is wrong, takes
    it.

    Raises:
        ConfigError: there are no lines, a line is wrong and not taken (the message has its number), or two
            requests have the same `custom_id`.
    """
    places, end, has_lines = dict[str, int](), 0, False
    for number, line in enumerate(file, 1):
        begin, end = end, end + len(line)
        if not line.strip():
            continue
        has_lines = True
        try:
            request = parse(decode_line(line))
            if (before := places.setdefault(id_of(request), number)) != number:
                raise ConfigError(f"custom_id {id_of(request)!r} was used in line {before}")
        except (ValueError, RecursionError, UserError) as error:
            if is_refused(number, line, str(error)):
                continue
            raise ConfigError(f"{path}, line {number}: {error}") from error
        yield begin, line, request
    if not has_lines:
        raise ConfigError(f"{path}: there are no requests")


def decode_line(line: bytes) -> Any:
    """Return the JSON of a line, which may begin with a byte order mark.

    Raises:
        ConfigError: it is no JSON, or a field is there twice.
    """
    try:
        return _decode(line.removeprefix(BOM_UTF8).rstrip(b"\r\n").decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"byte {error.start + 1} is no UTF-8: {error.reason}") from error
    except json.JSONDecodeError as error:
        message = error.msg.removesuffix(" at").removesuffix(" starting")
        raise ConfigError(f"no JSON, character {error.pos + 1}: {message}") from error


def _mapping(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"the field {twice!r} is there twice")
    return found


_decode = json.JSONDecoder(object_pairs_hook=_mapping).decode


def parse_request(found: Any, tokens: TextTokens | None = None) -> AppRequest:
    """Return the request that the JSON of one line describes. Raises ConfigError if it is wrong."""
    tokens = TextTokens(()) if tokens is None else tokens
    line = read_as(_RequestLine, found)
    if line.prompt is not None and line.prompt_tokens is not None:
        raise ConfigError("a request has a prompt or prompt_tokens, not both")
    if not line.chunks and line.prompt is None and line.prompt_tokens is None:
        raise ConfigError("a request needs a prompt, prompt_tokens or chunks")
    if "nodes" in found and not line.nodes:
        raise ConfigError("nodes must name at least one node; without nodes, a request is for all of them")
    given = line.prompt_tokens or 0
    return AppRequest(
        line.custom_id,
        given if line.prompt is None else tokens.of_prompt(Segment(line.prompt, "prompt")),
        tuple(tokens.of_part(chunk) if isinstance(chunk, str) else chunk for chunk in line.chunks),
        line.nodes,
        {name: max(1, tokens) for name, tokens in line.answers.items()} or NO_ANSWERS,
    )
