"""The states of an instance, the table of the transitions between them, and the delay before a restart.

    starting --ready--> serving <--ready-- suspect
                        serving --suspected--> suspect
    starting, serving, suspect --drain--> draining --stopped--> gone
    any --lost--> gone

A message that comes late changes nothing: an instance that drains stays draining when it turns out to be
ready, and one that is gone stays gone whatever arrives. What the table lacks is a bug of a driver or a
scheduler: `InstanceStopped` of an instance that was not told to stop, or suspicion of one that is not up yet.

A replica that keeps failing is started again after a delay that grows with its failures. A start that fails
uses up one of a few restarts: a replica that cannot start is given up. An instance that dies while it serves
does not, for what killed it may be a request, and a request is tried a few times only. An answer forgets all
failures before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stretto.model.errors import IllegalTransition

State: TypeAlias = Literal["starting", "serving", "suspect", "draining", "gone"]
Event: TypeAlias = Literal["ready", "suspected", "drain", "lost", "stopped"]

TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    "starting": {"ready": "serving", "drain": "draining", "lost": "gone"},
    "serving": {"ready": "serving", "suspected": "suspect", "drain": "draining", "lost": "gone"},
    "suspect": {"ready": "serving", "suspected": "suspect", "drain": "draining", "lost": "gone"},
    "draining": {"ready": "draining", "suspected": "draining", "lost": "gone", "stopped": "gone"},
    "gone": {"ready": "gone", "suspected": "gone", "lost": "gone", "stopped": "gone"},
}


def next_state(instance: int, state: State, event: Event, history: Sequence[str]) -> State:
    """Return the state of an instance (starting, serving, suspect, draining or gone) after `event`, by the
    table of transitions.

    `history`, the earlier events, goes into the error.

    Raises:
        IllegalTransition: the table has no such transition.
    """
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(
            f"instance {instance} is {state} and cannot take the event {event!r}; "
            f"legal are {', '.join(TRANSITIONS[state])}; so far: {', '.join(history) or 'nothing'}",
            instance=instance,
            state=state,
            event=event,
            history=tuple(history),
        ) from None


FIRST_DELAY_S = 0.1
MAX_DELAY_S = 30.0
MAX_FAILED_STARTS = 8


def delay_s(num_failures: int) -> float:
    """Return the seconds to wait before an instance that failed is started again, or one that may be down is
    tried again.

    It is 0 after the first failure in a row, then 0.1, doubling to 30.
    """
    return 0.0 if num_failures <= 1 else min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(num_failures - 2, 16))


@dataclass(slots=True)
class RestartBudget:
    """A count of the failures of one replica since it last answered a request. It decides
    when the replica is started again or given up.
    """

    num_failures: int = 0
    num_failed_starts: int = 0

    def answered(self) -> None:
        """Set the counts of failures to zero, because an instance of the replica has answered a request."""
        self.num_failures = self.num_failed_starts = 0

    def take(self, *, has_started: bool) -> float | None:
        """Count the failure of an instance of the replica; return the seconds until the replica is started
        again, None if it is given up because too many starts have failed.

        `has_started` is whether the instance ever served.
        """
        self.num_failures += 1
        self.num_failed_starts = 0 if has_started else self.num_failed_starts + 1
        return None if self.num_failed_starts > MAX_FAILED_STARTS else delay_s(self.num_failures)
