"""What the state machine of the router is asked, and what it tells the driver to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, TypeAlias

from stretto.cluster.placement import Choice
from stretto.cluster.placement_request import PromptKey
from stretto.cluster.recognition.messages import AskedProgram
from stretto.model.record import record
from stretto.model.tasks import Objective
from stretto.router.chats import Chat
from stretto.sched.queries.request import StepRequest
from stretto.sched.request_trace import Door, Try

WorkerId: TypeAlias = int
Part: TypeAlias = Literal["whole", "prefill", "decode"]
"""Part of a request that one worker takes: all of it, its prompt, or its answer when another worker has
computed the KV of its prompt."""
Ticket: TypeAlias = int
"""Number of a request at the router; never reused."""


@record
class NamedProgram:
    """The program that a request belongs to, as it was recognised. A sub-agent belongs to that of its agent.

    Attributes:
        name: name of the program, among those of the same client; "" if it has none, so that the request is
            a program by itself.
        is_final: whether it makes no request after this one.
        has_returned: whether further requests are likely: the client names it, or it has made one before.
        shared: name by which all routers know it, because its client has named it; "" if it has not.
    """

    name: str = ""
    is_final: bool = False
    has_returned: bool = True
    shared: str = ""


NO_PROGRAM = NamedProgram()
BY_CLIENT = "="
"""Beginning of the names by which all routers know programs."""


@record(kw_only=True)
class RoutedRequest:
    """A client's request as far as the choice of its worker needs it.

    Attributes:
        model: name of the model that it asks for; "" if it names none.
        num_tokens: number of tokens of its prompt; estimated where it is a text.
        max_tokens: largest number of tokens of one answer; None if the request sets no limit.
        num_answers: number of answers that it asks for, to all its prompts together.
        key: key of its prompt; None if nothing is known of it or the policy reads no keys.
        shape: names of its fields and tools, as a digest; "" without a key.
        text: prompt of a completion as a text whose token ids may be looked up; "" if there is none.
        chat: chat whose token ids may be looked up; None if there is none.
        ids: token ids of its prompt; none where they are not known.
        is_repeatable: whether it may be sent again when it is not known if a worker has handled it.
        client_key: digest of the key that the client brings; "" if it brings none, so that it gets the key in
            its worker's settings.
        stored_id: id of what it names that one worker alone keeps, such as an answer that was stored; "" if
            it names nothing like that.
        objective: class of the request: "latency" goes first, "offline" gives way to all others.
        priority_at: places in its body of a field `priority`, which a worker may not know.
        alias_at: places in its body of the name of its model, if that is an alias.
        edits: places in its body that are repaired, with what is to stand there.
        repaired: what was repaired; "" for nothing.
        is_form: whether the body is none of JSON.
        may_hedge: whether it may be answered twice at one time, because it leaves nothing at a worker.
        may_split: whether one worker may compute its prompt, and another one write the answer.
        is_streamed: whether its answer is wanted as a stream.
        deadline_s: seconds within which its program should end; None if it does not say.
        asked: ids and prompt, from which its program is recognised; None if there are none, or afterwards.
        program: program that it belongs to.
        door: where it came in.
        tenant: owner of the request, where its door knows it; None for whom the client's key tells.
        step: the step of an app's query that it is a part of; None for plain traffic.
        failed_at: workers that have begun to answer the step and failed, which others are preferred to.
    """

    model: str = ""
    num_tokens: int = 0
    max_tokens: int | None = None
    num_answers: int = 1
    key: PromptKey | None = None
    shape: str = ""
    text: str = ""
    chat: Chat | None = None
    ids: Sequence[int] = ()
    is_repeatable: bool = True
    client_key: str = ""
    stored_id: str = ""
    objective: Objective = "throughput"
    priority_at: Sequence[tuple[int, int]] = ()
    alias_at: Sequence[tuple[int, int]] = ()
    edits: Sequence[tuple[tuple[int, int], bytes]] = ()
    repaired: str = ""
    is_form: bool = False
    may_hedge: bool = False
    may_split: bool = False
    is_streamed: bool = False
    deadline_s: float | None = None
    asked: AskedProgram | None = None
    program: NamedProgram = NO_PROGRAM
    door: Door = "openai"
    tenant: str | None = None
    step: StepRequest | None = None
    failed_at: Collection[WorkerId] = ()

    def belongs_to(self, program: NamedProgram) -> None:
        """Note its program in place: a copy of so many fields takes as long as finding it."""
        self.program, self.asked = program, None  # type: ignore[misc]

    @property
    def owner(self) -> str:
        """Name of the tenant, or digest of the client's key. Owners have shares, and share no programs."""
        return self.client_key if self.tenant is None else self.tenant


@record
class Sender:
    """The sender of a request, as a door before the router knows it. The door has left it in the request's
    `found`. Attributes are those of `RoutedRequest`; without an objective, the request says it itself.
    """

    tenant: str
    step: StepRequest | None = None
    program: NamedProgram = NO_PROGRAM
    failed_at: Collection[WorkerId] = ()
    objective: Objective | None = None
    door: Door = "openai"


@record
class Send:
    """Action: begin an attempt, by sending a request to a worker.

    Attributes:
        waited_s: seconds that the request has waited in the router, for room or for its turn.
        held_s: part of them for which it was held, because its program had no room.
        why: what it has waited for; "" if it has not.
        deadline_s: time by which its program should end; None if there is none.
        part: which part of the request the worker takes (`split_requests.py`).
    """

    ticket: Ticket
    worker: WorkerId
    choice: Choice
    waited_s: float = 0.0
    held_s: float = 0.0
    why: str = ""
    deadline_s: float | None = None
    part: Part = "whole"

    def begun(self, name: str, now_s: float) -> Try:
        """Return the attempt that begins so, at a worker of this name."""
        is_prefill = self.part == "prefill"
        waited = self.waited_s, self.held_s, self.why
        return Try(self.worker, name, self.choice, now_s, *waited, is_prefill=is_prefill)


@record
class Hedge:
    """Action: begin a second attempt for a request that runs, by `send`, which has a ticket of its own."""

    ticket: Ticket
    send: Send


@record
class TakeHedge:
    """Action: go on with the second attempt of a request in place of the first, which is over."""

    ticket: Ticket


@record
class Stop:
    """Action: abort the attempt that runs for a request, which has failed and is going to be placed again."""

    ticket: Ticket
    reason: str


@record
class Withdraw:
    """Action: abort the attempt that runs for a request, which waits again because others need its place. The
    attempt has not failed, and does not count.
    """

    ticket: Ticket


@record
class Refuse:
    """Action: answer a request that no worker answers, with an error or with the last failure's answer.

    `retry_after_s` is when the client may ask again, if it is known.
    """

    ticket: Ticket
    status: int
    message: str
    retry_after_s: float | None = None


@record
class Cut:
    """Action: end an answer that has begun, with an event that says why, and abort the attempt."""

    ticket: Ticket
    reason: str


@record
class WorkerGone:
    """Action: a worker has no more requests and gets none; close its connections and forget it."""

    worker: WorkerId


@record
class Check:
    """Action: check the health of a worker at a time, which replaces an earlier one that is still to come."""

    worker: WorkerId
    at_s: float


@record
class WaitingPicture:
    """What is shown of a request that waits in the router.

    Attributes:
        program: name of its program; "" if it has none.
        since_s: time from which it waits.
        why: what it waits for.
    """

    ticket: Ticket
    model: str
    program: str
    since_s: float
    why: str


RouterAction: TypeAlias = Send | Hedge | TakeHedge | Stop | Withdraw | Refuse | Cut | WorkerGone | Check


@record
class WorkerUsage:
    """The token counts that a worker reports of one answer; None where it does not tell.

    `is_older_api` is whether the counts have the names of OpenAI's older API, that of completions and chats.
    """

    num_prompt: int | None = None
    num_output: int | None = None
    num_cached: int | None = None
    is_older_api: bool = False
