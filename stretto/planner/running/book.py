"""What drives a run sees of its calls, whatever application they are of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from stretto.model.errors import StrettoError
from stretto.planner.application import Application, AppRequest
from stretto.planner.deciding.nodes import DrawnApplication
from stretto.planner.running.calls import CallBook
from stretto.planner.running.planned_calls import AskedCall, CallAnswer, CallEnded, PlannedCall, Progress
from stretto.planner.running.query_book import QueryBook
from stretto.planner.running.request_store import RequestStore


class Book(Protocol):
    """The calls of a run, and the requests that they belong to. `CallBook` explains its members.

    Attributes:
        num_left: calls by node that may still have to be made.
        num_requests_left: number of requests that have not ended.
        num_to_begin: requests that `ready` has still to reach, by the nodes of their first calls.
        num_resumed: calls that an earlier run has answered.
        num_ready: calls of each node that can be made now, or are under way; None if all calls are known from
            the beginning.
        num_growing: requests that may still make calls which count in no node now.
    """

    requests: RequestStore
    num_left: dict[str, int]
    num_requests_left: int
    num_to_begin: dict[str, int]
    num_resumed: int

    @property
    def num_growing(self) -> int: ...
    @property
    def num_ready(self) -> Mapping[str, int] | None: ...

    def model_of(self, call: PlannedCall) -> str: ...
    def left(self) -> tuple[list[AppRequest], Mapping[str, Mapping[tuple[int, int], int]]]: ...
    def ready(self, numbers: Sequence[int] | None = None) -> Iterator[Progress]: ...
    def asked(self, call: PlannedCall) -> AskedCall: ...
    def note(self, call: PlannedCall, result: CallAnswer | StrettoError) -> Progress: ...
    def resume(self, answers: Iterable[tuple[PlannedCall, CallAnswer]]) -> Iterator[CallEnded]: ...
    def has(self, call: PlannedCall) -> bool: ...
    def first_nodes(self, number: int) -> Sequence[str]: ...


def book_of(app: Application, requests: RequestStore) -> Book:
    """Return the calls that requests make of an application."""
    return QueryBook(app, requests) if isinstance(app, DrawnApplication) else CallBook(app, requests)


def num_to_show(book: Book) -> int:
    """Return how many calls are left, as progress shows it; of an app whose answers decide, how many
    requests, as it is not known what calls these will make.
    """
    return sum(book.num_left.values()) if book.num_ready is None else book.num_requests_left
