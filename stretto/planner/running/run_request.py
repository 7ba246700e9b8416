"""A request of a run, with its texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.graph.one_call import PromptMessage
from stretto.model.errors import StrettoError
from stretto.model.record import record
from stretto.model.values import Segment
from stretto.planner.application import AppRequest
from stretto.wire.paths import Api


@record
class RefusedLine:
    """A line of a Batch file that cannot be run. The others are.

    Attributes:
        id: the line's `custom_id`, or its place in the file if it has none.
    """

    id: str
    error: StrettoError


@record
class SentLine:
    """The part of a Batch file's line that a server gets. `body` names the model of the line's node."""

    path: str
    body: Mapping[str, Any]


@record
class RunRequest:
    """One request to run.

    Attributes:
        planned: the request as planners see it, in tokens.
        messages: the prompt.
        chunks: texts of the chunks of its document, for chains.
        decode: settings that it has of its own, by the names of `Decode`.
        api: API of the Batch file that it comes from; None for other lines.
        model: model that its line names.
        sent: part of the line that servers get, if it is handed on; such a request has no messages.
    """

    planned: AppRequest
    messages: tuple[PromptMessage, ...]
    chunks: tuple[str, ...] = ()
    decode: Mapping[str, Any] | None = None
    api: Api | None = None
    model: str = ""
    sent: SentLine | None = None

    @property
    def id(self) -> str:
        """The request's `custom_id`."""
        return self.planned.id

    def segments(self) -> tuple[Segment, ...]:
        """Return the prompt as a model's tokenizer reads it."""
        return tuple(Segment(one.text, f"message{at}", one.role) for at, one in enumerate(self.messages))

    @property
    def text(self) -> str:
        """The text of all messages."""
        return "\n".join(message.text for message in self.messages)
