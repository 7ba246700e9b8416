"""Workers at the ready endpoints of Kubernetes's EndpointSlices.

The slices are listed once, and then watched from the version of the list on. When the API says that it knows
that version no more (410), they are listed anew. While the API is away, or lists slices and refuses to have
them watched, workers stay, and it is asked again after 1, 2, 4… 30 s. An answer that cannot be read counts as
no answer. After a watch that ends without a change there is a pause of a second.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

from stretto.model.errors import ConfigError, EngineFailure
from stretto.router.discovery.endpoints import Endpoints
from stretto.router.discovery.source import Located, Want
from stretto.router.found_workers import KubernetesConfig
from stretto.router.worker_config import WorkerConfig

_LONGEST_S = 30.0
_PAUSE_S = 1.0
_GONE = 410
_log = logging.getLogger(__name__)


class OutOfDate(EngineFailure):
    """Error: the API knows the version of a watch no more."""


class SliceApi(Protocol):
    """The API of Kubernetes, as far as it concerns the EndpointSlices of a selector. Its calls block."""

    def list_slices(self) -> Mapping[str, Any]:
        """Return a list of all slices. Raises EngineFailure."""
        ...

    def watch_slices(self, version: str) -> AbstractContextManager[Iterator[Mapping[str, Any]]]:
        """Watch slices, and give an iterator over the changes since a version, until the API ends the answer.

        Raises:
            OutOfDate: it knows the version no more.
            EngineFailure: it is away, or refuses; also raised by the iterator.
        """
        ...

    def stop(self) -> None:
        """End what is being asked, from another thread."""
        ...


class KubernetesEndpoints:
    """The endpoints of a selector.

    Args:
        workers: the workers at these endpoints.
    """

    def __init__(self, config: KubernetesConfig, workers: Located, api: SliceApi) -> None:
        self.name = f"kubernetes {config.selector} ({workers.url})"
        self._workers = workers
        self._api = api
        self._refused: set[str] = set()

    async def follow(self, want: Want) -> None:
        """Tell the workers after each change, from a thread that ends with this coroutine. Raises what the
        thread did not expect.
        """
        loop, ended = asyncio.get_running_loop(), threading.Event()
        broken: asyncio.Future[None] = loop.create_future()

        def post(work: Callable[[], None]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lambda: None if ended.is_set() else work())

        def watch() -> None:
            try:
                self.watch(lambda workers: post(lambda: want(workers)), ended)
            except Exception as error:
                bug = error
                post(lambda: broken.set_exception(bug))

        threading.Thread(target=watch, daemon=True, name="kubernetes").start()
        try:
            await broken
        finally:
            ended.set()
            self._api.stop()

    def watch(self, tell: Callable[[Sequence[WorkerConfig]], None], ended: threading.Event) -> None:
        """Tell the workers after each change, until it has ended."""
        endpoints, num_failures, said = Endpoints(), 0, ""
        while not ended.is_set():
            try:
                if not endpoints.version:
                    endpoints.listed(self._api.list_slices())
                    tell(self._found(endpoints))
                is_empty = True
                with self._api.watch_slices(endpoints.version) as events:
                    if num_failures:
                        _log.warning("%s: the API answers again", self.name)
                        num_failures, said = 0, ""
                    for event in events:
                        is_empty = False
                        _check_error(event)
                        if endpoints.changed(event):
                            tell(self._found(endpoints))
                if is_empty:
                    ended.wait(_PAUSE_S)
            except OutOfDate:
                endpoints.version = ""
                ended.wait(_PAUSE_S)
            except EngineFailure as failure:
                if ended.is_set():
                    return
                if failure.message != said:
                    said = failure.message
                    _log.warning("%s: its workers stay: %s", self.name, failure.message)
                endpoints.version = ""
                num_failures += 1
                ended.wait(min(2.0 ** (num_failures - 1), _LONGEST_S))

    def _found(self, endpoints: Endpoints) -> list[WorkerConfig]:
        """Return the workers at the endpoints; what is no address is left out, and told of once."""
        workers, refused = [], set()
        for host, port in endpoints.ready():
            try:
                workers.append(self._workers.at(host, port))
            except ConfigError as error:
                refused.add(host)
                if host not in self._refused:
                    _log.warning("%s: an endpoint is left out: %s", self.name, error.message)
        self._refused = refused
        return workers


def _check_error(event: Mapping[str, Any]) -> None:
    """Check that an event is none that ends a watch. Raises EngineFailure."""
    if event.get("type") == "ERROR":
        status = event.get("object")
        status = status if isinstance(status, Mapping) else {}
        if status.get("code") == _GONE:
            raise OutOfDate("the API knows the version no more")
        raise EngineFailure(f"the API ends the watch: {status.get('message')!s:.300}")
