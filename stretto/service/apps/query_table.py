"""The queries of deployed apps: those that run, and those that have ended and are kept for a while."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stretto.runtime.query import Query

_ID_BYTES = 18


@dataclass(slots=True)
class AppQuery:
    """A query of a deployed app, as requests find it.

    Attributes:
        id: unguessable name of the query.
        query: the running query; it holds its outputs or its error when it has ended.
        created_s, ended_s: times by the clock of the event loop; `ended_s` is None while it runs.
        question: texts among its inputs, which its sources are quoted for.
        warnings: what could not be read of its documents.
        num_bytes: size of its outputs and its question when it has ended.
        ended: set when the table has been told of its end.
    """

    id: str
    app: str
    tenant: str
    query: Query
    created_s: float
    question: str = ""
    warnings: Sequence[str] = ()
    ended_s: float | None = None
    num_bytes: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class QueryTable:
    """A table of queries by id. Ended ones are kept for `keep_s` seconds, and of a tenant at most `max_kept`,
    and the last one or as many as have `max_kept_bytes` bytes together.

    Time is passed in.
    """

    def __init__(self, keep_s: float, max_kept: int, max_kept_bytes: int) -> None:
        self._keep_s = keep_s
        self._max_kept = max_kept
        self._max_kept_bytes = max_kept_bytes
        self._kept_bytes: Counter[str] = Counter()
        self._running: dict[str, AppQuery] = {}
        self._ended: dict[str, dict[str, AppQuery]] = {}
        """Ended queries by tenant and id, the earliest first."""

    def __len__(self) -> int:
        return len(self._running) + sum(map(len, self._ended.values()))

    def add(
        self,
        app: str,
        tenant: str,
        query: Query,
        now_s: float,
        question: str = "",
        warnings: Sequence[str] = (),
    ) -> AppQuery:
        """Add a query that has started, and return it under a new id."""
        query_id = f"q_{secrets.token_urlsafe(_ID_BYTES)}"
        added = AppQuery(query_id, app, tenant, query, now_s, question, warnings)
        self._running[added.id] = added
        self._forget(now_s)
        return added

    def get(self, app: str, tenant: str, query_id: str, now_s: float) -> AppQuery | None:
        """Return a query; None if there is none of this id, or if it is another app's or another tenant's."""
        self._forget(now_s)
        found = self._running.get(query_id) or self._ended.get(tenant, {}).get(query_id)
        return found if found is not None and (found.app, found.tenant) == (app, tenant) else None

    def end(self, query_id: str, now_s: float, num_bytes: int = 0) -> None:
        """Note that a query has ended, with outputs of so many bytes. It is kept for a while."""
        ended = self._running.pop(query_id)
        ended.ended_s, ended.num_bytes = now_s, num_bytes + len(ended.question)
        self._kept_bytes[ended.tenant] += ended.num_bytes
        ended.ended.set()
        self._ended.setdefault(ended.tenant, {})[query_id] = ended
        self._forget(now_s)

    def running(self, tenant: str | None = None) -> Iterator[AppQuery]:
        """Iterate over the queries that run, of one tenant or of all."""
        return (one for one in self._running.values() if tenant is None or one.tenant == tenant)

    def _forget(self, now_s: float) -> None:
        """Remove ended queries, the earliest first, that are too old, too many or too large together."""
        for tenant, ended in self._ended.items():
            while ended:
                first = next(iter(ended.values()))
                assert first.ended_s is not None
                is_too_large = self._kept_bytes[tenant] > self._max_kept_bytes and len(ended) > 1
                is_fine = len(ended) <= self._max_kept and now_s - first.ended_s <= self._keep_s
                if is_fine and not is_too_large:
                    break
                del ended[first.id]
                self._kept_bytes[tenant] -= first.num_bytes
