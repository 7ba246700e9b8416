"""What engine schedulers report to the system after an event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stretto.errors import BadReply, EngineTimeout, EngineUnavailable, StrettoError
from stretto.sched.request import Request


@dataclass(frozen=True, slots=True)
class Completed:
    """Results of a node's items from `lo` on."""

    query: str
    node: int
    lo: int
    results: Sequence[object]


@dataclass(frozen=True, slots=True)
class Delivered:
    """A piece of a running decode: item number `offset`, or text from that character on."""

    query: str
    node: int
    offset: int
    piece: str


@dataclass(frozen=True, slots=True)
class Broken:
    """A step has failed for good, and its query with it."""

    query: str
    error: StrettoError


Report: TypeAlias = Completed | Delivered | Broken


def is_worth_retrying(error: StrettoError) -> bool:
    """Whether the instance was at fault rather than the work."""
    return isinstance(error, EngineUnavailable | EngineTimeout)


def check_result(request: Request, num_items: int | None, result: object) -> StrettoError | None:
    """What is wrong with one task's result, if anything."""
    step = request.node.name
    if isinstance(result, StrettoError):
        return result.at(step)
    if request.node.is_effect and num_items is None:
        return None
    if result is None:
        return BadReply("the engine returned None", step=step)
    if num_items is None:
        return None
    if not isinstance(result, Sequence) or isinstance(result, str):
        return BadReply(f"the engine returned a {type(result).__name__}, not a list", step=step)
    if len(result) != num_items:
        return BadReply(f"the engine returned {len(result)} results for {num_items} items", step=step)
    for i, item in enumerate(result):
        if isinstance(item, StrettoError):
            return item.at(step)
        if item is None and not request.node.is_effect:
            return BadReply(f"the engine returned None for item {i}", step=step)
    return None
