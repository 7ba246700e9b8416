"""Queries for a checked `System`, and readers of its actions."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.model.errors import StrettoError
from stretto.model.values import KV, Segment
from stretto.sched.actions import Action, Admit, StartBatch
from stretto.sched.messages import Submit
from support.machines import CheckedSystem, compiled

KV_HELLO = KV((Segment("Say hello"),))
EMBED = "graph g(%xs: list[text])\n%v = embed(each %xs) : list[vector] @e\nreturn %v"


def submit(query: str, text: str = EMBED, deadline_s: float | None = None, **inputs: object) -> Submit:
    return Submit(query, compiled(text), inputs or {"xs": ["x"]}, deadline_s)


def started(actions: Sequence[Action]) -> list[StartBatch]:
    return [action for action in actions if isinstance(action, StartBatch)]


def steps(actions: Sequence[Action]) -> list[str]:
    """Return what is started or admitted, by query and step."""
    found = []
    for action in actions:
        if isinstance(action, StartBatch):
            found += [f"{task.query}.{task.step}" for task in action.tasks]
        elif isinstance(action, Admit):
            found.append(f"{action.task.query}.{action.task.step}")
    return found


def error_of(system: CheckedSystem, query: str) -> StrettoError:
    reply = system.replies[query]
    assert reply.outputs is None
    assert reply.error is not None
    return reply.error
