"""Asks the service, in this process, for the answers to lines of batches: as clients do, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stretto.http.client_request import ClientRequest
from stretto.http.request import JSON_TYPE
from stretto.model.errors import BadReply
from stretto.model.tasks import Objective
from stretto.service.app import ServiceApp
from stretto.service.batches.line_answers import LineAnswer, line_answer
from stretto.service.pool.in_process import InProcessAnswer
from stretto.service.tenants import Tenant

_LONG_BYTES = 64_000
"""Bytes of an answer from which on it is checked in a thread."""
_MAX_BYTES = 64_000_000


async def ask(
    app: ServiceApp,
    tenant: Tenant,
    path: str,
    body: bytes,
    objective: Objective,
    sent: Callable[[], None],
) -> LineAnswer:
    """Return the answer to a request of a tenant. If this coroutine is cancelled, so is the request.

    Args:
        sent: called when the request waits no more for a worker.

    Raises:
        EngineUnavailable: the answer was cut.
        BadReply: the answer is too long.
    """
    request = ClientRequest(
        b"POST",
        path.encode(),
        path,
        headers=[(b"content-type", JSON_TYPE)],
        content_type=JSON_TYPE.decode(),
        takes_chunks=False,
        on_sent=sent,
    )
    request.add(body)
    answer = InProcessAnswer(request)
    parts, num_bytes = [], 0
    try:
        answer.served = app.serve_own(answer, request, tenant, objective)
        await answer.wait_for_head()
        async for part in answer.parts():
            parts.append(part)
            num_bytes += len(part)
            if num_bytes > _MAX_BYTES:
                raise BadReply(f"the answer has more than {_MAX_BYTES} bytes")
    finally:
        answer.leave()
    content, request_id = b"".join(parts), answer.header("x-request-id")
    if num_bytes > _LONG_BYTES:
        return await asyncio.to_thread(line_answer, answer.status, request_id, content)
    return line_answer(answer.status, request_id, content)
