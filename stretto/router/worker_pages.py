"""The list of workers, and its changes, as an admin asks for them: `/admin/workers`.

| request | |
|---|---|
| GET | the list |
| POST, with the settings of a worker | adds one |
| PATCH /NUMBER, with `num_slots` | lets another number of requests run there |
| POST /NUMBER/drain | no new requests; gone after its last answer |
| DELETE /NUMBER | removes it at once |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

from stretto.http.admin import ADMIN_ONLY, HOW_TO_ASK, AdminKey
from stretto.http.client.headers import Headers, value_of
from stretto.http.refusals import MALFORMED, NotAllowed, Refused, unknown_path
from stretto.http.served import WholeAnswer
from stretto.model.errors import ConfigError
from stretto.router.door import LateAnswer
from stretto.router.front import Front
from stretto.router.replies import JSON_HEADERS, json_body
from stretto.router.worker_changes import WorkerChanges
from stretto.router.worker_config import WorkerConfig
from stretto.schema.fields import build

WORKERS, OLD_WORKERS = "/admin/workers", "/router/workers"
"""Paths of the list of workers; the second one is that of earlier versions, and the same."""
ADMIN = "the admin"
WORKER_ROUTES = (
    ("GET", ""),
    ("POST", ""),
    ("PATCH", "/{worker}"),
    ("DELETE", "/{worker}"),
    ("POST", "/{worker}/drain"),
)
"""Methods, and what stands behind the path of the list."""
_MAX_MODELS = 1000
"""Models of all workers together up to which an answer that lists them is written at once."""


def is_of_workers(path: str) -> bool:
    """Return whether a path is that of the workers, or of one of them."""
    if not path.startswith((WORKERS, OLD_WORKERS)):
        return False
    return path in (WORKERS, OLD_WORKERS) or path.startswith((f"{WORKERS}/", f"{OLD_WORKERS}/"))


def check_admin(key: AdminKey, path: str, headers: Headers, *, is_local: bool) -> None:
    """Check that a request that may change workers is the admin's, and not that of a web page that is open
    in the admin's browser.

    Raises:
        Refused: it is not.
    """
    if value_of(headers, b"origin") is not None:
        raise Refused(403, ADMIN_ONLY, f"{path} is not for web pages: the request has a header Origin")
    if not key.admits(headers, is_local=is_local):
        raise Refused(403, ADMIN_ONLY, f"{path} is for the admin: {HOW_TO_ASK}")


class WorkerPages:
    """The answers to requests about workers, which are the admin's."""

    def __init__(self, front: Front, changes: WorkerChanges) -> None:
        self._front = front
        self._changes = changes

    def answer(self, method: str, path: str, body: bytes) -> WholeAnswer | LateAnswer:
        """Answer a request whose path `is_of_workers`. An answer that lists very many models comes as a
        function, which a thread may call.

        Raises:
            Refused: there is no such path or worker, or the body is wrong.
        """
        rest = path.removeprefix(OLD_WORKERS).removeprefix(WORKERS).strip("/")
        number, _, verb = rest.partition("/")
        try:
            match method, number, verb:
                case "GET" | "HEAD", "", "":
                    return listing(self._front, partial(_workers_json, self._pictures()))
                case "POST", "", "":
                    return 202, JSON_HEADERS, json_body({"worker": self._add(body)})
                case "PATCH", _, "" if number:
                    self._changes.resize(_number(number), _num_slots(body))
                case "POST", _, "drain":
                    self._changes.drain(_number(number))
                case "DELETE", _, "" if number:
                    self._changes.remove(_number(number))
                case _:
                    raise _no_route(method, path, number, verb)
        except ConfigError as error:
            raise Refused(400, "invalid", error.message) from error
        left = [worker.id for worker in self._front.router_state.view.workers()]
        return 200, JSON_HEADERS, json_body({"worker": _number(number), "left": left})

    def _add(self, body: bytes) -> int:
        fields = _object(body)
        given = {key: value for key, value in fields.items() if value is not None}
        config = build(WorkerConfig, given, given={"dns": None, "kubernetes": None})
        return self._changes.add(config, ADMIN)

    def _pictures(self) -> list[dict[str, object]]:
        """Return what is shown of each worker, with its models as they are kept."""
        view, now_s = self._front.router_state.view, monotonic()
        return [
            {
                "id": worker.id,
                "url": worker.config.url,
                "role": worker.config.role,
                "source": self._changes.source_of(worker.id),
                "state": worker.state,
                "on_trial": worker.on_trial,
                "wants_key": worker.wants_key,
                "running": view.num_running(worker.id),
                "num_slots": worker.num_slots,
                "models": worker.models,
                "kv_tokens": worker.kv_tokens,
                **dict(
                    zip(("claimed_tokens", "believed_tokens"), view.claimed(worker.id, now_s), strict=True)
                ),
                **({"reason": worker.reason} if worker.state in ("suspect", "starting") else {}),
            }
            for worker in view.workers()
        ]


def listing(front: Front, value: Callable[[], object]) -> WholeAnswer | LateAnswer:
    """Return an answer with a value that lists models, or a function that writes it if they are many."""
    num_models = sum(len(worker.models) for worker in front.router_state.view.workers())

    def written() -> WholeAnswer:
        return 200, JSON_HEADERS, json_body(value())

    return written() if num_models <= _MAX_MODELS else written


def _workers_json(pictures: Sequence[dict[str, Any]]) -> object:
    return [{**picture, "models": list(picture["models"])} for picture in pictures]


def _object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, MALFORMED, f"the body is no JSON: {error!s:.200}") from error
    if not isinstance(fields, dict):
        raise Refused(400, MALFORMED, "the body must be an object")
    return fields


def _num_slots(body: bytes) -> int:
    fields = _object(body)
    if fields.keys() != {"num_slots"}:
        raise ConfigError("of a worker that is there, num_slots alone can be changed: send an object with it")
    num: int = fields["num_slots"]  # checked with the other settings of a worker
    return num


def _no_route(method: str, path: str, number: str, verb: str) -> Refused:
    """Return the refusal of a request that has no route."""
    place = "/{worker}" * bool(number) + f"/{verb}" * bool(verb)
    methods = tuple(known for known, rest in WORKER_ROUTES if rest == place)
    return NotAllowed(path, method, methods) if methods else unknown_path(path)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise ConfigError(f"{text!r:.100} is no number of a worker")
    return int(text)
