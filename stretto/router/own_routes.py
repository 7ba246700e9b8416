"""The paths that the router answers itself: its health, its metrics, the models, and the list of workers.

What waits is shown at `/router/waiting`. Workers are changed through `/admin/workers` (`worker_pages.py`), by
the admin only: whoever can do that reads all requests. Requests with a header `Origin` are refused, because a
web page that is open in the admin's browser sends them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from time import monotonic

from stretto.http.admin import AdminKey, admin_refusal
from stretto.http.client_request import ClientRequest, path_of
from stretto.http.event_stream import EventStream
from stretto.http.served import WholeAnswer
from stretto.operate.admin_pages import LIVE, LIVE_S, PAGE, AdminPages
from stretto.router.door import LateAnswer, OwnAnswer, RouterDoor, StreamedAnswer
from stretto.router.front import Front
from stretto.router.gauges import fleet_view, gauges, settings_json
from stretto.router.replies import JSON_HEADERS, json_body
from stretto.router.worker_changes import WorkerChanges
from stretto.router.worker_pages import WorkerPages, check_admin, is_of_workers, listing
from stretto.wire.errors import no_such_path
from stretto.wire.metrics import CONTENT_TYPE, render

WAITING = "/router/waiting"
METRICS = "/metrics"
_MODEL = "/v1/models/"
_MAX_SHOWN = 1000
"""Requests that wait of which an answer tells."""
_MAX_ROWS = 30
"""Rows of counts up to which `/metrics` is written at once."""


class OwnRoutes:
    """The answers to requests to the router's own paths."""

    def __init__(self, door: RouterDoor, changes: WorkerChanges) -> None:
        self._server, self._front = door.server, door.front
        front = door.front
        self._workers = WorkerPages(front, changes)
        self._admin = AdminKey(front.config.admin_key_env)
        self._pages = AdminPages(front.watch, lambda: fleet_view(front), lambda: settings_json(front))

    def __call__(self, request: ClientRequest, is_local: bool) -> OwnAnswer:
        """Answer a request; None if its path is not one of the router's own. An answer that lists very many
        models comes as a function, which a thread may call.

        Raises:
            RequestRefused, Refused: it cannot be served.
        """
        path = request.path
        if path == WAITING or is_of_workers(path):
            check_admin(self._admin, path, request.headers, is_local=is_local)
            if path == WAITING:
                return self._waiting(request.method)
            return self._workers.answer(request.method.decode("latin-1"), path, request.body)
        if request.method in (b"GET", b"HEAD"):
            match path:
                case "/health":
                    return self._health()
                case path if path == METRICS:
                    return self._metrics()
                case page if page == PAGE or page.startswith("/admin/"):
                    return self._admin_page(request, is_local)
                case "/v1/models":
                    lists = [*model_lists(self._front), alias_cards(self._front)]
                    return listing(self._front, partial(_models, lists))
            if path.startswith(_MODEL):
                name = path.removeprefix(_MODEL)
                lists = [*model_lists(self._front), alias_cards(self._front)]
                cards = (models[name] for models in lists if name in models)
                return None if (card := next(cards, None)) is None else _answer(card)
        return None

    def _waiting(self, method: bytes) -> WholeAnswer:
        """Answer who waits, since when, and for what. Raises RequestRefused."""
        if method not in (b"GET", b"HEAD"):
            raise no_such_path(WAITING)
        view, now_s = self._front.router_state.view, monotonic()
        pictures = [
            {
                "request": one.ticket,
                "model": one.model,
                "program": one.program,
                "waits_s": round(now_s - one.since_s, 3),
                "for": one.why,
            }
            for one in view.waiting(_MAX_SHOWN)
        ]
        return _answer({"waiting": view.num_waiting, "requests": pictures})

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
        server, event = self._server, self._pages.event
        return StreamedAnswer(
            lambda client: EventStream(
                client,
                lambda: event() if server.is_listening else None,
                LIVE_S,
                takes_chunks=request.takes_chunks,
            )
        )

    def _health(self) -> WholeAnswer:
        num_serving = sum(worker.state == "serving" for worker in self._front.router_state.view.workers())
        body = {"serving": num_serving, "waiting": self._front.router_state.view.num_waiting}
        return (200 if num_serving else 503), JSON_HEADERS, json_body(body)


def model_lists(front: Front) -> list[Mapping[str, object]]:
    """Return the models of each worker that takes requests. The mappings are never changed."""
    return [worker.models for worker in front.router_state.view.workers() if worker.takes_requests]


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


def _answer(value: object) -> WholeAnswer:
    return 200, JSON_HEADERS, json_body(value)
