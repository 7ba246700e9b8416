"""The deployed apps of a runtime: starts queries of them, and says how these are getting on."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from stretto.apps.template import Configuration
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.passes.weigh import WEIGHED
from stretto.http.refusals import over_limit
from stretto.model.errors import ConfigError, DeadlineExceeded, QueryCancelled, StrettoError, UserError
from stretto.programs.wire.errors import error_to_wire
from stretto.runtime.query import Query
from stretto.runtime.runtime import Runtime
from stretto.service.apps.admission import Admission, Estimate
from stretto.service.apps.answers import outputs_as_json
from stretto.service.apps.deployed_app import DeployedApp
from stretto.service.apps.limits import AppLimits
from stretto.service.apps.query_request import CheckedRequest
from stretto.service.apps.query_table import AppQuery, QueryTable
from stretto.service.apps.reading import LATE_READING, InputReader, unread_parts
from stretto.service.apps.settings import place_of_error
from stretto.service.refusals import Misplaced
from stretto.service.sizes import is_large, num_bytes
from stretto.service.tenants import Tenant

_RETRY_S = 1.0


class AppService:
    """The deployed apps of a runtime, which runs already. It is an async context manager, and belongs to the
    runtime's event loop; leaving cancels no query.

    Args:
        is_shared: whether several tenants share it.

    Raises:
        ConfigError: an app needs an engine that the runtime does not have.
    """

    def __init__(
        self, runtime: Runtime, apps: Mapping[str, DeployedApp], limits: AppLimits, *, is_shared: bool = False
    ) -> None:
        self.apps = apps
        self.table = QueryTable(limits.keep_s, limits.max_kept, limits.max_kept_bytes)
        self._runtime = runtime
        self._admission = Admission(runtime.deployments.values())
        self._reader = InputReader(limits, is_shared=is_shared)
        self._num_starting: Counter[str] = Counter()
        self._watching: set[asyncio.Task[None]] = set()
        for app in apps.values():
            self._check_engines(app)

    async def __aenter__(self) -> AppService:
        await self._reader.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._watching:
            task.cancel()
        await self._reader.__aexit__(*error)

    async def start(self, app: DeployedApp, request: CheckedRequest, tenant: Tenant) -> AppQuery:
        """Read the documents of a request of a tenant, and start its query. The request's inputs are used up.

        Raises:
            Refused: something in the request is wrong, or beyond a limit of the tenant.
            DeadlineTooClose: the query would not end by its deadline.
            Overloaded: too many queries run.
        """
        began_s = self._now_s()
        asked = request.asked
        egraph = await self._planned(app, request.configuration)
        if asked.deadline_s is not None:  # refused before its documents are read, if it can be
            self._check_deadline(app, egraph, asked.deadline_s)
        end_s = None if asked.deadline_s is None else began_s + asked.deadline_s
        tenant.check_output_tokens(max(_max_tokens(egraph), default=0))
        with self._claimed(tenant, sum(_max_tokens(egraph))):
            inputs = await self._reader.read(request.inputs, end_s, tenant.name)
            request.inputs.clear()
            left_s = None if end_s is None else end_s - self._now_s()
            if left_s is not None and left_s <= 0:
                raise DeadlineExceeded(LATE_READING)
            estimate = self._check_deadline(app, egraph, left_s)
            query = self._runtime.try_submit(
                egraph,
                inputs,
                deadline_s=left_s,
                tenant=tenant.name,
                objective=asked.objective,
                program=asked.program,
            )
            question = "\n".join(value for value in inputs.values() if isinstance(value, str))
            warnings = unread_parts(inputs)
            started = self.table.add(app.name, tenant.name, query, self._now_s(), question, warnings)
        task = asyncio.create_task(self._watch(started, estimate))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
        return started

    def find(self, app: DeployedApp, query_id: str, tenant: str) -> AppQuery | None:
        """Return a query of an app that a tenant has started; None if there is none, or none any more."""
        return self.table.get(app.name, tenant, query_id, self._now_s())

    async def wait(self, started: AppQuery) -> None:
        """Wait until a query has ended. Raises StrettoError: what ended it, unless it ended by itself."""
        await started.ended.wait()
        await started.query

    async def status(self, found: AppQuery) -> dict[str, Any]:
        """Return what is known of a query, as values of JSON: its outputs or its error, if it has ended.
        Large outputs are read in a thread.
        """
        ended_s = found.ended_s
        now_s = self._now_s() if ended_s is None else ended_s
        status: dict[str, Any] = {"id": found.id, "app": found.app, "status": "running"}
        status["seconds"] = round(now_s - found.created_s, 6)
        if found.warnings:
            status["warnings"] = list(found.warnings)
        if not found.query.is_done():
            if held := found.query.held():
                status["held"] = [{"step": one.step, "reason": one.reason} for one in held]
            return status
        try:
            outputs = await found.query
        except QueryCancelled:
            return {**status, "status": "cancelled"}
        except StrettoError as error:
            return {**status, "status": "failed", "error": error_to_wire(error)}
        if reasons := {name: one.finish for one in found.query.endings for name in one.outputs}:
            status["finish_reasons"] = reasons

        def read() -> dict[str, object]:
            return outputs_as_json(outputs, found.question)

        values = await asyncio.to_thread(read) if is_large((outputs, found.question)) else read()
        return {**status, "status": "done", "outputs": values}

    async def text_events(self, app: DeployedApp, query: Query) -> AsyncIterator[tuple[str, str]]:
        """Yield the (output, text) pieces of all outputs that are texts, from the beginning, until the query
        ends.

        An error that ends the query is not raised here.
        """
        pieces: asyncio.Queue[tuple[str, str] | None] = asyncio.Queue()

        async def read(output: str) -> None:
            with contextlib.suppress(StrettoError):
                async for text in query.stream(output):
                    if text:
                        pieces.put_nowait((output, text))
            pieces.put_nowait(None)

        readers = [asyncio.create_task(read(output)) for output in app.texts]
        try:
            num_open = len(readers)
            while num_open:
                piece = await pieces.get()
                if piece is None:
                    num_open -= 1
                else:
                    yield piece
        finally:
            for reader in readers:
                reader.cancel()
        with contextlib.suppress(StrettoError):
            await query

    async def _planned(self, app: DeployedApp, configuration: Configuration) -> ExecutionGraph:
        """Return the compiled graph of a query with these settings. A new one is made in a thread, because a
        large one takes a while.
        """
        if self._runtime.plan_cache.find(app.template, configuration, WEIGHED) is None:
            return await asyncio.to_thread(self._plan, app, configuration)
        return self._plan(app, configuration)

    def _plan(self, app: DeployedApp, configuration: Configuration) -> ExecutionGraph:
        """Return the compiled graph of a query with these settings."""
        try:
            egraph = self._runtime.plan_cache.plan(app.template, configuration, WEIGHED)
            self._runtime.system.engines.check_engines(egraph)
        except UserError as error:
            place = place_of_error(app.template, configuration, self._runtime.deployments)
            raise Misplaced(place, error.message) from error
        return egraph

    def _check_engines(self, app: DeployedApp) -> None:
        """Check that the runtime has the engines of an app. Raises ConfigError."""
        try:
            egraph = self._runtime.plan_cache.plan(app.template, {}, WEIGHED)
            self._runtime.system.engines.check_engines(egraph)
        except UserError as error:
            raise ConfigError(f"app {app.name!r}: {error.message}") from error

    @contextlib.contextmanager
    def _claimed(self, tenant: Tenant, num_tokens: int) -> Iterator[None]:
        """Start a query of a tenant within the block. It counts among the tenant's running queries already
        while its documents are read, and its tokens are spent unless the block raises.

        Raises:
            Refused: the tenant runs too many queries, or has spent its tokens.
        """
        num_running = self._num_starting[tenant.name] + sum(1 for _ in self.table.running(tenant.name))
        if num_running >= tenant.limits.sessions:
            raise over_limit(f"{num_running} queries are running, and no more are allowed", _RETRY_S)
        tenant.check_tokens(num_tokens, self._now_s())
        tenant.spend_tokens(num_tokens)
        self._num_starting[tenant.name] += 1
        try:
            yield
        except BaseException:
            tenant.spend_tokens(-num_tokens)
            raise
        finally:
            self._num_starting[tenant.name] -= 1

    def _check_deadline(self, app: DeployedApp, egraph: ExecutionGraph, deadline_s: float | None) -> Estimate:
        """Predict how long a query would take from now on. Raises DeadlineTooClose if that is too long."""
        now_s, system = self._now_s(), self._runtime.system
        estimate = self._admission.estimate(app.name, egraph.nodes, system.open_nodes(), now_s)
        if deadline_s is not None:
            self._admission.check(estimate, deadline_s, system.open_nodes(), now_s)
        return estimate

    async def _watch(self, started: AppQuery, estimate: Estimate) -> None:
        """Wait for the end of a query, note it, and learn from it how long queries take."""
        is_whole, size = True, 0
        try:
            outputs = tuple((await started.query).values())
            size = await asyncio.to_thread(num_bytes, outputs) if is_large(outputs) else num_bytes(outputs)
        except DeadlineExceeded:
            is_whole = False
        except StrettoError:  # its caller gets it
            self.table.end(started.id, self._now_s())
            return
        now_s = self._now_s()
        self.table.end(started.id, now_s, size)
        self._admission.note_end(estimate, now_s - started.created_s, now_s, is_whole=is_whole)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def _max_tokens(egraph: ExecutionGraph) -> list[int]:
    """Return the largest number of tokens that each step of a graph may generate, for those that do."""
    return [node.decode.max_tokens for node in egraph.nodes if node.decode is not None]
