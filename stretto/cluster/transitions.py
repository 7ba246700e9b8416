"""The states of an instance, and the table of the transitions between them.

    starting --ready--> serving <--ready-- suspect
                        serving --suspected--> suspect
    starting, serving, suspect --drain--> draining --stopped--> gone
    any --lost--> gone

A message that comes late changes nothing: an instance that drains stays draining when it turns out to be
ready, and one that is gone stays gone whatever arrives. What the table lacks is a bug of a driver or a
scheduler: `InstanceStopped` of an instance that was not told to stop, or suspicion of one that is not up yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
