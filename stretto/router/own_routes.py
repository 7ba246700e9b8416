"""The paths that the router answers itself: its health, its metrics, the models, and the list of workers.

What waits is shown at `/router/waiting`. Workers are added, drained and removed through `/router/workers`, by
the admin only: whoever can do that reads all requests. Requests with a header `Origin` are refused, because a
web page that is open in the admin's browser sends them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

from stretto.http.admin import HOW_TO_ASK, AdminKey, admin_refusal
from stretto.http.client.headers import value_of
from stretto.http.client_request import ClientRequest, path_of
from stretto.http.event_stream import EventStream
from stretto.http.served import WholeAnswer
from stretto.model.errors import ConfigError
from stretto.operate.admin_pages import LIVE, LIVE_S, PAGE, AdminPages
from stretto.router.config import WorkerConfig
from stretto.router.front import Front, LateAnswer, OwnAnswer, StreamedAnswer
from stretto.router.gauges import fleet_view, gauges, settings_json
from stretto.router.health import HealthChecks
from stretto.router.replies import JSON_HEADERS, json_body
from stretto.wire.errors import ApiError, RequestRefused, malformed, no_such_path
from stretto.wire.metrics import CONTENT_TYPE, render

WORKERS = "/router/workers"
WAITING = "/router/waiting"
METRICS = "/metrics"
_MODEL = "/v1/models/"
_MAX_SHOWN = 1000
"""Requests that wait of which an answer tells."""
_MAX_ROWS = 30
"""Rows of counts up to which `/metrics` is written at once."""
_MAX_MODELS = 1000
"""Models of all workers together up to which an answer that lists them is written at once."""


class OwnRoutes:
    """The answers to requests to the router's own paths."""

    def __init__(self, front: Front, checks: HealthChecks) -> None:
        self._front = front
        self._checks = checks
        self._admin = AdminKey(front.config.admin_key_env)
        self._pages = AdminPages(front.watch, lambda: fleet_view(front), lambda: settings_json(front))

    def __call__(self, request: ClientRequest, is_local: bool) -> OwnAnswer:
        """Answer a request; None if its path is not one of the router's own. An answer that lists very many
        models comes as a function, which a thread may call.

        Raises:
            RequestRefused: it cannot be served.
        """
        path = request.path
        if request.method in (b"GET", b"HEAD"):
            match path:
                case "/health":
                    return self._health()
                case path if path == METRICS:
                    return self._metrics()
                case page if page == PAGE or page.startswith("/admin/"):
                    return self._admin_page(request, is_local)
                case "/v1/models":
                    return self._listing(
                        partial(_models, [*model_lists(self._front), alias_cards(self._front)])
                    )
            if path.startswith(_MODEL):
                name = path.removeprefix(_MODEL)
                lists = [*model_lists(self._front), alias_cards(self._front)]
                cards = (models[name] for models in lists if name in models)
                return None if (card := next(cards, None)) is None else _answer(card)
        if path in (WAITING, WORKERS) or path.startswith(WORKERS + "/"):
            if value_of(request.headers, b"origin") is not None:
                raise _refusal(403, f"{path} is not for web pages: the request has a header Origin")
            if not self._admin.admits(request.headers, is_local=is_local):
                raise _refusal(403, f"{path} is for the admin: {HOW_TO_ASK}")
            if path == WAITING:
                return self._waiting(request.method)
            return self._workers(request, path.removeprefix(WORKERS).strip("/"))
        return None

    def _waiting(self, method: bytes) -> WholeAnswer:
        """Answer who waits, since when, and for what. Raises RequestRefused."""
        if method not in (b"GET", b"HEAD"):
            raise no_such_path(WAITING)
        router_state, now_s = self._front.router_state, monotonic()
        pictures = [
            {
                "request": one.ticket,
                "model": one.model,
                "program": one.program,
                "waits_s": round(now_s - one.since_s, 3),
                "for": one.why,
            }
            for one in router_state.waiting(_MAX_SHOWN)
        ]
        return _answer({"waiting": router_state.num_waiting, "requests": pictures})

    def _metrics(self) -> WholeAnswer | LateAnswer:
        """Return the counts; many are written in a thread."""
        metrics = self._front.watch.metrics
        now = [*gauges(self._front), *self._pages.published()]

        def written() -> WholeAnswer:
            text = render([*metrics.published(), *now])
            return 200, [(b"content-type", CONTENT_TYPE.encode())], text.encode()

        return written() if metrics.num_rows <= _MAX_ROWS else written

    def _admin_page(self, request: ClientRequest, is_local: bool) -> OwnAnswer:
        """Answer the admin; None if there is no such page."""
        if not self._admin.admits(request.headers, is_local=is_local):
            return admin_refusal()
        if request.path != LIVE or request.method == b"HEAD":
            return self._pages.answer(request.path, path_of(request.target)[1])
        server, event = self._front.server, self._pages.event
        return StreamedAnswer(
            lambda client: EventStream(
                client,
                lambda: event() if server.is_listening else None,
                LIVE_S,
                takes_chunks=request.takes_chunks,
            )
        )

    def _health(self) -> WholeAnswer:
        num_serving = sum(worker.state == "serving" for worker in self._front.router_state.workers())
        body = {"serving": num_serving, "waiting": self._front.router_state.num_waiting}
        return (200 if num_serving else 503), JSON_HEADERS, json_body(body)

    def _listing(self, value: Callable[[], object]) -> WholeAnswer | LateAnswer:
        """Answer with a value that lists models, in a thread if they are many."""
        num_models = sum(len(worker.models) for worker in self._front.router_state.workers())
        answer = partial(_written, value)
        return answer() if num_models <= _MAX_MODELS else answer

    def _workers(self, request: ClientRequest, rest: str) -> WholeAnswer | LateAnswer:
        number, _, verb = rest.partition("/")
        router_state, now_s = self._front.router_state, monotonic()
        try:
            match request.method, number, verb:
                case b"GET" | b"HEAD", "", "":
                    return self._listing(partial(_workers_json, self._pictures(now_s)))
                case b"POST", "", "":
                    return self._add(request.body)
                case b"POST", _, "drain":
                    self._front.act(router_state.drain(_number(number), now_s))
                case b"DELETE", _, "":
                    self._front.remove(_number(number), now_s)
                case _:
                    raise no_such_path(request.path)
        except ConfigError as error:
            raise _refusal(400, error.message) from error
        return _answer({"worker": _number(number), "left": [w.id for w in router_state.workers()]})

    def _add(self, body: bytes) -> WholeAnswer:
        """Add a worker: it serves when it has passed a health check."""
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise malformed("", f"not JSON: {error!s:.200}") from error
        known = {"url", "num_slots", "kv_tokens", "models", "api_key", "headers", "takes_priority"}
        if not isinstance(fields, dict) or "url" not in fields or not fields.keys() <= known:
            raise malformed("", f"must be an object with url, and may have {', '.join(sorted(known))}")
        names = fields.get("models", [])
        if not isinstance(names, list):
            raise malformed("models", "must be a list of names")
        config = WorkerConfig(**{**fields, "models": tuple(names)})
        return 202, JSON_HEADERS, json_body({"worker": self._checks.add(config)})

    def _pictures(self, now_s: float) -> list[dict[str, object]]:
        """Return what is shown of each worker, with its models as they are kept."""
        num_running, claimed = self._front.router_state.num_running, self._front.router_state.claimed
        return [
            {
                "id": worker.id,
                "url": worker.config.url,
                "state": worker.state,
                "on_trial": worker.on_trial,
                "wants_key": worker.wants_key,
                "running": num_running(worker.id),
                "num_slots": worker.num_slots,
                "models": worker.models,
                "kv_tokens": worker.kv_tokens,
                **dict(zip(("claimed_tokens", "believed_tokens"), claimed(worker.id, now_s), strict=True)),
                **({"reason": worker.reason} if worker.state in ("suspect", "starting") else {}),
            }
            for worker in self._front.router_state.workers()
        ]


def model_lists(front: Front) -> list[Mapping[str, object]]:
    """Return the models of each worker that takes requests. The mappings are never changed."""
    return [worker.models for worker in front.router_state.workers() if worker.takes_requests]


def alias_cards(front: Front) -> Mapping[str, object]:
    """Return the entries of aliases that stand for a model which a worker lists: the entry of the first such
    model, under the alias's name.
    """
    aliases, lists = front.aliases, model_lists(front)
    found: dict[str, object] = {}
    for name in aliases.names():
        for model in aliases.models_of(name):
            card = next((models[model] for models in lists if model in models), None)
            if isinstance(card, Mapping):
                found[name] = {**card, "id": name, "root": model}
                break
    return found


def _models(lists: Sequence[Mapping[str, object]]) -> object:
    """Return the list of all models; of a name that several workers list, the first one's entry."""
    models: dict[str, object] = {}
    for listed in lists:
        models = {**listed, **models}
    return {"object": "list", "data": list(models.values())}


def _workers_json(pictures: Sequence[dict[str, Any]]) -> object:
    return [{**picture, "models": list(picture["models"])} for picture in pictures]


def _written(value: Callable[[], object]) -> WholeAnswer:
    return _answer(value())


def _answer(value: object) -> WholeAnswer:
    return 200, JSON_HEADERS, json_body(value)


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise ConfigError(f"{text!r:.100} is no number of a worker")
    return int(text)


def _refusal(status: int, message: str) -> RequestRefused:
    return RequestRefused(ApiError(status, message, "BadRequestError"))
