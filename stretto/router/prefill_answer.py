"""A worker's answer to the prompt of a request alone, which says where the KV is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Protocol

from stretto.http.client.answer_parser import AnswerParser
from stretto.model.errors import EngineFailure
from stretto.router.answers import UsageReader
from stretto.router.attempt import AttemptOwner
from stretto.router.messages import WorkerUsage

_MAX_BYTES = 1_000_000
_ABOUT_REQUEST = (400, 413, 422)
"""Statuses that are about a request, perhaps about what is changed in it for its prompt alone."""
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


class Prefilling(Protocol):
    """The request whose prompt is computed."""

    def prefilled(self, transfer: Mapping[str, object], usage: WorkerUsage) -> None:
        """Go on with the answer at another worker, which is sent `transfer`."""
        ...

    def prefill_refused(self, reason: str) -> None:
        """Go on after an answer without what another worker needs."""
        ...

    def prefill_unfit(self, status: int) -> None:
        """Go on with the whole request after an answer that is about the request."""
        ...


def prefill_body(body: bytes, *, is_chat: bool) -> bytes:
    """Return the body of the request for the prompt of another one. Of a field that stands twice in a body,
    the last one counts.
    """
    return _with_fields(body, {**_FIELDS, **(_CHAT if is_chat else {}), "kv_transfer_params": _PREFILL})


def answer_body(body: bytes, transfer: Mapping[str, object]) -> bytes:
    """Return the body of a request whose prompt has been computed elsewhere."""
    return _with_fields(body, {"kv_transfer_params": transfer})


class PrefillAnswer:
    """The receiver of the answer to a prompt alone.

    Args:
        otherwise: takes everything else: refusals, and what fails.
        report_to: lets the attempt report to another receiver from now on.
    """

    def __init__(
        self, request: Prefilling, otherwise: AttemptOwner, report_to: Callable[[AttemptOwner], None]
    ) -> None:
        self._request = request
        self._otherwise = otherwise
        self._report_to = report_to
        self._body = bytearray()
        self._status = 200

    def on_head(self, answer: AnswerParser) -> None:
        """Take the head of the answer; one that is no good goes the way of other answers."""
        self._status = status = answer.status
        if status not in _ABOUT_REQUEST and not 200 <= status < 300:
            self._report_to(self._otherwise)
            self._otherwise.on_head(answer)

    def on_body(self, data: bytes) -> None:
        """Take a part of the body; of one that is too long, only so much that it cannot be read."""
        if len(self._body) <= _MAX_BYTES:
            self._body += data

    def on_end(self) -> None:
        """Hand on where the KV is."""
        if self._status in _ABOUT_REQUEST:
            self._request.prefill_unfit(self._status)
            return
        body = bytes(self._body)
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        transfer = answer.get("kv_transfer_params") if isinstance(answer, dict) else None
        if not isinstance(transfer, dict) or not transfer:
            self._request.prefill_refused("its answer to a prompt has no kv_transfer_params")
            return
        usage = UsageReader()
        usage.feed(body)
        self._request.prefilled(transfer, usage.usage())

    def on_failed(self, failure: EngineFailure, *, was_sent: bool) -> None:
        """Handle an attempt that has failed, as others are."""
        self._otherwise.on_failed(failure, was_sent=was_sent)

    def on_broken(self) -> None:
        """End the request."""
        self._otherwise.on_broken()


def _with_fields(body: bytes, fields: dict[str, object]) -> bytes:
    """Return a JSON object with more fields at its end."""
    body = body.rstrip()
    return b"%b,%b" % (body[:-1], json.dumps(fields).encode()[1:])
