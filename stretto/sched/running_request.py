"""A request that an LLM instance has, from its admission to its end."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import PlacementRequest
from stretto.core import KV, Prompt
from stretto.errors import BadReply
from stretto.sched.engine_queue import EngineQueue
from stretto.sched.request import Entry
from stretto.sched.results import Completed, Report, failed


@dataclass(slots=True, eq=False)
class Running:
    """One item of an entry that an instance has been given.

    Attributes:
        queue: queue that it was taken from.
        placed: what the placement policy was told of it.
        num_output: tokens of output that were expected of it, raised when it writes more.
        prefill_s: predicted seconds of its prefill; 0 once it has written something.
        handed_s: when the instance got it.
        first_s: predicted seconds from then to the end of its prefill; noted where requests are bound early.
        offset: items or characters of its output that have been passed on.
        num_written: estimated tokens of its output so far.
        is_decoding: whether it has written something.
        started_s: when the instance began its prefill, as far as is known.
        is_probe: whether the instance was suspect when it was handed over.
        output_key: `Replica.output_key` of the instance.
    """

    task: int
    instance: InstanceId
    entry: Entry
    item: int
    prompt: Prompt
    queue: EngineQueue
    placed: PlacementRequest
    prefill_s: float
    handed_s: float
    first_s: float = 0.0
    num_output: int = field(init=False)
    offset: int = 0
    num_written: int = 0
    is_decoding: bool = False
    started_s: float | None = None
    is_probe: bool = False
    output_key: object = None

    def __post_init__(self) -> None:
        self.num_output = self.placed.expected_output

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the request takes of the instance's budget."""
        return self.placed.num_tokens + self.num_output


def completed(running: Running, value: object) -> Report:
    """Return the answer of a request, or its failure if the engine returned something else than asked."""
    request = running.entry.request
    result: object = KV(running.prompt, running.instance)
    if request.node.op == "decode" or request.node.fused is not None:
        wanted = list if request.decode and request.decode.items else str
        if not isinstance(value, wanted):
            message = f"the engine returned a {type(value).__name__}, not a {wanted.__name__}"
            return failed(request, running.item, running.item + 1, BadReply(message))
        result = (result, value) if request.node.fused is not None else value
    return Completed(request.query, request.node.id, running.item, (result,))
