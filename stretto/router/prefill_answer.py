"""A worker's answer to the prompt of a request alone, which says where the KV is."""

from __future__ import annotations

import json
from time import monotonic

from stretto.http.client.answer_parser import AnswerParser
from stretto.model.errors import EngineFailure
from stretto.router.answer_owner import AnswerOwner
from stretto.router.answers import UsageReader
from stretto.router.attempt import AttemptOwner

_MAX_BYTES = 1_000_000
_ABOUT_REQUEST = (400, 413, 422)
"""Statuses that are about a request, perhaps about what is changed in it for its prompt alone."""


class PrefillAnswer:
    """The receiver of the answer to a prompt alone.

    Args:
        otherwise: takes everything else: refusals, and what fails.
    """

    def __init__(self, exchange: AnswerOwner, otherwise: AttemptOwner) -> None:
        self._exchange = exchange
        self._otherwise = otherwise
        self._body = bytearray()
        self._status = 200

    def on_head(self, answer: AnswerParser) -> None:
        """Take the head of the answer; one that is no good goes the way of other answers."""
        self._status = status = answer.status
        if status not in _ABOUT_REQUEST and not 200 <= status < 300:
            self._exchange.attempts.report_to(self._otherwise)
            self._otherwise.on_head(answer)

    def on_body(self, data: bytes) -> None:
        """Take a part of the body; of one that is too long, only so much that it cannot be read."""
        if len(self._body) <= _MAX_BYTES:
            self._body += data

    def on_end(self) -> None:
        """Go on with the answer at another worker, which is told where the KV is; with the whole request, if
        the answer is about the request; or as with other failures.
        """
        exchange = self._exchange
        exchange.attempts.running = None
        if self._status in _ABOUT_REQUEST:
            exchange.trace.failed(f"it answered a prompt with status {self._status}")
            exchange.act(exchange.router_state.prefills.unfit(exchange.ticket, self._status, monotonic()))
            return
        body = bytes(self._body)
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        transfer = answer.get("kv_transfer_params") if isinstance(answer, dict) else None
        if not isinstance(transfer, dict) or not transfer:
            reason = "its answer to a prompt has no kv_transfer_params"
            exchange.trace.failed(reason)
            exchange.refused_by_worker(502, reason, None)
            return
        reader = UsageReader()
        reader.feed(body)
        usage = reader.usage()
        exchange.outgoing.transfer = transfer
        exchange.trace.cached_tokens = usage.num_cached
        exchange.act(exchange.router_state.prefills.done(exchange.ticket, usage, monotonic()))

    def on_failed(self, failure: EngineFailure, *, was_sent: bool) -> None:
        """Handle an attempt that has failed, as others are."""
        self._otherwise.on_failed(failure, was_sent=was_sent)

    def on_broken(self) -> None:
        """End the request."""
        self._otherwise.on_broken()
