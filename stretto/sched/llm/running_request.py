"""A request that was sent to an LLM instance, from then on to its end."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.cluster.messages import InstanceId
from stretto.cluster.placement_request import PlacementRequest
from stretto.model.errors import BadReply
from stretto.model.foreign import check_nesting
from stretto.model.tasks import Done, Ending
from stretto.model.values import KV, Prompt, answer_segment, as_text
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.llm.expected_outputs import num_output_tokens
from stretto.sched.queries.request import QueueEntry
from stretto.sched.queries.results import Completed, Report, failed


@dataclass(slots=True, eq=False)
class Running:
    """A request that was sent to an LLM instance and has not ended: one item of a queue entry.

    Attributes:
        queue: queue that it was taken from.
        placed: description of the request that the placement policy was given.
        num_output: expected number of output tokens, raised when it generates more.
        prefill_s: predicted seconds of its prefill; 0 once it has generated something.
        handed_s: time at which it was sent to the instance.
        first_s: predicted seconds from then to the end of its prefill; only set if the placement policy lets
            requests wait at instances.
        sent_prefill_s: predicted seconds of all prefills that were sent to the instance up to then, its own
            included; set where `first_s` is.
        offset: number of items or characters of its output that have been passed on.
        num_written: estimated number of tokens of its output so far.
        num_resident: tokens in flight at the instance when it was sent there, its own included.
        decoding_s: time at which its first output was reported; None before.
        num_first: estimated number of tokens of that output.
        is_decoding: whether it has generated something, so that its prefill is over.
        started_s: time at which the instance began its prefill; None if not known yet.
        slot: slot of the instance (`Fleet.slot`).
        is_probe: whether the instance was suspect when the request was sent.
        output_key: key of the instance's model and dtype (`Replica.output_key`), at which alone its output
            can go on.
    """

    task: int
    instance: InstanceId
    entry: QueueEntry
    item: int
    prompt: Prompt
    queue: EngineQueue
    placed: PlacementRequest
    prefill_s: float
    handed_s: float
    first_s: float = 0.0
    sent_prefill_s: float = 0.0
    num_output: int = field(init=False)
    offset: int = 0
    num_written: int = 0
    num_resident: int = 0
    decoding_s: float | None = None
    num_first: int = 0
    is_decoding: bool = False
    started_s: float | None = None
    slot: int = 0
    is_probe: bool = False
    output_key: object = None

    def __post_init__(self) -> None:
        self.num_output = self.placed.expected_output

    @property
    def is_offline(self) -> bool:
        """Whether it gives way to all requests that are not offline."""
        return self.placed.purpose.preference == "offline"

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the instance's budget that the request takes: its prompt and the output
        expected of it.
        """
        return self.placed.num_tokens + self.num_output


def completed(running: Running, done: Done) -> Report:
    """Return the report that a request has ended with `done`, or that it failed if the value is not of the
    type asked for.
    """
    request, value = running.entry.request, done.value
    kv = KV(running.prompt, running.instance)
    result: object = kv
    if request.node.spec.makes_text or request.node.fused is not None:
        wanted = list if request.decode and request.decode.items else str
        if not isinstance(value, wanted):
            message = f"the engine returned a {type(value).__name__}, not a {wanted.__name__}"
            return failed(request, running.item, running.item + 1, BadReply(message))
        try:
            check_nesting(value)
        except BadReply as error:
            return failed(request, running.item, running.item + 1, error)
        outputs: tuple[object, ...] = (value,)
        if request.is_continued:
            answer = done.written or answer_segment(as_text(value))
            outputs = value, KV(running.prompt, running.instance, answer)
        result = (kv, *outputs) if request.node.fused is not None else outputs if len(outputs) > 1 else value
    ending = None
    if done.finish != "stop":
        ending = Ending(request.step, done.finish, num_output_tokens(done.usage, value))
    return Completed(request.query, request.node.id, running.item, (result,), done.usage, ending)
