"""A client's request as workers get it: with ids, under the name of their model, repaired, or as the request
for the rest of an answer that was cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stretto.http.client_request import ClientRequest
from stretto.router.body_edits import Span, edited
from stretto.router.head import TRACEPARENT, with_ids
from stretto.router.messages import Part, RoutedRequest
from stretto.router.prefill_bodies import answer_body, prefill_body
from stretto.router.replies import json_body
from stretto.router.worker_link import WorkerLink


class OutgoingRequest:
    """A client's request on its way to workers.

    Attributes:
        request_id: id of the request: the client's, or one of the router.
        traceparent: trace context that the client has sent; None if it has sent none.
        is_repeatable: whether it may be sent again when it is not known if a worker has handled it.
        rest: body of the request for the rest of an answer that was cut; None sends what the client has sent.
        transfer: where the KV of its prompt is, as the worker that has computed it says.
        sent_body: body as it was sent last.
    """

    def __init__(self, request: ClientRequest) -> None:
        self._request = request
        self._headers, self.request_id, self.traceparent = with_ids(request.headers)
        self._renaming: list[tuple[Span, bytes]] = []
        self._priority_at: Sequence[Span] = ()
        self.is_repeatable = True
        self.rest: bytes | None = None
        self.transfer: Mapping[str, object] = {}
        self.sent_body = b""

    def read(self, routed: RoutedRequest) -> None:
        """Take what is to be edited in the body."""
        self.is_repeatable, self._priority_at = routed.is_repeatable, routed.priority_at
        if routed.alias_at:
            name = routed.model.encode() if routed.is_form else json_body(routed.model)
            self._renaming = [(span, name) for span in routed.alias_at]
        self._renaming += routed.edits

    def belongs_to(self, traceparent: bytes) -> None:
        """Let what a worker does belong to a span."""
        if self.traceparent is not None:
            self._headers = [line for line in self._headers if line[0] != TRACEPARENT]
        else:
            self._headers.pop()
        self._headers.append((TRACEPARENT, traceparent))

    def data_for(self, link: WorkerLink, part: Part = "whole") -> tuple[bytes, bytes]:
        """Return the request, or a part of it, as it is sent to a worker, in two pieces."""
        self.sent_body = body = self._body_for(link) if self.rest is None else self.rest
        if part == "prefill":
            body = prefill_body(body, is_chat=self._request.path.endswith("/chat/completions"))
        elif part == "decode":
            body = answer_body(body, self.transfer)
        method = self._request.method
        return link.request(
            b"GET" if method == b"HEAD" else method, self._request.target, self._headers, body
        )

    @property
    def edited_body(self) -> bytes:
        """The body with what is repaired in it."""
        return edited(self._request.body, self._renaming) if self._renaming else self._request.body

    def drop(self) -> None:
        """Forget the body, because nobody wants an answer any more."""
        self._request.drop_body()
        self.sent_body = b""

    def _body_for(self, link: WorkerLink) -> bytes:
        """Return the body as a worker wants it: as it came, but for an alias and a field that it lacks."""
        if not self._priority_at or link.takes_priority:
            return self.edited_body
        edits = [*self._renaming, *((span, b"") for span in self._priority_at)]
        return edited(self._request.body, edits)
