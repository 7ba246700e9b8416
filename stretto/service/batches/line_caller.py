"""Asks the service, in this process, for the answers to lines of batches: as clients do, without a socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from stretto.http.client_request import ClientRequest
from stretto.http.refusals import Refused
from stretto.http.request import JSON_TYPE
from stretto.model.errors import BadReply, EngineUnavailable
from stretto.model.foreign import bug_of
from stretto.model.tasks import Objective
from stretto.runtime.journal.lines import JournalEntry
from stretto.service.app import ServiceApp
from stretto.service.batches.input_lines import InputLine
from stretto.service.batches.line_answers import LineAnswer, answer_entry, error_entry, line_answer, spent_of
from stretto.service.batches.records import SpentTokens
from stretto.service.pool.in_process import InProcessAnswer
from stretto.service.tenants import Tenant
from stretto.wire.batch_lines import LineRefused

_LONG_BYTES = 64_000
"""Bytes of an answer from which on it is checked in a thread."""
_MAX_BYTES = 64_000_000
BUSY = (429, 503)
"""Statuses of answers after which a line is tried again for as long as its batch may run."""
_PASSING = (500, 502, 504)
"""Statuses of answers after which a line is tried again a few times."""
_MAX_TRIES = 3
_PAUSE_S = 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndedLine:
    """What came of a line: its entry in the journal, whether that is no error, and its tokens."""

    entry: JournalEntry
    is_well: bool = False
    spent: SpentTokens = SpentTokens()


async def end_line(
    app: ServiceApp,
    tenant: Tenant,
    path: str,
    line: int,
    read: InputLine,
    objective: Objective,
    sent: Callable[[bool], None],
) -> EndedLine | None:
    """Ask for the answer to a line of a batch, as `answer_of` does, and return what came of it; None if
    engines are busy or away.
    """
    answer = await answer_of(app, tenant, path, read.body, objective, sent)
    if isinstance(answer, LineRefused):
        return EndedLine(error_entry(line, read.custom_id, answer.code, answer.message))
    if answer.status in BUSY:
        return None
    spent = spent_of(answer)
    return EndedLine(answer_entry(line, read.custom_id, answer, spent), answer.is_well, spent)


async def answer_of(
    app: ServiceApp,
    tenant: Tenant,
    path: str,
    body: bytes,
    objective: Objective,
    sent: Callable[[bool], None] = lambda is_sent: None,
) -> LineAnswer | LineRefused:
    """Return the answer to a line, which is asked for more than once if need be, or why there is none.

    Args:
        sent: called with True when the request waits no more for a worker, and with False when it does again.
    """
    for num_left in reversed(range(_MAX_TRIES)):
        try:
            answer = await ask_service(app, tenant, path, body, objective, sent)
        except BadReply as error:
            return LineRefused("answer_too_large", error.message)
        except Refused as error:  # nothing answers such requests any more
            return LineRefused(error.code, error.message)
        except EngineUnavailable:
            pass
        except Exception as error:
            _log.error("a line of a batch: %s", error, exc_info=error)
            return LineRefused("internal_error", bug_of(error).message)
        else:
            if answer.status not in _PASSING or not num_left:
                return answer
        if num_left:
            await asyncio.sleep(_PAUSE_S)
    return LineRefused("answer_lost", "the engine has broken the answer off")


async def ask_service(
    app: ServiceApp,
    tenant: Tenant,
    path: str,
    body: bytes,
    objective: Objective,
    sent: Callable[[bool], None] = lambda is_sent: None,
    method: bytes = b"POST",
) -> LineAnswer:
    """Return the answer to a request of a tenant. If this coroutine is cancelled, so is the request.

    Args:
        sent: called with True when the request waits no more for a worker, and with False when it does again.

    Raises:
        EngineUnavailable: the answer was cut.
        BadReply: the answer is too long.
    """
    request = ClientRequest(
        method,
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
