"""How much work queries may begin at one instant, so that others on the event loop have a turn soon; and
sessions that have ended, whose variables are given up a part at a time, as a session may have very many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from stretto.graph.execution_graph import Node
from stretto.model.errors import StrettoError
from stretto.model.values import Failure
from stretto.sched.actions import Action, Reply, Settled

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


_MOST_GIVEN_UP = 4096
"""Largest number of variables of ended sessions that are given up at one instant: some ms of work."""


CloseSome: TypeAlias = Callable[[StrettoError, int], tuple[list[tuple[str, Failure]], int]]
"""`SessionMachine.close_some` of a session."""


class EndingSessions:
    """Sessions that have ended, of which variables are still given up.

    Attributes:
        is_begun: whether variables were given up at this instant.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, tuple[CloseSome, StrettoError, Reply]] = {}
        self._num_may_give_up = _MOST_GIVEN_UP
        self.is_begun = False

    def __bool__(self) -> bool:
        return bool(self._sessions)

    def renew(self) -> None:
        """Begin a new instant, at which variables may be given up again."""
        self._num_may_give_up = _MOST_GIVEN_UP
        self.is_begun = False

    def add(self, query: str, close_some: CloseSome, error: StrettoError, reply: Reply) -> None:
        """Add a session that has ended with an error, which its variables get too, and a reply."""
        self._sessions[query] = close_some, error, reply

    def give_up(self) -> list[Action]:
        """Let variables fail, as many as may at this instant, and reply to sessions that have none left;
        return the actions. If sessions remain, this must be called at the next instant.
        """
        actions: list[Action] = []
        for query, (close_some, error, reply) in list(self._sessions.items()):
            asked = self._num_may_give_up
            failed, number = close_some(error, asked)
            self._num_may_give_up -= number
            self.is_begun = True
            actions += [Settled(query, name, failure) for name, failure in failed]
            if number == asked:
                break
            del self._sessions[query]
            actions.append(reply)
        return actions
