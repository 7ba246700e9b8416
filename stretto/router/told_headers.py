"""What the router adds to a worker's answer, and its own answer where no worker's is passed on."""

from __future__ import annotations

import math
import time
from time import monotonic

from stretto.http.client.answer_parser import AnswerParser
from stretto.http.client.headers import Headers, value_of
from stretto.http.served import WholeAnswer
from stretto.router.head import REQUEST_ID
from stretto.router.programs import HEADER, RoutedProgram
from stretto.router.replies import error_body, error_headers
from stretto.sched.request_trace import RequestTrace
from stretto.wire.errors import REDIRECTIONS, ApiError, is_passing, read_retry_after

WORKER_HEADER = "x-stretto-worker"
"""Header of an answer with the number of the worker that gives it."""
_WORKER, _REASON = WORKER_HEADER.encode(), b"x-stretto-reason"
_HELD_MS, _HELD_FOR = b"x-stretto-held-ms", b"x-stretto-held-for"
_REPAIRED = b"x-stretto-repaired"
RETRY_AFTER = b"retry-after"
_KINDS = {
    500: "InternalServerError",
    404: "NotFoundError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
    502: "UpstreamError",
}
"""Kinds of the router's own errors, by status."""


def told_headers(trace: RequestTrace, program: RoutedProgram | None) -> Headers:
    """Return the headers that say where a request went and why, for how long it has waited in the router and
    for what, and its program.
    """
    if tries := trace.tries:
        last = tries[-1]
        waited_s, why = last.waited_s, last.why
        told = [(_WORKER, b"%d" % last.worker), (_REASON, trace.reason.encode("latin-1", "replace"))]
    else:
        told, waited_s, why = [], monotonic() - trace.arrived_s, ""
    told.append(held_header(waited_s))
    if why:
        told.append((_HELD_FOR, why.encode("latin-1", "replace")))
    if program is not None:
        told.append((HEADER, program.header))
    if trace.repaired:
        told.append((_REPAIRED, trace.repaired.encode("latin-1", "replace")))
    return told


def held_header(waited_s: float) -> tuple[bytes, bytes]:
    """Return the header that says how many seconds a request has waited."""
    return _HELD_MS, b"%d" % round(1000 * waited_s) if waited_s else b"0"


def answer_headers(answer: AnswerParser, trace: RequestTrace, program: RoutedProgram | None) -> Headers:
    """Return the headers of a worker's answer with those that the router adds."""
    added = told_headers(trace, program)
    if value_of(answer.headers, REQUEST_ID) is None:
        added.append((REQUEST_ID, trace.request_id.encode("latin-1")))
    return answer.headers + added


def told_retry_s(answer: AnswerParser) -> float | None:
    """Return the seconds that an answer with status 429 asks to wait, if it says."""
    if answer.status != 429 or (header := value_of(answer.headers, RETRY_AFTER)) is None:
        return None
    return read_retry_after(header.decode("latin-1"), time.time())


def last_answer(
    error: ApiError, failure: WholeAnswer | None, trace: RequestTrace, program: RoutedProgram | None
) -> WholeAnswer:
    """Return the answer to a request that no worker answers well: the last worker's failure, if there is one
    of this status or of a passing fault, or else an error of the router.

    A redirection is never passed on: it leads away from the router.
    """
    if error.status in REDIRECTIONS:
        error, failure = router_error(502, error.message, error.retry_after_s), None
    if failure is not None and (is_passing(failure[0]) or failure[0] == error.status):
        status, headers, body = failure
        if status == 429 and error.retry_after_s is not None:
            headers = [line for line in headers if line[0] != RETRY_AFTER]
            headers.append((RETRY_AFTER, b"%d" % math.ceil(error.retry_after_s)))
        return status, headers, body
    told = [*told_headers(trace, program), (REQUEST_ID, trace.request_id.encode("latin-1"))]
    return error.status, [*error_headers(error), *told], error_body(error)


def router_error(status: int, message: str, retry_after_s: float | None) -> ApiError:
    """Return an error of the router."""
    return ApiError(status, message, _KINDS.get(status, "UpstreamError"), None, retry_after_s)
