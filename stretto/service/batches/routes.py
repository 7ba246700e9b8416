"""The routes of OpenAI's files and batches.

POST   /v1/files                    keeps a file
GET    /v1/files                    the files of the tenant
GET    /v1/files/{file}             one of them
GET    /v1/files/{file}/content     its content
DELETE /v1/files/{file}             removes it
POST   /v1/batches                  begins a batch
GET    /v1/batches                  the batches of the tenant
GET    /v1/batches/{batch}          one of them
POST   /v1/batches/{batch}/cancel   ends it
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from time import time
from typing import TypeVar
from urllib.parse import parse_qs

from stretto.http.client.headers import value_of
from stretto.http.client_request import ClientRequest
from stretto.http.refusals import OVER_LIMIT, Refused, draining, over_limit
from stretto.http.routes import Route
from stretto.model.errors import NotSaved
from stretto.service.app import ServiceApp
from stretto.service.batches.records import ENDED, BatchRecord, StoredFile
from stretto.service.batches.runner import BatchRunner
from stretto.service.batches.store import BatchStore, new_id
from stretto.service.batches.upload import Upload
from stretto.service.batches.wanted_batch import ENDPOINTS, read_batch, read_upload
from stretto.service.openai.errors import invalid
from stretto.service.request import Admitted, ServiceRequest
from stretto.service.tenants import Tenant

MAX_FILE_BYTES = 200_000_000
"""Largest input file, as OpenAI has it."""
_FORM_BYTES = 100_000
"""Bytes of a form beside its file."""
_UPLOAD_S = 3600.0
_PIECE_BYTES = 262_144
_MOST_LISTED = {"files": 10_000, "batches": 100}
_MAX_UNENDED = 1000
"""Batches of a tenant that have not ended."""
_RETRY_S = 60.0
_MAX_DIGITS = 10
T = TypeVar("T", StoredFile, BatchRecord)


class BatchRoutes:
    """The handlers of files and batches.

    Args:
        kept_s: seconds after which files expire that say nothing else.
        is_draining: whether the service takes no new work.
    """

    def __init__(
        self,
        app: ServiceApp,
        store: BatchStore,
        runner: BatchRunner,
        kept_s: float,
        is_draining: Callable[[], bool],
    ) -> None:
        self._kept_s = kept_s
        self._app = app
        self._store = store
        self._runner = runner
        self._is_draining = is_draining
        self.routes = (
            Route(
                "POST",
                "/v1/files",
                self._upload,
                max_body_bytes=MAX_FILE_BYTES + _FORM_BYTES,
                max_body_s=_UPLOAD_S,
                sink=self._sink,
            ),
            Route("GET", "/v1/files", self._list_files),
            Route("GET", "/v1/files/{file}", self._show_file),
            Route("GET", "/v1/files/{file}/content", self._send_content),
            Route("DELETE", "/v1/files/{file}", self._remove_file),
            Route("POST", "/v1/batches", self._create),
            Route("GET", "/v1/batches", self._list_batches),
            Route("GET", "/v1/batches/{batch}", self._show_batch),
            Route("POST", "/v1/batches/{batch}/cancel", self._cancel),
        )

    # --- files

    def _sink(self, request: ClientRequest) -> Upload:
        if isinstance(request.found, Admitted) and request.found.tenant is not None:
            self._check_room(request.found.tenant, 1)
        kind = (value_of(request.headers, b"content-type") or b"").decode("latin-1")
        return Upload(kind, self._store.path(f"{new_id('upload-')}.part"))

    async def _upload(self, request: ServiceRequest) -> None:
        if self._is_draining():
            raise draining()
        sink = request.sink
        assert isinstance(sink, Upload), "the route has such a sink"
        try:
            parts, num_bytes = await request.unless_left(sink.finish())
            wanted = read_upload(parts, num_bytes, MAX_FILE_BYTES)
            now_s = int(time())
            self._check_room(request.tenant, num_bytes)
            kept_s = self._kept_s if wanted.kept_s is None else wanted.kept_s
            expires_at = None if math.isinf(kept_s) else now_s + int(kept_s)
            file = StoredFile(
                new_id("file-"), request.tenant.name, wanted.filename, "batch", num_bytes, now_s, expires_at
            )
            sink.keep()
            await self._store.take_in(file, sink.path)
        except NotSaved as error:
            raise not_kept(error) from error
        await request.answer_json(file.to_json())

    def _check_room(self, tenant: Tenant, num_bytes: int) -> None:
        """Check that a tenant may keep so many bytes more. Raises Refused if not."""
        kept, most = self._store.kept.num_bytes[tenant.name], tenant.limits.file_bytes
        if kept + num_bytes > most:
            message = f"files of {kept} bytes are kept, and at most {most} may be: remove some"
            raise Refused(413, OVER_LIMIT, message, param="file")

    async def _list_files(self, request: ServiceRequest) -> None:
        query = _query(request)
        purpose, files = query.get("purpose"), self._store.kept.files(request.tenant.name)
        if purpose:
            files = {id: one for id, one in files.items() if one.purpose == purpose}
        await request.answer_json(_page(files, query, "files"))

    async def _show_file(self, request: ServiceRequest) -> None:
        await request.answer_json(self._file(request).to_json())

    async def _send_content(self, request: ServiceRequest) -> None:
        file = self._file(request)
        try:
            content = await asyncio.to_thread(open, self._store.path(file.id), "rb")
        except OSError as error:
            raise _no_such("file", file.id) from error
        with content:
            kind = [(b"content-type", b"application/octet-stream"), (b"x-request-id", request.id.encode())]
            request.begin(200, kind, file.num_bytes)
            while piece := await asyncio.to_thread(content.read, _PIECE_BYTES):
                await request.send(piece)
            request.end()

    async def _remove_file(self, request: ServiceRequest) -> None:
        file = self._file(request)
        if self._runner.machine.uses(file.id):
            raise Refused(409, "conflict", f"a batch that has not ended reads the file {file.id}")
        try:
            await self._store.remove(file)
        except NotSaved as error:
            raise not_kept(error) from error
        await request.answer_json({"id": file.id, "object": "file", "deleted": True})

    def _file(self, request: ServiceRequest) -> StoredFile:
        id = request.parts[0]
        if (file := self._store.kept.files(request.tenant.name).get(id)) is None:
            raise _no_such("file", id)
        return file

    # --- batches

    async def _create(self, request: ServiceRequest) -> None:
        if self._is_draining():
            raise draining()
        wanted = read_batch(await request.body())
        tenant = request.tenant.name
        if wanted.input_file_id not in self._store.kept.files(tenant):
            raise invalid("input_file_id", f"there is no file {wanted.input_file_id!r:.100}")
        known = [one for one in ENDPOINTS if self._app.has_route("POST", one)]
        if wanted.endpoint not in known:
            raise invalid("endpoint", f"endpoint must be one of {', '.join(known)}")
        if (num := self._runner.machine.num_of(tenant)) >= _MAX_UNENDED:
            raise over_limit(f"{num} batches have not ended, and no more are allowed", _RETRY_S)
        record = BatchRecord(
            new_id("batch_"),
            tenant,
            wanted.endpoint,
            wanted.input_file_id,
            wanted.completion_window,
            wanted.window_s,
            int(time()),
            wanted.metadata,
            output_kept_s=wanted.output_kept_s,
        )
        try:
            await self._runner.create(record)
        except NotSaved as error:
            raise not_kept(error) from error
        await request.answer_json(record.to_json())

    async def _list_batches(self, request: ServiceRequest) -> None:
        saved = self._store.kept.batches(request.tenant.name)
        get = self._runner.machine.get
        await request.answer_json(_page(saved, _query(request), "batches", lambda one: get(one.id) or one))

    async def _show_batch(self, request: ServiceRequest) -> None:
        await request.answer_json(self._batch(request).to_json())

    async def _cancel(self, request: ServiceRequest) -> None:
        batch = self._batch(request)
        if batch.status in ENDED:
            raise Refused(409, "conflict", f"the batch {batch.id} has ended: it is {batch.status}")
        await request.answer_json(self._runner.cancel(batch).to_json())

    def _batch(self, request: ServiceRequest) -> BatchRecord:
        id = request.parts[0]
        if (saved := self._store.kept.batches(request.tenant.name).get(id)) is None:
            raise _no_such("batch", id)
        return self._runner.machine.get(id) or saved


def not_kept(error: NotSaved) -> Refused:
    """Return the refusal of what the disk does not take."""
    return Refused(507, "not_saved", f"nothing was kept, for the disk does not take it: {error.message}")


def _no_such(kind: str, id: str) -> Refused:
    return Refused(404, "unknown_id", f"there is no {kind} {id!r:.100}", param=f"{kind}_id")


def _query(request: ServiceRequest) -> Mapping[str, str]:
    return {name: values[-1] for name, values in parse_qs(request.query).items()}


def _page(
    found: Mapping[str, T], query: Mapping[str, str], kind: str, now: Callable[[T], T] = lambda one: one
) -> dict[str, object]:
    """Return a part of a list, the latest first unless asked for otherwise."""
    most = _MOST_LISTED[kind]
    limit = query.get("limit", str(most if kind == "files" else 20))
    if not limit.isascii() or not limit.isdigit() or len(limit) > _MAX_DIGITS or not 0 < int(limit) <= most:
        raise invalid("limit", f"limit must be a number from 1 to {most}")
    order, after = query.get("order", "desc"), query.get("after", "")
    if order not in ("asc", "desc"):
        raise invalid("order", "order must be asc or desc")
    ids = list(found) if order == "asc" else list(found)[::-1]
    if after:
        if after not in found:
            raise invalid("after", f"there is no {after!r:.100} among the {kind}")
        ids = ids[ids.index(after) + 1 :]
    shown = ids[: int(limit)]
    return {
        "object": "list",
        "data": [now(found[id]).to_json() for id in shown],
        "first_id": shown[0] if shown else None,
        "last_id": shown[-1] if shown else None,
        "has_more": len(ids) > len(shown),
    }
