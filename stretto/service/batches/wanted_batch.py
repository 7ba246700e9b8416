"""What a client wants of files and batches, as it says it in forms and in JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.http.refusals import Refused
from stretto.service.apps.multipart import BodyPart
from stretto.service.bodies import untyped_json
from stretto.service.openai.errors import invalid, unsupported

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/rerank",
    "/v1/moderations",
)
"""Paths to which the lines of a batch may go, as far as the service or its workers have them."""
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WINDOW = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_MAX_WINDOW_S = 31 * 86_400
_KEPT_S = (3600, 2_592_000)
"""Shortest and longest time after which a file may expire, as OpenAI has it."""
_MAX_METADATA = 16
_MAX_KEY, _MAX_VALUE = 64, 512
_MAX_NAME = 255
_FIELDS = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file that a client sends. `kept_s` is None if it does not expire."""

    filename: str
    kept_s: int | None


@dataclass(frozen=True, slots=True)
class WantedBatch:
    """A batch that a client asks for."""

    input_file_id: str
    endpoint: str
    completion_window: str
    window_s: int
    metadata: Mapping[str, str] | None
    output_kept_s: int | None


def read_upload(parts: Sequence[BodyPart], num_bytes: int, max_bytes: int) -> WantedFile:
    """Read the form that comes with a file of `num_bytes` bytes. Raises Refused if something is wrong."""
    fields = {part.name: part.data.decode("utf-8", "replace") for part in parts if part.filename is None}
    files = [part for part in parts if part.filename is not None]
    if [part.name for part in files] != ["file"]:
        raise invalid("file", "a form has one part with a file, whose name is file")
    if (purpose := fields.pop("purpose", "")) != "batch":
        raise invalid("purpose", f"purpose must be 'batch', got {purpose!r:.80}")
    if num_bytes > max_bytes:
        raise Refused(413, "too_large", f"a file has at most {max_bytes} bytes", param="file")
    anchor = fields.pop("expires_after[anchor]", None)
    seconds = fields.pop("expires_after[seconds]", None)
    kept_s = None
    if anchor is not None or seconds is not None:
        is_number = seconds is not None and seconds.isascii() and seconds.isdigit() and len(seconds) < 12
        kept_s = _kept_s("expires_after", anchor, int(seconds) if is_number and seconds else None)
    if fields:
        raise unsupported(next(iter(fields)))
    filename = (files[0].filename or "").replace("\\", "/").rpartition("/")[2]
    return WantedFile(filename[:_MAX_NAME], kept_s)


def read_batch(content: bytes) -> WantedBatch:
    """Read the request for a batch. Raises Refused if something is wrong."""
    body = untyped_json(content, "the body")
    if not isinstance(body, dict):
        raise invalid("body", "the body must be an object")
    given: dict[str, Any] = {name: value for name, value in body.items() if value is not None}
    for name in given:
        if name not in _FIELDS:
            raise unsupported(name)
    for name in _FIELDS[:3]:
        if not isinstance(given.get(name), str):
            raise invalid(name, f"{name} must be a text")
    expiry = given.get("output_expires_after")
    kept_s = None
    if expiry is not None:
        if not isinstance(expiry, dict):
            raise invalid("output_expires_after", "output_expires_after must be an object")
        kept_s = _kept_s("output_expires_after", expiry.get("anchor"), expiry.get("seconds"))
    return WantedBatch(
        given["input_file_id"],
        given["endpoint"],
        given["completion_window"],
        _window_s(given["completion_window"]),
        _metadata(given.get("metadata")),
        kept_s,
    )


def _window_s(window: str) -> int:
    found = _WINDOW.fullmatch(window)
    seconds = int(found[1]) * _UNITS_S[found[2]] if found else 0
    if not 0 < seconds <= _MAX_WINDOW_S:
        message = "completion_window must be a number of s, m, h or d such as '24h', at most 31d, got "
        raise invalid("completion_window", f"{message}{window!r:.80}")
    return seconds


def _kept_s(name: str, anchor: object, seconds: object) -> int:
    least, most = _KEPT_S
    if anchor != "created_at":
        raise invalid(name, f"{name}.anchor must be 'created_at'")
    if type(seconds) is not int or not least <= seconds <= most:
        raise invalid(name, f"{name}.seconds must be a number from {least} to {most}")
    return seconds


def _metadata(value: object) -> Mapping[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > _MAX_METADATA:
        raise invalid("metadata", f"metadata must be an object with at most {_MAX_METADATA} keys")
    for key, one in value.items():
        if len(key) > _MAX_KEY or not isinstance(one, str) or len(one) > _MAX_VALUE:
            raise invalid(
                "metadata",
                f"metadata has texts of at most {_MAX_VALUE} characters, with keys of at most {_MAX_KEY}",
            )
    return value
