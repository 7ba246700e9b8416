"""The door of plain traffic: requests that no engine or app of the service answers go to the workers as they
came. One that names the engine which the workers are is given the name of their model, and nothing else.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from stretto.http.client_request import ClientRequest
from stretto.http.refusals import draining
from stretto.http.routes import Route
from stretto.http.served import Answerable, Served
from stretto.model.record import record
from stretto.router.body_edits import Span, edited, values_of
from stretto.router.keys import KEY_HEADERS
from stretto.router.messages import Sender
from stretto.router.prompts import check_num_items
from stretto.router.routes import is_method, is_passed_on, read_target
from stretto.service.config import DEFAULT_CHAT_TOKENS
from stretto.service.pool.pool import WorkerPool
from stretto.service.request import ServiceRequest
from stretto.wire.errors import RequestRefused
from stretto.wire.requests import DEFAULT_COMPLETION_TOKENS

_BYTES_PER_TOKEN = 4
_USUAL_TOKENS = {
    "/v1/chat/completions": DEFAULT_CHAT_TOKENS,
    "/v1/responses": DEFAULT_CHAT_TOKENS,
    "/v1/completions": DEFAULT_COMPLETION_TOKENS,
}
"""Tokens of an answer to a request that names no limit, by its path; of others none."""
_MOST_COUNT = 10**12
"""Largest number of tokens or answers that a request is taken to ask for."""
_UNREAD = object()
_NO_PROMPT = msgspec.Raw()
_END = re.compile(rb"\s*\}")
_SEVERAL = re.compile(rb'\s*\[\s*["\[]')
"""Beginning of a list of prompts, not of token ids."""
_NAMES = ("model", "n", "max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
"""Fields of which the door reads the values."""


class _Fields(msgspec.Struct):
    """The fields of a request that its door reads; the body is checked by whoever answers it.

    Numbers count in all forms in which servers take them: 80, 80.0 and "80" are the same limit.
    """

    model: Any = ""
    n: Any = 1
    prompt: msgspec.Raw = _NO_PROMPT
    max_tokens: Any = 0
    max_completion_tokens: Any = 0
    max_output_tokens: Any = 0
    max_new_tokens: Any = 0
    sampling_params: Any = None

    @property
    def limit(self) -> int:
        """Largest number of tokens of an answer; 0 if the request names none."""
        parameters = (
            self.sampling_params if isinstance(self.sampling_params, list) else [self.sampling_params]
        )
        within = [one.get("max_new_tokens") for one in parameters if isinstance(one, dict)]
        own = self.max_tokens, self.max_completion_tokens, self.max_output_tokens, self.max_new_tokens
        return max(map(_count, (*own, *within)))

    @property
    def num_answers(self) -> int:
        """Number of answers, to all prompts together."""
        num_prompts = 1
        if _SEVERAL.match(self.prompt):
            num_prompts = max(1, len(_LIST.decode(self.prompt)))
        return num_prompts * max(1, _count(self.n))


@record
class AskedOfModel:
    """What the door reads of a request.

    Attributes:
        model: name of its model; "" if it names none, None if it is no JSON object or its model no name.
        limit: largest number of tokens of an answer; 0 if the request names none.
        num_answers: number of answers, to all prompts together.
        names_at: places in the body where the name of the workers' model is to be put; None if nowhere.
    """

    model: str | None
    limit: int
    num_answers: int
    names_at: tuple[Span, ...] | None


_NEED_MODEL = ("/v1/chat/completions", "/v1/completions")
"""Paths of requests that mean the engine if they name no model."""
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_DECODER = msgspec.json.Decoder(_Fields)


class PoolDoor:
    """The door to a pool for requests that are passed on.

    Args:
        is_draining: whether the service takes no new work.

    Attributes:
        pool: the workers.
    """

    def __init__(self, pool: WorkerPool, is_draining: Callable[[], bool]) -> None:
        self.pool = pool
        self._is_draining = is_draining

    def route(self, request: ClientRequest) -> Route[ServiceRequest] | None:
        """Return the route of a request whose path is none of the service's; None if workers do not take it,
        either.
        """
        try:
            path = read_target(request.target).path
        except RequestRefused:
            return None
        if not is_passed_on(path) or not is_method(request.method):
            return None
        request.path = path  # as workers understand it
        return Route(request.method.decode("latin-1"), path, self.pass_on)

    async def pass_on(self, request: ServiceRequest, asked: AskedOfModel | None = None) -> None:
        """Let the workers answer a request.

        Args:
            asked: what was read of it already.

        Raises:
            Refused: the service is being ended, the tenant has as much running as it may or has spent its
                tokens, or an answer may be longer than the tenant's may.
            ClientLeft: the client has left.
        """
        if self._is_draining():
            raise draining()
        tenant, num_tokens = request.tenant, 0.0
        if request.method == "POST":
            asked = asked or await self.read_asked(request)
            tenant.check_output_tokens(asked.limit)
            num_output = (asked.limit or _USUAL_TOKENS.get(request.path, 0)) * asked.num_answers
            num_tokens = request.num_body / _BYTES_PER_TOKEN + num_output
        named = await self._named(request, asked)

        def serve(connection: Answerable, received: ClientRequest) -> Served | None:
            received.on_end = request.claim(num_tokens)
            if named is not None:
                received.replace_body(named)
            received.found = Sender(tenant.name, objective=request.admitted.objective)
            received.headers = [line for line in received.headers if line[0] not in KEY_HEADERS]
            return self.pool.router_door.serve(connection, received)

        request.hand_over(serve)

    async def read_asked(self, request: ServiceRequest) -> AskedOfModel:
        """Read the model and the limits of a request; nothing of a body that is no JSON object, whose model
        is none of the service's.
        """
        means_engine = request.path in _NEED_MODEL
        return await request.read(partial(_read_asked, self.pool.engine, means_engine))

    async def _named(self, request: ServiceRequest, asked: AskedOfModel | None) -> bytes | None:
        """Return the body of a request with the name of the workers' model in place of the engine's; None if
        it need not be changed.
        """
        if asked is None or asked.names_at is None or not (model := self.pool.model):
            return None
        return with_model(await request.body(), asked.names_at, model)


def _read_asked(engine: str, means_engine: bool, content: bytes) -> AskedOfModel:
    """Read a body.

    Args:
        engine: name that stands for the workers' model.
        means_engine: whether a body that names no model means it too.
    """
    fields = _fields_of(content)
    model = fields.model if isinstance(fields.model, str) else None if fields.model else ""
    names_at = None
    if model == engine or (means_engine and model == ""):
        names_at = places_of_model(content)
    return AskedOfModel(model, fields.limit, fields.num_answers, names_at)


def _fields_of(content: bytes) -> _Fields:
    """Read a body, also one that is JSON for the router and for workers alone, such as one with NaN."""
    with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _DECODER.decode(content)
    try:
        check_num_items(content)
        fields = json.loads(content)
    except (ValueError, RecursionError, RequestRefused):
        return _Fields(_UNREAD)
    if not isinstance(fields, dict):
        return _Fields(_UNREAD)
    found = _Fields(**{name: fields[name] for name in _NAMES if name in fields})
    found.sampling_params = fields.get("sampling_params")
    if isinstance(prompts := fields.get("prompt"), list) and prompts and not isinstance(prompts[0], int):
        found.prompt = msgspec.Raw(msgspec.json.encode([""] * len(prompts)))
    return found


def places_of_model(content: bytes) -> tuple[Span, ...] | None:
    """Return the places of the name of the model in a body, or where the first one may be written before
    other members (an empty range); None if the body is in no UTF-8.
    """
    try:
        places = values_of(content, "model")
    except RequestRefused:
        return None
    begin = content.index(b"{") + 1
    return places or ((begin, begin),)


def with_model(content: bytes, places: Sequence[Span], model: str) -> bytes:
    """Return a body with another name of a model at some places, and no other byte changed."""
    name = msgspec.json.encode(model)
    (begin, end), *_ = places
    if begin < end:
        return edited(content, [(place, name) for place in places])
    is_only = _END.match(content, begin) is not None
    return edited(content, [((begin, begin), b'"model":%b%b' % (name, b"" if is_only else b","))])


def _count(value: Any) -> int:
    """Return a number of tokens or answers; 0 for what is none."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return 0
    if isinstance(value, float):
        value = math.ceil(value) if math.isfinite(value) else 0
    return min(value, _MOST_COUNT) if type(value) is int and value > 0 else 0
