"""EndpointSlices by the official client of Kubernetes, which knows where the API is and how to log in: within
a pod by its service account, elsewhere by the usual kubeconfig.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException

from stretto.model.errors import BadReply, ConfigError, EngineFailure, EngineUnavailable
from stretto.router.discovery.kubernetes import OutOfDate
from stretto.router.found_workers import KubernetesConfig

_WATCH_S = 240
"""Seconds after which the API ends a watch, which is then begun anew."""
_SILENT_S = 300.0
"""Seconds without a byte after which a watch counts as broken."""
_CONNECT_S = 5.0
_LIST_S = 30.0
_MAX_BYTES = 64_000_000
_PART_BYTES = 65_536
_OF_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_GONE = 410


class EndpointApi:
    """The EndpointSlices of a selector.

    Raises:
        ConfigError: nothing says where the API is, or in which namespace to look.
    """

    def __init__(self, wanted: KubernetesConfig) -> None:
        settings = client.Configuration()
        namespace = wanted.namespace
        try:
            if "KUBERNETES_SERVICE_HOST" in os.environ:
                config.load_incluster_config(client_configuration=settings)
                namespace = namespace or _OF_POD.read_text("utf-8").strip()
            else:
                file = os.environ.get("KUBECONFIG") or None  # the client looks when it is imported
                config.load_kube_config(file, client_configuration=settings)
                _, context = config.list_kube_config_contexts(file)
                namespace = namespace or context["context"].get("namespace") or "default"
        except (ConfigException, OSError, TypeError) as error:
            raise ConfigError(f"kubernetes: nothing says where its API is: {error}") from error
        settings.retries = False
        self._api = client.DiscoveryV1Api(client.ApiClient(settings))
        self._namespace = namespace
        self._selector = wanted.selector
        self._answer: urllib3.BaseHTTPResponse | None = None
        self._is_stopped = False

    def list_slices(self) -> Mapping[str, Any]:
        """Return a list of all slices. Raises EngineFailure."""
        with self._asked(_LIST_S) as answer:
            return _decoded(answer.read(_MAX_BYTES))

    @contextmanager
    def watch_slices(self, version: str) -> Iterator[Iterator[Mapping[str, Any]]]:
        """Watch slices, and give an iterator over the changes since a version, until the API ends the answer.
        Raises EngineFailure; so does the iterator.
        """
        with self._asked(
            _SILENT_S,
            watch=True,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=_WATCH_S,
        ) as answer:
            yield _lines(answer)

    def stop(self) -> None:
        """End what is being asked, from another thread."""
        self._is_stopped = True
        answer = self._answer
        if answer is not None:
            with suppress(ValueError, RuntimeError, OSError):  # it has ended
                answer.shutdown()

    @contextmanager
    def _asked(self, silent_s: float, **more: Any) -> Iterator[urllib3.BaseHTTPResponse]:
        """Ask, and give the answer, which is closed in the end. Raises EngineFailure."""
        try:
            answer: urllib3.BaseHTTPResponse = self._api.list_namespaced_endpoint_slice(
                self._namespace,
                label_selector=self._selector,
                _preload_content=False,
                _request_timeout=(_CONNECT_S, silent_s),
                **more,
            )
            self._answer = answer
            try:
                if self._is_stopped:
                    raise EngineUnavailable("it is asked no more")
                yield answer
            finally:
                self._answer = None
                answer.close()
        except ApiException as error:
            raise _refusal(error.status) from error
        except (urllib3.exceptions.HTTPError, OSError, ConfigException) as error:  # the last one: no token
            raise EngineUnavailable(f"the API gave no answer: {error!s:.300}") from error


def _refusal(status: int) -> EngineFailure:
    if status == _GONE:
        return OutOfDate("the API knows the version no more")
    hint = "; list and watch of endpointslices must be allowed" if status in (401, 403) else ""
    return EngineUnavailable(f"the API answers with status {status}{hint}")


def _lines(answer: urllib3.BaseHTTPResponse) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a watch, one of each line."""
    rest = b""
    for part in answer.stream(_PART_BYTES):
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.strip():
                yield _decoded(line)
        if len(rest) > _MAX_BYTES:
            raise BadReply("an event of the API does not end")


def _decoded(text: bytes) -> Mapping[str, Any]:
    """Return an object of JSON. Raises BadReply."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadReply(f"the API's answer is no JSON: {error!s:.200}") from error
    if not isinstance(found, dict):
        raise BadReply("the API's answer is no object of JSON")
    return found
