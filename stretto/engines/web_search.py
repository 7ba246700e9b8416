"""Web search over HTTP: any service that answers `GET /search?q=…&format=json` as SearXNG does.

    {"results": [{"url": "…", "title": "…", "content": "…"}, …]}

Results without a URL or a text are passed over. Scores fall with the rank, as services give none that
compare.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from stretto.core import Chunk, Hit
from stretto.engines.applications import Application, answer_batch, setting
from stretto.errors import BadReply, ConfigError, EngineTimeout, EngineUnavailable, StrettoError
from stretto.tasks import Task

_MAX_REPLY_BYTES = 4_000_000
_MAX_TEXT_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class WebSearchConfig:
    """Where the service is and how patient to be.

    Attributes:
        url: of the service, with or without `/search`.
        key_env: environment variable that holds a bearer token, if there is one.
        timeout_s: for one request, from its start to the end of its answer.
        max_retries: further attempts after no connection, a time-out, a 429 or 5xx; `backoff_s` later and
            twice as long each time.
        max_parallel: queries of one batch that are asked at once.
    """

    url: str
    key_env: str = "STRETTO_SEARCH_KEY"
    timeout_s: float = 10.0
    max_retries: int = 2
    backoff_s: float = 0.5
    max_parallel: int = 8


class WebSearch:
    """A `BatchEngine`. Op `web_search`: port `queries` (a text); config `k`; answers up to `k` hits."""

    def __init__(self, config: WebSearchConfig, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Raises ConfigError: the URL is none, or packages are missing."""
        try:
            import httpx
        except ImportError as cause:
            raise ConfigError("web search needs httpx: pip install 'stretto[local]'") from cause
        if not config.url.startswith(("http://", "https://")):
            raise ConfigError(f"{config.url!r} is no URL: it has to start with http:// or https://")
        if not config.timeout_s > 0 or config.max_retries < 0 or config.max_parallel < 1:
            raise ConfigError(f"web search cannot work with {config}")
        self._config = config
        self._sleep = sleep
        self._url = config.url.rstrip("/").removesuffix("/search") + "/search"
        key = os.environ.get(config.key_env)
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._client = httpx.Client(headers=headers, timeout=config.timeout_s)
        self._threads = ThreadPoolExecutor(config.max_parallel, thread_name_prefix="web-search")

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """See `BatchEngine`.

        Raises:
            EngineUnavailable: no answer but refusals, retries included.
            EngineTimeout: no answer in time, retries included.
            BadReply: an answer that is not as above, or a refusal that no retry would change.
        """
        return answer_batch(tasks, {"web_search": self._search})

    def release(self, query: str) -> None:
        """Nothing is kept for a query."""

    def close(self) -> None:
        """Close connections."""
        self._threads.shutdown(cancel_futures=True)
        self._client.close()

    def _search(self, applications: Sequence[Application]) -> list[object]:
        asked = [(a.require("queries", str), setting(a.task, "k", int, 4)) for a in applications]
        return list(self._threads.map(lambda one: self._ask(*one), asked))

    def _ask(self, query: str, k: int) -> list[Hit]:
        backoff_s = self._config.backoff_s
        for num_left in range(self._config.max_retries, -1, -1):
            try:
                return _hits(self._get(query), k)
            except (EngineUnavailable, EngineTimeout):
                if num_left == 0:
                    raise
            self._sleep(backoff_s)
            backoff_s *= 2
        raise AssertionError

    def _get(self, query: str) -> bytes:
        import httpx

        due_s = time.monotonic() + self._config.timeout_s
        late = f"{self._url} gave no answer in {self._config.timeout_s:g} s"
        try:
            with self._client.stream("GET", self._url, params={"q": query, "format": "json"}) as response:
                body = bytearray()
                for part in response.iter_bytes():
                    body += part
                    if len(body) > _MAX_REPLY_BYTES:
                        raise BadReply(f"{self._url} answered more than {_MAX_REPLY_BYTES} bytes")
                    if time.monotonic() > due_s:
                        raise EngineTimeout(late)
        except httpx.TimeoutException as error:
            raise EngineTimeout(late) from error
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"cannot reach {self._url}: {error}") from error
        if response.is_success:
            return bytes(body)
        problem = f"{self._url} answered {response.status_code}: {bytes(body[:200])!a}"
        raise _refusal(problem, response.status_code)


def _refusal(problem: str, status: int) -> StrettoError:
    is_passing = status == 429 or status >= 500
    return EngineUnavailable(problem) if is_passing else BadReply(problem)


def _hits(body: bytes, k: int) -> list[Hit]:
    """The first `k` results that have a URL and a text."""
    try:
        results = json.loads(body)["results"]
        rows = [(row.get("url"), row.get("title") or "", row.get("content") or "") for row in results]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadReply(f"not the results of a search: {body[:200]!a}") from error
    hits: list[Hit] = []
    for url, title, content in rows:
        if not all(isinstance(part, str) for part in (url, title, content)):
            continue
        text = "\n\n".join(part for part in (title.strip(), content.strip()) if part)[:_MAX_TEXT_CHARS]
        if url and text and len(hits) < k:
            chunk = Chunk(
                url, 0, text.encode("utf-8", "replace").decode(), title.strip() or None, num_chunks=1
            )
            hits.append(Hit(chunk, 1.0 / (1 + len(hits))))
    return hits
