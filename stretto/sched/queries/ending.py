"""Sessions that have ended, whose variables are given up a part at a time: a session may have very many."""

from __future__ import annotations

from stretto.model.errors import StrettoError
from stretto.sched.actions import Action, Reply, Settled
from stretto.sched.queries.session import SessionMachine

_MOST_GIVEN_UP = 4096
"""Largest number of variables of ended sessions that are given up at one instant: some ms of work."""


class EndingSessions:
    """Sessions that have ended, of which variables are still given up.

    Attributes:
        is_begun: whether variables were given up at this instant.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, tuple[SessionMachine, StrettoError, Reply]] = {}
        self._num_may_give_up = _MOST_GIVEN_UP
        self.is_begun = False

    def __bool__(self) -> bool:
        return bool(self._sessions)

    def renew(self) -> None:
        """Begin a new instant, at which variables may be given up again."""
        self._num_may_give_up = _MOST_GIVEN_UP
        self.is_begun = False

    def add(self, query: str, session: SessionMachine, error: StrettoError, reply: Reply) -> None:
        """Add a session that has ended with an error, which its variables get too, and a reply."""
        self._sessions[query] = session, error, reply

    def give_up(self) -> list[Action]:
        """Let variables fail, as many as may at this instant, and reply to sessions that have none left;
        return the actions. If sessions remain, this must be called at the next instant.
        """
        actions: list[Action] = []
        for query, (session, error, reply) in list(self._sessions.items()):
            asked = self._num_may_give_up
            failed, number = session.close_some(error, asked)
            self._num_may_give_up -= number
            self.is_begun = True
            actions += [Settled(query, name, failure) for name, failure in failed]
            if number == asked:
                break
            del self._sessions[query]
            actions.append(reply)
        return actions
