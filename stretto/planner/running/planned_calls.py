"""The calls of a run, their answers, and how far a request is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.graph.one_call import PromptMessage
from stretto.model.errors import EngineFailure, StrettoError
from stretto.model.record import record
from stretto.planner.running.request_store import Kind
from stretto.planner.running.run_request import RunRequest, SentLine


@record
class WholeAnswer:
    """The answer of a server to a line that was handed on. `body` is JSON."""

    status: int
    request_id: str
    body: str


@record
class CallAnswer:
    """The answer to a call.

    Attributes:
        num_prompt, num_output: numbers of tokens.
        whole: all of the answer, which is the result of a line that was handed on; None for other calls.
    """

    text: str
    num_prompt: int = 0
    num_output: int = 0
    whole: WholeAnswer | None = None


class LineFailed(EngineFailure):
    """Error: a server has answered a line that was handed on with an error, `whole`."""

    def __init__(self, message: str, whole: WholeAnswer) -> None:
        super().__init__(message)
        self.whole = whole


@record
class PlannedCall:
    """One call of a node's model.

    Attributes:
        request: number of its request.
        node: name of its node.
        number: number of the call among those of its node for this request.
    """

    request: int
    node: str
    number: int


@record
class AskedCall:
    """What a call asks of its model.

    Attributes:
        prompt: messages, or one text without a role.
        decode: settings of the decode.
        line: the line that is handed on as it is; None for a call of a node.
    """

    prompt: Sequence[PromptMessage]
    decode: Mapping[str, Any]
    line: SentLine | None = None


@record
class CallEnded:
    """The end of a request: its answers by node, and the error of the call that failed first, if any has.

    Attributes:
        id: the request's `custom_id`.
        answers: answers of the nodes all of whose calls were answered.
        outputs: outputs of an app whose answers decide; None for nodes.
    """

    id: str
    kind: Kind
    answers: Mapping[str, Sequence[CallAnswer]]
    error: StrettoError | None = None
    outputs: Mapping[str, object] | None = None


@record
class Progress:
    """The consequences of the end of a call: further calls that can be made, and the end of its request."""

    ready: Sequence[PlannedCall] = ()
    ended: CallEnded | None = None


@dataclass(slots=True)
class LiveRequest:
    """A request that has not ended: its answers by node (None while there is none), and calls under way.

    Attributes:
        num_left: calls of each node without an answer that are still wanted.
        error: error of the call that failed first.
        failed: nodes that calls are not made for any more.
        request: the request with its texts, once a call has needed them.
    """

    answers: dict[str, list[CallAnswer | None]]
    num_left: dict[str, int]
    request: RunRequest | None = None
    started: set[PlannedCall] = field(default_factory=set)
    error: StrettoError | None = None
    failed: set[str] = field(default_factory=set)

    def unstarted(self, calls: Iterable[PlannedCall]) -> Iterator[PlannedCall]:
        """Yield those of the calls that are not under way; from then on they are."""
        for call in calls:
            if call not in self.started:
                self.started.add(call)
                yield call

    def given(self) -> dict[str, list[CallAnswer]]:
        """Return the answers of the nodes that have not failed."""
        return {
            name: [one for one in answers if one is not None]
            for name, answers in self.answers.items()
            if name not in self.failed
        }


def text_of_answer(answer: CallAnswer | None) -> str:
    """Return the text of an answer that is there."""
    assert answer is not None
    return answer.text
