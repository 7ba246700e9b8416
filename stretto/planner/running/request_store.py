"""The requests of a run in little memory: what is needed of all of them is held, texts are read when a call
needs them.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b, sha256
from itertools import accumulate

from stretto.model.errors import StrettoError
from stretto.model.record import record
from stretto.planner.application import AppRequest
from stretto.planner.running.run_request import RefusedLine, RunRequest
from stretto.wire.paths import Api

_MARK_BYTES = 8


@record(eq=False)
class Kind:
    """The common part of many requests: all that decides which calls they make and how results look. A store
    has one object of each kind.

    Attributes:
        nodes: nodes that the request is for; empty for all.
        num_chunks: chunks of its document.
        api, model: API and model of its line in a Batch file.
        max_tokens: longest answer that its line asks for.
    """

    nodes: tuple[str, ...]
    num_chunks: int
    api: Api | None
    model: str
    max_tokens: int | None


class RequestStore:
    """The requests of a run in their order. A request takes about 40 bytes, and those of its id.

    Args:
        get: returns a request by its number, whenever it is needed.

    Attributes:
        longest_line: bytes of the longest line of a request, which its texts are part of.
        refused: lines of the file that are no requests of the run, and why.
    """

    def __init__(self, get: Callable[[int], RunRequest]) -> None:
        self.get = get
        self._kinds: list[Kind] = []
        self._known: dict[object, int] = {}
        self._kind_of = array("I")
        self._ids = bytearray()
        self._id_ends = array("Q", [0])
        self._hash = sha256()
        self._marks = bytearray()
        self._number_of: dict[str, int] | None = None
        self._planned: Sequence[AppRequest] | None = None
        self._count: Callable[[RunRequest], AppRequest] = _as_read
        self.longest_line = 0
        self.refused: list[RefusedLine] = []

    def add(self, request: RunRequest, data: bytes) -> None:
        """Add the next request. `data` decides all that the request is; no line break is in it."""
        decode = request.decode
        cap = None if decode is None else decode.get("max_tokens")
        fields = request.planned.nodes, len(request.chunks), request.api, request.model, cap
        kind = self._known.get(fields)
        if kind is None:
            kind = self._known[fields] = len(self._kinds)
            self._kinds.append(Kind(*fields))
        self._kind_of.append(kind)
        self._ids += request.id.encode()
        self._id_ends.append(len(self._ids))
        self._hash.update(data + b"\n")
        self._marks += blake2b(data, digest_size=_MARK_BYTES).digest()
        self.longest_line = max(self.longest_line, len(data))

    def refuse(self, errors: Mapping[int, StrettoError]) -> None:
        """Take requests out, because each cannot be run for its error. The others get new numbers."""
        kept = array("Q", (number for number in range(len(self)) if number not in errors))
        self.refused += [RefusedLine(self.id(number), error) for number, error in errors.items()]
        get, size = self.get, _MARK_BYTES
        ids = [self.id(number).encode() for number in kept]
        self.get = lambda number: get(kept[number])
        self._kind_of = array("I", (self._kind_of[number] for number in kept))
        self._marks = bytearray(b"".join(self._marks[at * size : (at + 1) * size] for at in kept))
        self._ids = bytearray(b"".join(ids))
        self._id_ends = array("Q", accumulate(map(len, ids), initial=0))
        self._number_of = self._planned = None

    def __len__(self) -> int:
        return len(self._kind_of)

    def id(self, number: int) -> str:
        """Return the `custom_id` of a request."""
        return self._ids[self._id_ends[number] : self._id_ends[number + 1]].decode()

    def kind(self, number: int) -> Kind:
        """Return the kind of a request."""
        return self._kinds[self._kind_of[number]]

    def kinds(self) -> list[tuple[Kind, int]]:
        """Return all kinds, each with the number of its requests."""
        return [(self._kinds[kind], count) for kind, count in Counter(self._kind_of).items()]

    def count_with(self, count: Callable[[RunRequest], AppRequest]) -> None:
        """Have planners see requests as this function makes them of those to run."""
        self._count = count

    def planned(self) -> Sequence[AppRequest]:
        """Return all requests as planners see them. They are read once, and kept."""
        if self._planned is None:
            self._planned = [self._count(self.get(number)) for number in range(len(self))]
        return self._planned

    def digest(self) -> str:
        """Return a hash of all requests."""
        return self._hash.hexdigest()

    def mark(self, number: int) -> str:
        """Return a hash of one request, by which a journal tells it from others."""
        return self._marks[number * _MARK_BYTES : (number + 1) * _MARK_BYTES].hex()

    def find(self, mark: str, number: int) -> int | None:
        """Return the number of the request with this mark, which had `number` in an earlier run; None if
        there is none any more.
        """
        if number < len(self) and self.mark(number) == mark:
            return number
        if self._number_of is None:
            self._number_of = {self.mark(at): at for at in range(len(self))}
        return self._number_of.get(mark)


def _as_read(request: RunRequest) -> AppRequest:
    return request.planned


def stored(requests: Sequence[RunRequest]) -> RequestStore:
    """Return a store of requests that are in memory."""
    store = RequestStore(requests.__getitem__)
    for request in requests:
        store.add(request, json.dumps(_plain(request)).encode())
    return store


def _plain(request: RunRequest) -> object:
    messages = [[message.role, message.text] for message in request.messages]
    nodes, decode = list(request.planned.nodes), dict(request.decode or {})
    sent = [] if request.sent is None else [request.sent.path, dict(request.sent.body)]
    return [request.id, messages, list(request.chunks), nodes, decode, request.api, request.model, *sent]
