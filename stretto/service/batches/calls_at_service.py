"""The calls of an application, or the lines of a Batch file, answered by a service in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from stretto.engines.decoding import refuse_others, without_wishes
from stretto.engines.openai_server.api import UNDERSTOOD, options_of
from stretto.graph.one_call import PromptMessage
from stretto.llm.output.output import DecodeOutput
from stretto.model.errors import BadReply, EngineFailure, EngineUnavailable, Overloaded, StrettoError
from stretto.model.foreign import bug_of
from stretto.model.tasks import Decode, Objective
from stretto.planner.running.book import Book
from stretto.planner.running.call_ends import answer_text
from stretto.planner.running.planned_calls import CallAnswer, LineFailed, PlannedCall, WholeAnswer
from stretto.planner.running.run_request import SentLine
from stretto.planner.running.sent_lines import CHAT
from stretto.router.workers import Worker
from stretto.runtime.runtime import Runtime
from stretto.service.app import ServiceApp
from stretto.service.batches.line_answers import LineAnswer, spent_of
from stretto.service.batches.line_caller import BUSY, answer_of, ask_service
from stretto.service.pool.pool import WorkerPool
from stretto.service.tenants import Tenant
from stretto.wire.batch_lines import LineRefused

_AT_ONCE = 512
"""Calls that are made at a time for each server, of which one runs up to 256; the others wait for it here."""
_BUSY_S = 0.5


class ServersOfRun:
    """The servers of a pool, and the other engines of a runtime, which answer a run's calls.

    Attributes:
        num_asked_again: calls that were sent to a server more than once.
    """

    def __init__(self, runtime: Runtime, pool: WorkerPool | None) -> None:
        self.num_asked_again = 0
        self._runtime = runtime
        self._pool = pool
        self._engines = [name for name in runtime.deployments if pool is None or name != pool.engine]

    @property
    def workers(self) -> list[Worker]:
        """The servers of the pool."""
        return [] if self._pool is None else self._pool.front.router_state.view.workers()

    def number(self, model: str | None = None) -> int:
        """Return how many servers and instances there are, or have a model."""
        workers = len(self.workers if model is None else self._workers_of(model))
        engines = (name for name in self._engines if model in (None, name))
        return workers + sum(len(self._runtime.deployments[name].replicas) for name in engines)

    def absence(self, model: str) -> str:
        """Return why none of those that have a model serves now; "" if one does, or none has ever had it."""
        workers = self._workers_of(model)
        reasons = _away(workers)
        if len(reasons) < len(workers):
            return ""
        if model in self._engines:
            fleet = self._runtime.system.schedulers[model].instances.fleet
            if any(fleet.state[one] == "serving" for one in fleet.live):
                return ""
            reasons[f"engine {model}"] = str(fleet.last_error or "no instance serves")
        return _told(reasons)

    def losses(self) -> str:
        """Say which servers of the pool are away now, and how many calls were asked again; "" if none."""
        parts = []
        if any(worker.state != "serving" for worker in self.workers):
            for model in dict.fromkeys(name for worker in self.workers for name in worker.models):
                workers = self._workers_of(model)
                if reasons := _away(workers):
                    which = f"{len(reasons)} of {len(workers)} servers of {model!r}"
                    parts.append(f"{which} went away ({_told(reasons)})")
        if self.num_asked_again:
            parts.append(f"{self.num_asked_again} requests were asked again")
        return "; ".join(parts)

    def _workers_of(self, model: str) -> list[Worker]:
        return [worker for worker in self.workers if model in worker.models]


def _away(workers: Iterable[Worker]) -> dict[str, str]:
    """Return the URLs of those that do not serve now, each with the reason."""
    return {worker.config.url: worker.reason for worker in workers if worker.state != "serving"}


def _told(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


class CallsAtService:
    """Makes calls by asking a service (`Caller`). Its engines and workers run already."""

    def __init__(self, app: ServiceApp, tenant: Tenant, servers: ServersOfRun, book: Book) -> None:
        self.num_at_once = _AT_ONCE * max(1, servers.number())
        self._app = app
        self._tenant = tenant
        self._servers = servers
        self._book = book

    def num_at_once_of(self, model: str) -> int:
        """Return how many calls may be of one model."""
        return _AT_ONCE * max(1, self._servers.number(model))

    def absence(self, model: str) -> str:
        """Return why no server of a model is up; "" if one is."""
        return self._servers.absence(model)

    def begin(
        self, call: PlannedCall, ended: Callable[[CallAnswer | StrettoError], None]
    ) -> Callable[[], None]:
        """Begin a call."""
        asked = self._book.asked(call)
        sent, output = asked.line, None
        if sent is None:
            decode = without_wishes(Decode(**asked.decode))
            sent, output = _chat_of(self._book.model_of(call), asked.prompt, decode), DecodeOutput(decode)
        num_sent = 0

        def on_sent(is_sent: bool) -> None:
            nonlocal num_sent
            num_sent += is_sent
            self._servers.num_asked_again += is_sent and num_sent == 2

        return begin_asking(self._app, self._tenant, sent, ended, "throughput", output, on_sent)


def begin_asking(
    app: ServiceApp,
    tenant: Tenant,
    line: SentLine,
    ended: Callable[[CallAnswer | StrettoError], None],
    objective: Objective,
    output: DecodeOutput | None = None,
    on_sent: Callable[[bool], None] = lambda is_sent: None,
) -> Callable[[], None]:
    """Begin to ask a service for the answer to a line, and return what cancels that.

    Args:
        ended: called with what came of it, once, in a later turn of the event loop.
        output: reads the text of the answer; None for a line that is handed on, whose result is the answer as
            it is.
        on_sent: called when the request waits no more for a worker, or does again, as by `answer_of`.
    """
    body = json.dumps(line.body).encode()

    async def make() -> CallAnswer | StrettoError:
        try:
            return _result(await answer_of(app, tenant, line.path, body, objective, on_sent), output)
        except Exception as error:
            return bug_of(error)

    def has_ended(task: asyncio.Task[CallAnswer | StrettoError]) -> None:
        ended(EngineUnavailable("the call was cancelled") if task.cancelled() else task.result())

    task = asyncio.create_task(make())
    task.add_done_callback(has_ended)  # also if it is cancelled before it begins

    def cancel() -> None:
        task.cancel()

    return cancel


async def served_models(app: ServiceApp, tenant: Tenant) -> list[str]:
    """Return the names of the models that a service answers for."""
    answer = await ask_service(app, tenant, "/v1/models", b"", "throughput", method=b"GET")
    return [model["id"] for model in json.loads(answer.body)["data"]]


def _chat_of(model: str, prompt: Sequence[PromptMessage], decode: Decode) -> SentLine:
    """Return the chat of a call. Raises ConfigError if servers cannot be asked for such a decode."""
    refuse_others(decode, UNDERSTOOD, "a server")
    messages: list[dict[str, str]] = []
    for part in prompt:
        if part.role is None and messages:
            messages[-1]["content"] += part.text
        else:
            messages.append({"role": part.role or "user", "content": part.text})
    return SentLine(CHAT, {"model": model, "messages": messages, **options_of(decode).to_json()})


def _result(answer: LineAnswer | LineRefused, output: DecodeOutput | None) -> CallAnswer | StrettoError:
    """Return what came of a call. `output` is that of `begin_asking`."""
    if isinstance(answer, LineRefused):
        return EngineUnavailable(answer.message)
    whole = WholeAnswer(answer.status, answer.request_id, answer.body.decode())
    if not answer.is_well:
        message = f"status {answer.status}: {_message_of(answer.body)}"
        if answer.status in BUSY:
            return Overloaded(message, retry_after_s=_BUSY_S)
        return LineFailed(message, whole) if output is None else EngineFailure(message)
    spent = spent_of(answer)
    if output is None:
        return CallAnswer("", spent.num_prompt, spent.num_output, whole)
    text = _text_of(answer.body)
    if text is None:
        return BadReply(f"the answer has no text: {answer.body[:200].decode('utf-8', 'replace')}")
    try:
        return CallAnswer(_read(text, output), spent.num_prompt, spent.num_output)
    except BadReply as error:
        return error


def _read(text: str, output: DecodeOutput) -> str:
    """Return the value that a text is read as; a list as JSON. Raises BadReply if it is none."""
    output.feed(text)
    _, value = output.finish()
    return answer_text(value)


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Chat(msgspec.Struct):
    choices: list[_Choice]


_CHAT = msgspec.json.Decoder(_Chat)


def _text_of(body: bytes) -> str | None:
    """Return the text of the answer to a chat; None if it has none."""
    try:
        return _CHAT.decode(body).choices[0].message.content
    except (msgspec.DecodeError, IndexError):
        return None


def _message_of(body: bytes) -> str:
    """Return what the body of an error says."""
    found: Any = json.loads(body)
    error = found.get("error", found) if isinstance(found, dict) else found
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)
