"""What a request names that one worker alone keeps, such as a stored answer, and what an answer makes.

Servers keep responses, files, conversations and batches in their own memory or on their own disk. So a
request that names one has to go to the worker that made it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_COLLECTIONS = (
    *("responses", "files", "conversations", "batches", "uploads", "vector_stores", "videos", "containers"),
    *("assistants", "threads", "evals", "fine_tuning/jobs", "chat/completions"),
)
"""Paths behind `/v1/` whose members a server keeps."""
_MADE = frozenset(f"/v1/{name}" for name in _COLLECTIONS if name != "chat/completions")
"""Paths at which a POST makes a member; its answer has the id."""
_MEMBER = re.compile(rf"/v1/(?:{'|'.join(_COLLECTIONS)})/([^/]+)(?:/.*)?")
_NO_IDS = frozenset(("input_tokens", "compact"))
"""Names behind a collection that are no ids."""
_FIELDS = ("previous_response_id", "conversation", "input_file_id")
_FILE = re.compile(rb'(?<!\\)"file_id"\s*:\s*"([^"\\]{1,256})"')
"""A file that a prompt has as a part. Quotes in texts are escaped, so that a text never names one."""
_MAX_ID = 256
"""Characters of an id; a longer one is nobody's."""
_MAX_BEFORE = 65_536
"""Bytes of a stream in which the event that names its response must have come."""
_FIRST = re.compile(rb'\s*\{\s*"id"\s*:\s*"([^"\\]{1,256})"')
_CREATED = re.compile(rb'(?<!\\)"response"\s*:\s*\{\s*"id"\s*:\s*"([^"\\]{1,256})"')


def id_in_path(path: str) -> str:
    """Return the id of what a path names that a worker keeps; "" if it names nothing."""
    found = _MEMBER.fullmatch(path)
    return "" if found is None or found[1] in _NO_IDS else found[1][: _MAX_ID + 1]


def id_named(path: str, fields: Mapping[str, Any], body: bytes) -> str:
    """Return the id of what a request names that a worker keeps; "" if it names nothing.

    One request can go to one worker, so the first id counts: that of the path, then those of the fields.
    """
    if found := id_in_path(path):
        return found
    for name in _FIELDS:
        value = fields.get(name)
        if isinstance(value, dict):
            value = value.get("id")
        if isinstance(value, str) and value:
            return value[: _MAX_ID + 1]
    file = _FILE.search(body) if b'"file_id"' in body else None
    return "" if file is None else file[1].decode("utf-8", "replace")


def is_of_all(method: bytes, path: str) -> bool:
    """Return whether a request asks for what all clients of a server have stored, such as a list, and not for
    what it names by an id.
    """
    return method != b"POST" and not id_in_path(path)


class MadeId:
    """A reader of the id of what one answer says that it has made.

    Attributes:
        is_wanted: whether the id may still come.
    """

    def __init__(self) -> None:
        self.is_wanted = True
        self._num_bytes = 0

    def feed(self, events: bytes) -> str:
        """Take complete events of a stream; return the id that they name, or ""."""
        self._num_bytes += len(events)
        found = _CREATED.search(events)
        self.is_wanted = found is None and self._num_bytes < _MAX_BEFORE
        return "" if found is None else found[1].decode("utf-8", "replace")

    def whole(self, body: bytes) -> str:
        """Take an answer that came whole; return its id, or ""."""
        self.is_wanted = False
        if (found := _FIRST.match(body)) is not None:
            return found[1].decode("utf-8", "replace")
        if len(body) > _MAX_BEFORE:
            return ""
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            return ""
        value = fields.get("id") if isinstance(fields, dict) else None
        return value if isinstance(value, str) and len(value) <= _MAX_ID else ""


def made_id(method: bytes, path: str) -> MadeId | None:
    """Return what reads the id in the answer to a request; None if the request makes nothing."""
    return MadeId() if method == b"POST" and path in _MADE else None
