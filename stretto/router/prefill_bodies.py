"""Bodies of requests whose prompt one worker computes and whose answer another one gives."""

from __future__ import annotations

import json
from collections.abc import Mapping

_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


_FIELDS = {"max_tokens": 1, "min_tokens": 0, "stream": False, "stream_options": None}
"""Fields of a request for a prompt alone, in place of the client's."""


_CHAT = {"max_completion_tokens": 1}


def prefill_body(body: bytes, *, is_chat: bool) -> bytes:
    """Return the body of the request for the prompt of another one. Of a field that stands twice in a body,
    the last one counts.
    """
    return _with_fields(body, {**_FIELDS, **(_CHAT if is_chat else {}), "kv_transfer_params": _PREFILL})


def answer_body(body: bytes, transfer: Mapping[str, object]) -> bytes:
    """Return the body of a request whose prompt has been computed elsewhere."""
    return _with_fields(body, {"kv_transfer_params": transfer})


def _with_fields(body: bytes, fields: dict[str, object]) -> bytes:
    """Return a JSON object with more fields at its end."""
    body = body.rstrip()
    return b"%b,%b" % (body[:-1], json.dumps(fields).encode()[1:])
