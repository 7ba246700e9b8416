"""The reports with which engine schedulers tell queries what has become of their requests."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import field
from types import NoneType
from typing import TypeAlias

from stretto.model.errors import (
    BadReply,
    BadServer,
    EngineBusy,
    EngineTimeout,
    EngineUnavailable,
    StrettoError,
)
from stretto.model.foreign import NESTING, are_flat, check_nesting, raised, typed
from stretto.model.record import record
from stretto.model.tasks import Ending, Usage
from stretto.model.values import Failure
from stretto.sched.queries.request import StepRequest


@record
class Completed:
    """An engine scheduler's report to a query: the results of a node, for its items from `lo` on.

    An item that has failed for good has a `Failure` in place of its result.
    `usage` is what an LLM engine has counted for the one item of its report, and `ending` how that has ended,
    unless by itself.
    """

    query: str
    node: int
    lo: int
    results: Sequence[object]
    usage: Usage | None = field(default=None, compare=False)
    ending: Ending | None = field(default=None, compare=False)

    @property
    def items(self) -> Set[int]:
        """The items that it is about."""
        return frozenset(range(self.lo, self.lo + len(self.results)))


@record
class Delivered:
    """An engine scheduler's report to a query: a decode that is still
    running has produced another piece of output.

    If the output is a list, the piece is its item `offset`; if it is text, it starts at character `offset`.
    """

    query: str
    node: int
    offset: int
    piece: str


Report: TypeAlias = Completed | Delivered


def failed(request: StepRequest, lo: int, hi: int, error: StrettoError) -> Completed:
    """Return the report to a query that items `lo` to `hi` of a request have failed for good."""
    return Completed(request.query, request.node.id, lo, (Failure(error.at(request.step)),) * (hi - lo))


def is_worth_retrying(error: StrettoError) -> bool:
    """Return whether an error is the fault of the instance (down or silent) rather than of the request."""
    return isinstance(error, EngineUnavailable | EngineTimeout)


def is_attempt(error: StrettoError) -> bool:
    """Return whether a failure at an instance counts as an attempt. That of an overloaded server, or of one
    that answers nobody well, does not.
    """
    return not isinstance(error, EngineBusy | BadServer)


def checked_results(results: object, num_tasks: int) -> list[object]:
    """Return what a batch engine has answered as a list.

    Raises:
        BadReply: it is no list, or has not one result for each task.
    """
    if type(results) is list and len(results) == num_tasks:
        return results
    if not isinstance(results, list) and (isinstance(results, str) or not isinstance(results, Sequence)):
        raise BadReply(f"the engine answered a {type(results).__name__}, not a list")
    if len(results) != num_tasks:
        raise BadReply(f"the engine answered {len(results)} of {num_tasks} tasks")
    return list(results)


def completed_value(request: StepRequest, lo: int, hi: int, result: object) -> Completed:
    """Return the report to a query of what a batch engine has answered to one task, which
    stands for items `lo` to `hi` of a request.

    An answer of the wrong type or length, or nested too deep, is reported as a failure.
    """
    try:
        if isinstance(result, StrettoError):
            return failed(request, lo, hi, result)
        if result is None and (request.each or not request.node.is_effect):
            return failed(request, lo, hi, BadReply("the engine returned None"))
        if request.each:
            return Completed(request.query, request.node.id, lo, _items(request, hi - lo, result))
        if isinstance(result, NESTING):
            check_nesting(result)
        return Completed(request.query, request.node.id, lo, (result,))
    except raised() as error:
        return failed(request, lo, hi, typed(error))


def _items(request: StepRequest, num_items: int, result: object) -> list[object]:
    """Return an answer as the list of its items, with failures in place of the wrong ones.

    Raises:
        BadReply: it is not a list of `num_items`.
    """
    if not isinstance(result, Sequence) or isinstance(result, str):
        raise BadReply(f"the engine returned a {type(result).__name__}, not a list")
    if len(result) != num_items:
        raise BadReply(f"the engine returned {len(result)} results for {num_items} items")
    items = list(result)
    types = set(map(type, items))
    if NoneType in types or any(issubclass(one, StrettoError) for one in types) or not are_flat(items):
        return [_checked(request, i, item) for i, item in enumerate(items)]
    return items


def _checked(request: StepRequest, i: int, item: object) -> object:
    """Return item `i` of an engine's answer, or the failure that it is."""
    if isinstance(item, StrettoError):
        return Failure(item.at(request.step))
    if item is None and not request.node.is_effect:
        return Failure(BadReply(f"the engine returned None for item {i}", step=request.step))
    try:
        check_nesting(item)
    except BadReply as error:
        return Failure(error.at(request.step))
    return item
