"""Reads the URL of a model server in the forms in which people have it.

    http://127.0.0.1:8000                                       a server; its API is below /v1
    http://127.0.0.1:8000/v1/                                   its API
    http://127.0.0.1:8000/v1/chat/completions                   one path of its API
    https://HOST/v1beta/openai                                  an API whose path has its own version
    https://HOST/openai/deployments/NAME?api-version=2024-06-01 an API that wants a query with each request
    https://HOST/some/path                                      a server below a path, or an API without /v1

The last form alone is in doubt: `ServerUrl.is_guess`. Whoever asks such a server and gets status 404 for a
path with `v1/` may ask once more with `without_version()`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, urlsplit

from stretto.model.errors import ConfigError
from stretto.wire.paths import Api

_VERSION = "v1"
_VERSIONED = re.compile(r"v\d+((alpha|beta|preview)\d*)?")
"""A segment of a path that is the version of an API, such as v1, v3 or v1beta."""
_GENERATES: dict[str, Api] = {"/chat/completions": "chat", "/completions": "completions"}
_OTHERS = ("/models", "/embeddings", "/rerank")


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """The parts of a model server's URL.

    Attributes:
        root: URL of the server without a slash at its end, to which paths of requests are added.
        has_version: whether the paths of OpenAI's API begin with `v1/` after `root`. Where `root` ends with a
            version of its own, they do not.
        is_guess: whether `has_version` is a guess, because `root` has a path that names no version.
        query: query of each request, without its question mark; "" for none.
        api: the API that the URL named by a path such as `/chat/completions`; None if it named none.
    """

    root: str
    has_version: bool = True
    is_guess: bool = False
    query: str = ""
    api: Api | None = None

    def target(self, path: str) -> str:
        """Return what follows `root` and a slash in a request for a path such as "v1/models"."""
        if not self.has_version:
            path = path.removeprefix(f"{_VERSION}/")
        return f"{path}?{self.query}" if self.query else path

    def without_version(self) -> ServerUrl:
        """Return the same URL, taken for that of an API whose paths do not begin with `v1/`."""
        return replace(self, has_version=False, is_guess=False)


def read_server_url(url: str) -> ServerUrl:
    """Return the parts of a model server's URL, in any of the forms that people use.

    Raises:
        ConfigError: it is no URL of an HTTP server, or has a fragment.
    """
    parts = _split(url)
    path, api = _base(parts.path.rstrip("/"))
    segments = [segment for segment in path.split("/") if segment]
    has_version = is_guess = False
    if not segments or segments[-1] == _VERSION:
        path, has_version = path.removesuffix(f"/{_VERSION}"), True
    elif api is None and not _names_api(segments):
        has_version = is_guess = True
    return ServerUrl(
        f"{parts.scheme}://{parts.netloc}{path.rstrip('/')}", has_version, is_guess, parts.query, api
    )


def _base(path: str) -> tuple[str, Api | None]:
    """Return the path of an API without the path of an endpoint, and the API of that endpoint."""
    for ending, api in _GENERATES.items():
        if path.endswith(ending):
            return path.removesuffix(ending), api
    for ending in _OTHERS:
        before = path.removesuffix(ending)
        if before != path and _VERSIONED.fullmatch(before.rpartition("/")[2]):
            return before, None
    return path, None


def _names_api(segments: list[str]) -> bool:
    """Return whether the segments of a path say that OpenAI's API is right there, without a further `v1`."""
    return any(_VERSIONED.fullmatch(segment) or segment == "deployments" for segment in segments)


def _split(url: str) -> SplitResult:
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ConfigError(f"url is {url!r}; it must start with http:// or https://")
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ConfigError(f"url is {url!r}: {error}") from error
    if not has_host:
        raise ConfigError(f"url is {url!r}; it must name a host, and a port other than 0")
    if parts.fragment:
        raise ConfigError(f"url is {url!r}; it must end with its path or its query, not with a #fragment")
    return parts
