"""Every error that Stretto raises on purpose.

StrettoError
├── UserError                  you did something wrong; nothing has run
│   ├── TemplateError          a template that cannot be built: cycle, unfed port, wrong type, mixed origins
│   ├── GraphError             a graph that does not verify, passes that never end, text that is no graph
│   ├── ConfigError            an unknown name, key or value in a configuration
│   ├── DocumentError          a file that cannot be read: missing, empty, encrypted, corrupt, binary…
│   └── JournalError           a journal of other work, in use by another run, or no journal at all
├── CapacityError              the work cannot ever fit: prompt beyond the context, item beyond the batch
│   └── Overloaded             it does not fit now; says when to come back
│       ├── DeadlineTooClose   it would end after its deadline; says what it would need
│       └── NoRoom             its program was held too long for lack of KV memory
├── EngineFailure              the other side went wrong; says which step and why
│   ├── EngineUnavailable      the instance died or cannot be reached (retried)
│   │   ├── EngineUnreachable  no connection: the request has not been sent (no attempt is counted)
│   │   └── EngineBusy         overloaded: the request was not begun (no attempt is counted)
│   ├── EngineTimeout          no answer in time
│   ├── BadReply               an answer that is not what the contract says
│   │   └── BadServer          a server that answers nobody well; another one may (no attempt is counted)
│   │       └── NotFound       the server does not know what was asked for, such as a model
│   └── EffectInDoubt          an effect had begun when its instance was lost: it may have happened
├── NotSaved                   results cannot be written, as on a full disk; the same command goes on later
├── QueryEnded                 the query ended early, on request
│   ├── QueryCancelled
│   └── DeadlineExceeded
└── InternalError              our bug
    └── IllegalTransition      a message that an instance in this state cannot take
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class StrettoError(Exception):
    """The base class of all errors that Stretto raises on purpose.

    `step` is the name of the app's step where it happened; None if it belongs to no step.
    """

    message: str = ""
    step: str | None = None

    def __init__(self, message: str, *, step: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.step = step

    def __str__(self) -> str:
        return f"step {self.step!r}: {self.message}" if self.step else self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross process borders with their step."""
        return _rebuild, (type(self), self.args, self.__dict__)

    def at(self, step: str) -> StrettoError:
        """Return the same error with the note that it happened in `step`, unless it already names a step."""
        return self if self.step is not None else self.changed(step=step)

    def changed(self, **fields: object) -> StrettoError:
        """Return a copy of the error with some of its attributes changed; its cause stays the same."""
        copied = _rebuild(type(self), self.args, {**self.__dict__, **fields})
        copied.__cause__ = self.__cause__
        return copied


def _rebuild(kind: type[StrettoError], args: tuple[Any, ...], fields: Mapping[str, Any]) -> StrettoError:
    """Return an error with these fields, also of a user's own type, which may take other arguments."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    error.args = args
    return error


class UserError(StrettoError):
    """A mistake of the user, such as a wrong name or value, found before any work was started."""


class TemplateError(UserError):
    """Error: a template cannot be built; the message names the component and the port."""


class GraphError(UserError):
    """Error: a graph breaks a rule, optimisation passes never end, or a text cannot be parsed as a graph.

    The message names the primitive or the passes.
    """


class ConfigError(UserError):
    """Error: a configuration has an unknown or unusable name, key or value."""


class DocumentError(UserError):
    """Error: a document cannot be read; the message names the file."""


class JournalError(UserError):
    """Error: a file cannot be the journal of a run: it belongs to other work, another run uses it, or it is
    no journal.
    """


class CapacityError(StrettoError):
    """Error: the work is too large ever to be done, as a prompt that is longer than the model's context."""


class Overloaded(CapacityError):
    """Error: the runtime runs too many queries to take another one now.

    It may take one in about `retry_after_s` seconds.
    """

    def __init__(self, message: str, *, step: str | None = None, retry_after_s: float = 1.0) -> None:
        super().__init__(message, step=step)
        self.retry_after_s = retry_after_s


class DeadlineTooClose(Overloaded):
    """Error: a query is refused, because it is predicted to end after its deadline.

    It is predicted to need about `needs_s` seconds now; in `retry_after_s` seconds its deadline may do.
    """

    def __init__(
        self, message: str, *, step: str | None = None, retry_after_s: float = 1.0, needs_s: float = 0.0
    ) -> None:
        super().__init__(message, step=step, retry_after_s=retry_after_s)
        self.needs_s = needs_s


class NoRoom(Overloaded):
    """Error: a request was held for the engine's `max_hold_s`, as the KV memory had no room for its program.

    There is likely to be room in about `retry_after_s` seconds.
    """


class EngineFailure(StrettoError):
    """Error: an engine (such as an LLM or a vector store) failed while it ran a step."""


class EngineUnavailable(EngineFailure):
    """Error: an instance of an engine died, or cannot be reached. The work is retried at another one."""


class EngineUnreachable(EngineUnavailable):
    """A server took no connection, so the request has not been sent. It is sent again without limit of number
    until its deadline, or until the engine is given up.
    """


class EngineBusy(EngineUnavailable):
    """A server has refused a request without beginning it, because it is overloaded (HTTP 429 or 503).

    It asks to be left alone for `retry_after_s` seconds; 0 if it names no time. At most 30 s of rest are
    given (`runtime/probing.py`). The request goes elsewhere, or waits for the server, until its deadline
    or for the engine's `recover_s` seconds.
    """

    def __init__(self, message: str, *, step: str | None = None, retry_after_s: float = 0.0) -> None:
        super().__init__(message, step=step)
        self.retry_after_s = retry_after_s


class EngineTimeout(EngineFailure):
    """Error: an instance of an engine gave no answer in time."""


class BadReply(EngineFailure):
    """Error: an instance of an engine gave an answer that its interface or API does not allow, or refused the
    request.

    Attributes:
        is_refusal: whether a server does not take the request as it is, for example because of a field.
    """

    is_refusal = False


class BadServer(BadReply):
    """A server answers what its API does not say, or refuses whoever asks: the fault is its own, not that of
    the request. The request goes to each other server that serves, and fails if all do the same.
    """


class NotFound(BadServer):
    """A server does not know what was asked for, such as a model that it served before it was restarted."""


class EffectInDoubt(EngineFailure):
    """Error: a step that changes something outside, such as a user's function, was running when its instance
    died.

    The change may have been made, so the step is not run again.
    """


class NotSaved(StrettoError):
    """Error: results could not be written, for example because the disk is full.

    What was saved before is whole, so that the same command goes on from there.
    """


class QueryEnded(StrettoError):
    """Error: a query ended before it had a result: it was cancelled, or its deadline passed."""


class QueryCancelled(QueryEnded):
    """Error: a query was cancelled by its caller."""


class DeadlineExceeded(QueryEnded):
    """Error: a query was ended because its deadline passed."""


class InternalError(StrettoError):
    """Error: there is a bug in Stretto itself."""


class IllegalTransition(InternalError):
    """Error: a message about an instance contradicts the state that the instance is in, which is a bug.

    Attributes:
        instance: number of the instance.
        state: state it is in.
        event: event that the state does not allow.
        history: events before it, oldest first, the last few only.
    """

    def __init__(
        self,
        message: str,
        *,
        step: str | None = None,
        instance: int = -1,
        state: str = "",
        event: str = "",
        history: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, step=step)
        self.instance = instance
        self.state = state
        self.event = event
        self.history = history
