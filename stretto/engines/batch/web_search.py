"""Engine for web search over HTTP, with any service that answers `GET /search?q=…&format=json` like SearXNG:

    {"results": [{"url": "…", "title": "…", "content": "…"}, …]}

Results without a URL or a text are skipped. Scores fall with the rank, because the scores of services are not
comparable.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.engines.batch.applications import OpApplication, answer_batch, setting
from stretto.engines.contract import BatchEngine
from stretto.model.errors import BadReply, ConfigError, EngineTimeout, EngineUnavailable, StrettoError
from stretto.model.extras import imports_of
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Hit

if TYPE_CHECKING:
    from httpx import AsyncClient

_MAX_REPLY_BYTES = 4_000_000
_MAX_TEXT_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class WebSearchConfig:
    """Configuration of `WebSearch`, the engine that asks a web search service.

    Attributes:
        url: URL of the service, with or without `/search`.
        key_env: name of the environment variable with a bearer token, if the service needs one.
        timeout_s: seconds allowed for one request, from its start to the end of the answer.
        max_retries: number of further attempts after a failed connection, a time-out, a 429 or a 5xx.
        backoff_s: seconds before the first further attempt; doubled for each one after it.
        max_parallel: largest number of search texts of a batch that are sent at once.
    """

    url: str
    key_env: str = "STRETTO_SEARCH_KEY"
    timeout_s: float = 10.0
    max_retries: int = 2
    backoff_s: float = 0.5
    max_parallel: int = 8


class WebSearch(BatchEngine):
    """A batch engine that searches the web with an HTTP service like SearXNG.

    It runs the op `web_search`: input `queries` (a text); setting `k`. It answers up to `k`
    hits, one for each page found.
    """

    op_names = ("web_search",)

    def __init__(
        self, config: WebSearchConfig, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Prepare the requests.

        Raises:
            ConfigError: the URL or a number is unusable, or packages are missing.
        """
        with imports_of("client", "web search"):
            import httpx
        try:
            url = httpx.URL(config.url)
            url.host.encode("idna")  # as sockets will
        except (httpx.InvalidURL, UnicodeError) as error:
            raise ConfigError(f"the URL of the web search is invalid: {error}") from error
        self._name = str(url.copy_with(userinfo=b""))
        if url.scheme not in ("http", "https"):
            raise ConfigError(f"{self._name!r} is not a URL: it must start with http:// or https://")
        if not url.host or url.query or url.fragment:
            raise ConfigError(f"{self._name!r} is not a URL of a service: a host and perhaps a path")
        if not config.timeout_s > 0 or config.max_retries < 0 or config.max_parallel < 1:
            raise ConfigError(
                f"web search cannot work with timeout_s={config.timeout_s}, max_retries={config.max_retries},"
                f" max_parallel={config.max_parallel}"
            )
        self._config = config
        self._sleep = sleep
        self._url = config.url.rstrip("/").removesuffix("/search") + "/search"
        key = os.environ.get(config.key_env)
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity"}  # sizes are as sent
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Answer each task with the pages that the search service finds for its text.

        Raises:
            EngineUnavailable: the service refused all attempts, or cannot be reached.
            EngineTimeout: the service gave no answer in time, in all attempts.
            BadReply: the answer is not a JSON object with a list of `results`, or is a refusal that a retry
                would not change.
        """
        return answer_batch(tasks, {"web_search": self._search})

    def _search(self, applications: Sequence[OpApplication]) -> list[object]:
        asked = [(a.require("queries", str), setting(a.task, "k", int, 4)) for a in applications]
        return asyncio.run(self._ask_all(asked))

    async def _ask_all(self, asked: Sequence[tuple[str, int]]) -> list[object]:
        import httpx

        places = asyncio.Semaphore(self._config.max_parallel)
        async with httpx.AsyncClient(headers=self._headers, timeout=None) as client:  # _get has its own

            async def ask(query: str, k: int) -> list[Hit]:
                async with places:
                    return _hits(await self._ask(client, query), k)

            return list(await asyncio.gather(*(ask(query, k) for query, k in asked)))

    async def _ask(self, client: AsyncClient, query: str) -> bytes:
        backoff_s = self._config.backoff_s
        for _ in range(self._config.max_retries):
            try:
                return await self._get(client, query)
            except (EngineUnavailable, EngineTimeout):
                await self._sleep(backoff_s)
            backoff_s *= 2
        return await self._get(client, query)

    async def _get(self, client: AsyncClient, query: str) -> bytes:
        import httpx

        body = bytearray()
        try:
            async with (
                asyncio.timeout(self._config.timeout_s),
                client.stream("GET", self._url, params={"q": query, "format": "json"}) as response,
            ):
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > _MAX_REPLY_BYTES:
                        raise BadReply(f"{self._name} answered more than {_MAX_REPLY_BYTES} bytes")
        except TimeoutError as error:
            problem = f"{self._name} gave no answer in {self._config.timeout_s:g} s"
            raise EngineTimeout(problem) from error
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"cannot reach {self._name}: {error}") from error
        if response.is_success:
            return bytes(body)
        if response.has_redirect_location:
            reason = f"go to {response.headers['location'][:500]}"
        else:
            reason = ascii(bytes(body[:200]))
        problem = f"{self._name} answered {response.status_code}: {reason}"
        raise _refusal(problem, response.status_code)


def _refusal(problem: str, status: int) -> StrettoError:
    is_passing = status == 429 or status >= 500
    return EngineUnavailable(problem) if is_passing else BadReply(problem)


def _hits(body: bytes, k: int) -> list[Hit]:
    """Parse the first `k` results that have a URL and a text."""
    try:
        results = json.loads(body)["results"]
        rows = [(row.get("url"), row.get("title") or "", row.get("content") or "") for row in results]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadReply(f"expected the results of a search, got {body[:200]!a}") from error
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
