"""The values that flow through one query's graph, by id: each is set once, and freed after its last
reader. A node that starts gets its inputs from them: present, absent or failed.

A required value that is absent skips the node, whatever else has failed. Otherwise the first failure, in the
order of the ports, is the node's own. A failed hint counts as no hint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from stretto.graph.execution_graph import In, Node
from stretto.graph.graph import WHEN
from stretto.model.errors import BadReply
from stretto.model.values import ABSENT, Failure, first_failure


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET = _Unset()
"""Placeholder for a value or result that is still to come. (`None` and `ABSENT` are values.)"""


class Values(dict[int, object]):
    """The values that flow between the steps of one query, by id; `UNSET` for those that are still to come.

    Each value is kept until its last user has left; a value without users is not kept at all.

    Attributes:
        num_users: number of users of each value that has some.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_users: dict[int, int] = {}
        self._num_ids = 0

    def __missing__(self, value_id: int) -> object:
        return UNSET

    def add(self, count: int) -> range:
        """Make `count` new values, not set yet; return their ids. Ids are never reused, so that a late
        message finds nothing.
        """
        first = self._num_ids
        self._num_ids += count
        return range(first, self._num_ids)

    def use(self, value_id: int, count: int = 1) -> None:
        """Register `count` more users of a value, which is kept until all have left."""
        self.num_users[value_id] = self.num_users.get(value_id, 0) + count

    def use_all(self, counts: Mapping[int, int]) -> None:
        """Add users of many values at once: `counts` maps the id of a value to how many more will
        read it. A value is freed when its last user has left.
        """
        before, self.num_users = self.num_users, dict(counts)
        for value_id, count in before.items():
            self.use(value_id, count)

    def leave(self, value_id: int) -> None:
        """Remove one user of a value, which is freed when it was the last one."""
        num_users = self.num_users[value_id] - 1
        if num_users:
            self.num_users[value_id] = num_users
        else:
            del self.num_users[value_id]
            self.pop(value_id, None)

    def is_used(self, value_id: int) -> bool:
        """Return whether a value still has users, so that it is kept."""
        return value_id in self.num_users

    def has_one_user(self, value_id: int) -> bool:
        """Return whether a value has exactly one user."""
        return self.num_users.get(value_id) == 1

    def set(self, value_id: int, value: object) -> None:
        """Set a value, for its users to read; if it has none, nothing is kept."""
        if value_id in self.num_users:
            self[value_id] = value


_MAY_HAVE_FAILED = (Failure, list)


Gathered: TypeAlias = tuple[Mapping[str, object], bool, tuple[int, Failure] | None]
"""The inputs found for a node when it starts, by port, or why the node cannot run: whether a required value
is absent, because the step before it was skipped, and the failure of an input. This comes with the place of
its port, as an earlier port whose list of items has not ended may fail too.
"""


def gather_inputs(node: Node, values: Values) -> Gathered:
    """Collect the inputs of a node, as far as they have come, by port, or say why the node cannot run.

    Raises:
        BadReply: a port takes an item of a value that is not a list.
    """
    inputs: dict[str, object] = {}
    is_absent = False
    failed: tuple[int, Failure] | None = None
    passed_over: tuple[int, Failure] | None = None
    for place, arg in enumerate(node.ins):
        value = values[arg.value]
        if arg.index is not None:
            value = item_of(value, arg.index)
        if value is UNSET:
            continue
        if value is ABSENT:
            is_absent = is_absent or not arg.optional
            continue
        failure = _failure_at(arg, node, value) if isinstance(value, _MAY_HAVE_FAILED) else None
        if failure is None:
            if arg.port != WHEN:
                inputs[arg.port] = value
        elif node.spec.passes_over_failures and arg.optional:
            passed_over = passed_over or (place, failure)
        elif not arg.is_hint:
            failed = failed or (place, failure)
    return inputs, is_absent, failed if inputs or failed else passed_over


def item_of(value: object, index: int | None) -> object:
    """Return item `index` of a list, or `ABSENT` (no value) if the list is shorter; if `index` is None,
    return the value itself.

    Raises:
        BadReply: the value is not a list.
    """
    if index is None or value is ABSENT or value is UNSET or isinstance(value, Failure):
        return value
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise BadReply(f"item {index} of a {type(value).__name__}, which is not a list")
    return value[index] if index < len(value) else ABSENT


def _failure_at(arg: In, node: Node, value: object) -> Failure | None:
    """Return the failure that `value` means at this port, or None.

    A port that takes items, or passes over failures, accepts lists in which some items have failed.
    """
    if arg.each or node.spec.passes_over_failures:
        return value if isinstance(value, Failure) else None
    return first_failure(value)
