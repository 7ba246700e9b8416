"""The requests of the last minutes as a simulation needs them: when they came, what they waited for, how long
their prompts and answers were, and what their prompts share. No text and no hash of one leaves the door.

A prompt begins as the last one of its program did, or as one of the latest openings. How far is known from
the hashes of their blocks.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stretto.cluster.placement_request import PromptKey
from stretto.cluster.prefix_hashes import HASH_BYTES, pack_hashes
from stretto.model.record import record
from stretto.sched.observer import Observer
from stretto.sched.request_trace import RequestTrace, TenantProgram

_ARRIVED, _KEYED, _ENDED = range(3)
"""What happens to a request: it has arrived, the key of its prompt is known, it has ended."""
_MAX_REQUESTS = 2000
_MAX_EVENTS = 3 * _MAX_REQUESTS
"""Events that are kept: a request comes, has a key, and ends."""
_MAX_OPENINGS = 8
_MAX_BLOCKS = 1024


@record
class SeenRequest:
    """A request that was answered. Times are seconds of the door's clock.

    Attributes:
        after: number of the request of its program that had ended last when it came; None for none.
        worker: number of the worker that has answered.
        is_streamed: whether `first_s`, when its first token came, is known; else it is the end.
        like: number of an earlier request whose prompt begins alike; None for none.
        num_alike: blocks with which it does.
        num_blocks: blocks of its prompt.
    """

    number: int
    tenant: str
    program: str
    model: str
    arrived_s: float
    sent_s: float
    first_s: float
    ended_s: float
    after: int | None
    worker: int
    is_streamed: bool
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    like: int | None
    num_alike: int
    num_blocks: int

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def read_seen_requests(rows: Sequence[Mapping[str, Any]]) -> list[SeenRequest]:
    """Return the requests that a door tells. Raises TypeError if it tells something else."""
    return [SeenRequest(**row) for row in rows]


@dataclass(slots=True)
class _Seen:
    """The last request of a program that has ended, and the beginning of the key of its last prompt."""

    last: int | None = None
    number: int = -1
    hashes: bytes = b""


@dataclass(slots=True)
class _Open:
    number: int
    program: _Seen
    after: int | None
    like: int | None = None
    num_alike: int = 0
    num_blocks: int = 0


class RecentTraffic(Observer):
    """An observer that keeps what has happened to the last requests of a door, until somebody asks for it."""

    def __init__(self) -> None:
        # Four entries an event, and no tuple, which the garbage collector would look at.
        self._events: deque[Any] = deque(maxlen=4 * _MAX_EVENTS)

    def on_request_arrived(self, trace: RequestTrace, now_s: float) -> None:
        """Note that a request has come."""
        self._events.extend((_ARRIVED, trace, now_s, 0))

    def on_request_keyed(self, trace: RequestTrace, key: PromptKey) -> None:
        """Note the key of the prompt of a request that has come, as far as it is compared."""
        hashes = pack_hashes(key.blocks)[: _MAX_BLOCKS * HASH_BYTES]
        self._events.extend((_KEYED, trace, hashes, len(key.blocks)))

    def on_request_ended(self, trace: RequestTrace, now_s: float) -> None:
        """Note that a request has ended."""
        self._events.extend((_ENDED, trace, now_s, 0))

    def requests(self) -> list[SeenRequest]:
        """Return the requests that were answered, by their ends. One that was open for longer than the events
        that are kept is none of them.
        """
        flat = iter(self._events)
        return _Reader().read(zip(flat, flat, flat, flat, strict=True))[-_MAX_REQUESTS:]


class _Reader:
    """Reads what requests waited for, and what their prompts share, from what has happened to them."""

    def __init__(self) -> None:
        self._requests: list[SeenRequest] = []
        self._programs: defaultdict[TenantProgram, _Seen] = defaultdict(_Seen)
        self._openings: deque[_Seen] = deque(maxlen=_MAX_OPENINGS)
        self._open: dict[int, _Open] = {}
        self._num = 0

    def read(self, events: Iterable[tuple[int, RequestTrace, Any, int]]) -> list[SeenRequest]:
        """Return the requests that were answered."""
        for which, trace, what, num_blocks in events:
            if which == _ARRIVED:
                self._arrived(trace)
            elif which == _KEYED:
                self._keyed(trace, what, num_blocks)
            else:
                self._ended(trace, what)
        return self._requests

    def _arrived(self, trace: RequestTrace) -> None:
        seen = self._programs[trace.tenant_program]
        self._open[id(trace)] = _Open(self._num, seen, seen.last)
        self._num += 1

    def _keyed(self, trace: RequestTrace, hashes: bytes, num_blocks: int) -> None:
        if (opened := self._open.get(id(trace))) is None:
            return
        seen = opened.program
        for one in (seen,) if seen.hashes else self._openings:
            if (num := _num_alike(one.hashes, hashes)) > opened.num_alike:
                opened.like, opened.num_alike = one.number, num
        if not seen.hashes:
            self._openings.append(_Seen(None, opened.number, hashes))
        opened.num_blocks = num_blocks
        seen.number, seen.hashes = opened.number, hashes

    def _ended(self, trace: RequestTrace, now_s: float) -> None:
        if (opened := self._open.pop(id(trace), None)) is None:
            return
        if trace.status != 200 or not trace.tries or not (opened.num_blocks or trace.door == "openai"):
            return  # what no router has sent has no worker
        opened.program.last = opened.number
        first_s = trace.first_token_s
        self._requests.append(
            SeenRequest(
                opened.number,
                trace.tenant,
                trace.program or trace.request_id,
                trace.model,
                trace.arrived_s,
                trace.tries[-1].at_s,
                now_s if first_s is None else first_s,
                now_s,
                opened.after,
                trace.worker,
                first_s is not None,
                trace.estimated_tokens if trace.prompt_tokens is None else trace.prompt_tokens,
                trace.cached_tokens or 0,
                trace.output_tokens or 0,
                opened.like,
                opened.num_alike,
                opened.num_blocks,
            )
        )


def _num_alike(one: bytes, other: bytes) -> int:
    """Return how many blocks are the same. As hashes are chained, all before an equal one are."""
    if one[:HASH_BYTES] != other[:HASH_BYTES]:
        return 0
    low, high = 0, min(len(one), len(other)) // HASH_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        end = middle * HASH_BYTES
        if one[end - HASH_BYTES : end] == other[end - HASH_BYTES : end]:
            low = middle
        else:
            high = middle - 1
    return low
