"""Clients 200 to 300 ms away, in virtual time: one that sends call by call, and one that sends graphs.

A request to the service costs one trip, which stands for the way there and back. Both clients send a request
the moment that they can; there are no barriers between the stages of a workflow.

Source: Parrot §8.1 (random delay of requests).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Protocol

from benchmarks.parrot.workflows import Arrival, Call, Output
from stretto.apps.plan_cache import PlanCache
from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.errors import InternalError
from stretto.model.tasks import QueryRecord
from stretto.model.values import Failure
from stretto.sched.actions import Reply, Settled
from stretto.sched.messages import Close, Extend, Open, Provide, Want
from stretto.sim.agent_load import request_graph
from stretto.sim.driver import VirtualDriver
from stretto.sim.synthetic_output import filler

SEPARATOR = "\x1e"
"""Character between the parts of a prompt, which are tokenised one by one (`agent_tokens`)."""

_LEAST_TRIP_S, _MOST_TRIP_S = 0.2, 0.3


class Client(Protocol):
    """The interface of the clients of one run. A query's name begins with the number of its workflow."""

    ends_s: dict[int, float]
    """When the last result of each workflow came, in seconds, by the workflow's number."""
    trips_s: dict[int, float]
    """Seconds of all trips to the service and back of each workflow, by its number."""

    def on_reply(self, reply: Reply) -> None:
        """Called when a one-shot query ends."""
        ...

    def on_settled(self, settled: Settled) -> None:
        """Called when a variable of a session gets its value."""
        ...

    def start(self, driver: VirtualDriver) -> None:
        """Plan the first requests of all workflows."""
        ...


def trip_s(seed: int, name: str) -> float:
    """Return the seconds of a trip to the service and back, the same whoever sends the request."""
    return Random(f"trip/{seed}/{name}").uniform(_LEAST_TRIP_S, _MOST_TRIP_S)


def number_of(query: str) -> int:
    """Return the number of the workflow that a query belongs to."""
    return int(query.partition("/")[0])


class CallClient:
    """A client that sends each call by itself, when the answers that it reads have come.

    Args:
        declares_prefixes: whether only the prefixes that a developer declares may be found again. A token of
            its own then ends what a prompt has in common with others.
    """

    def __init__(self, arrivals: Sequence[Arrival], seed: int, *, declares_prefixes: bool) -> None:
        self.ends_s: dict[int, float] = {}
        self.trips_s: dict[int, float] = {}
        self._arrivals = arrivals
        self._seed = seed
        self._declares_prefixes = declares_prefixes
        self._answers: dict[int, dict[str, str]] = {}
        self._readers: dict[int, dict[str, list[Call]]] = {}
        self._driver: VirtualDriver | None = None

    def start(self, driver: VirtualDriver) -> None:
        """Plan the calls that read no others."""
        self._driver = driver
        for number, arrival in enumerate(self._arrivals):
            self._answers[number] = {}
            readers = self._readers[number] = {}
            for call in arrival.workflow.calls:
                for source in call.sources:
                    readers.setdefault(source, []).append(call)
                if not call.sources:
                    self._send(number, call, arrival.at_s)

    def on_reply(self, reply: Reply) -> None:
        """Note an answer, and send the calls that have waited for it."""
        driver = self._driver
        assert driver is not None
        if reply.error is not None:
            raise reply.error
        assert reply.outputs is not None
        number, name = number_of(reply.query), reply.query.partition("/")[2]
        answers = self._answers[number]
        answers[name] = str(reply.outputs["text"])
        if answers.keys() >= self._arrivals[number].workflow.results.keys():
            self.ends_s[number] = driver.now_s
        for call in self._readers[number].get(name, ()):
            if all(source in answers for source in call.sources):
                self._send(number, call, driver.now_s)

    def on_settled(self, settled: Settled) -> None:
        """Raise InternalError: there are no sessions."""
        raise InternalError(f"{settled.query} is no session")

    def _send(self, number: int, call: Call, now_s: float) -> None:
        assert self._driver is not None
        answers, query = self._answers[number], f"{number}/{call.name}"
        parts = [answers[part.call] if isinstance(part, Output) else part for part in call.parts]
        if self._declares_prefixes:
            parts.insert(call.num_static, filler(query, 4))
        seconds = trip_s(self._seed, query)
        self.trips_s[number] = self.trips_s.get(number, 0.0) + seconds
        graph = _request(call.num_output)
        inputs = {"prompt": SEPARATOR.join(parts)}
        self._driver.submit(query, graph, inputs, at_s=now_s + seconds, objective="latency")


class GraphClient:
    """A client that opens a session for each workflow, submits all its calls as one graph, and waits for the
    results.
    """

    def __init__(
        self, arrivals: Sequence[Arrival], seed: int, plans: PlanCache, passes: tuple[str, ...]
    ) -> None:
        self.ends_s: dict[int, float] = {}
        self.trips_s: dict[int, float] = {}
        self._arrivals = arrivals
        self._seed = seed
        self._plans = plans
        self._passes = passes
        self._missing: dict[int, set[str]] = {}
        self._driver: VirtualDriver | None = None

    def start(self, driver: VirtualDriver) -> None:
        """Plan the submits of all workflows."""
        self._driver = driver
        for number, arrival in enumerate(self._arrivals):
            workflow, query = arrival.workflow, str(number)
            self.trips_s[number] = trip_s(self._seed, query)
            at_s = arrival.at_s + self.trips_s[number]
            plan = self._plans.plan_graph(workflow.graph(), self._passes)
            driver.send(Open(query, QueryRecord(criteria=workflow.criteria), self._passes), at_s)
            for name, text in workflow.texts.items():
                driver.send(Provide(query, name, text), at_s)
            driver.send(Extend(query, plan), at_s)
            self._missing[number] = set(workflow.results)
            for name in workflow.results:
                driver.send(Want(query, name, workflow.criteria), at_s)

    def on_reply(self, reply: Reply) -> None:
        """Ignore the end of a session."""

    def on_settled(self, settled: Settled) -> None:
        """Note a result. Close the session of a workflow that has all its results."""
        driver, number = self._driver, number_of(settled.query)
        assert driver is not None
        if isinstance(settled.value, Failure):
            raise settled.value.error
        missing = self._missing[number]
        if settled.name in missing:
            missing.remove(settled.name)
            if not missing:
                self.ends_s[number] = driver.now_s
                driver.send(Close(settled.query), driver.now_s)


@lru_cache(maxsize=4096)
def _request(num_output: int) -> ExecutionGraph:
    return request_graph(num_output)
