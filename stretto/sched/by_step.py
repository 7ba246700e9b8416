"""A table of what belongs to the steps of queries: what a query has, and what one of its nodes has, is found
without a look at others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class ByStep(Generic[T]):
    """Members by query and node, in the order in which they were added. Iterates over the queries."""

    def __init__(self) -> None:
        self._of_query: dict[str, dict[int, dict[T, None]]] = {}

    def __contains__(self, query: str) -> bool:
        return query in self._of_query

    def __iter__(self) -> Iterator[str]:
        return iter(self._of_query)

    def add(self, query: str, node: int, member: T) -> None:
        """Add a member of a node of a query; nothing changes if it is there."""
        self._of_query.setdefault(query, {}).setdefault(node, {})[member] = None

    def has(self, query: str, node: int, member: T) -> bool:
        """Return whether a node of a query has this member."""
        nodes = self._of_query.get(query)
        return nodes is not None and member in nodes.get(node, ())

    def remove(self, query: str, node: int, member: T) -> None:
        """Remove a member. Raises KeyError if it is not there."""
        nodes = self._of_query[query]
        members = nodes[node]
        del members[member]
        if not members:
            del nodes[node]
            if not nodes:
                del self._of_query[query]

    def nodes(self, query: str) -> Mapping[int, Mapping[T, None]]:
        """Return the members of a query by node. They are those of the table, and change with it."""
        return self._of_query.get(query, {})

    def of_query(self, query: str) -> list[T]:
        """Return the members of a query, node by node."""
        return [one for members in self.nodes(query).values() for one in members]

    def of_node(self, query: str, node: int) -> list[T]:
        """Return the members of a node of a query."""
        return list(self.nodes(query).get(node, ()))

    def clear(self) -> None:
        """Remove all members."""
        self._of_query.clear()
