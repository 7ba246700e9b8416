"""How much work queries may begin at one instant, so that others on the event loop have a turn soon."""

from __future__ import annotations

from stretto.graph.execution_graph import Node

MAX_PARTS = 4096
"""Number of parts of prompts that are put together at one instant: some ms of work."""
_STEP_PARTS = 4
"""Parts that an input, or an item of a list, counts as beside its prompt."""
_MAX_FREE = 64
"""Largest number of parts that do not count, as those of almost all steps."""


class TurnWork:
    """The work that all queries together may still begin at this instant. Only long prompts and lists count,
    so that steps of a usual size that become ready together are scheduled together.

    Attributes:
        is_over: whether queries have to pause until the next instant.
        is_begun: whether something was counted at this instant.
    """

    def __init__(self) -> None:
        self.is_over = self.is_begun = False
        self._num_left = MAX_PARTS

    def renew(self) -> None:
        """Begin a new instant."""
        self.is_over = self.is_begun = False
        self._num_left = MAX_PARTS

    def spend(self, node: Node, num_inputs: int, num_items: int) -> None:
        """Count a request of a step with so many inputs, for so many items."""
        num_parts = _STEP_PARTS * num_inputs + num_items * _item_parts(node)
        if num_parts > _MAX_FREE:
            self.is_begun = True
            self._num_left -= num_parts
            self.is_over = self._num_left <= 0


def most_items(node: Node) -> int | None:
    """Return how many items of a list a step may take at a time; None for any number."""
    return max(1, MAX_PARTS // (4 * _item_parts(node))) if node.spec.runs_on == "llm" else None


def _item_parts(node: Node) -> int:
    return _STEP_PARTS + len(node.prompt) if node.spec.runs_on == "llm" else 0
