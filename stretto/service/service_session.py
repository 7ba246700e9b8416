"""One session of a tenant: its variables by id, and what requests do with them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import get_args

import msgspec

from stretto.errors import DeadlineExceeded, StrettoError
from stretto.programs.connection import extend, plan
from stretto.programs.fragment import MOST_TOGETHER, Call, parts_of
from stretto.programs.ledger import Ledger
from stretto.programs.values import checked
from stretto.programs.wire.values import value_from_wire
from stretto.runtime.runtime import Runtime
from stretto.runtime.session import Session
from stretto.sched.demand import asked_by
from stretto.service.calls import Works
from stretto.service.graph_page import Line, lines_of
from stretto.service.places import Places
from stretto.service.refusals import Refused, conflict, not_found, not_yet, over_limit
from stretto.service.schema import CallBody, Placeholder, SubmitBody
from stretto.service.sizes import check_num_items, num_bytes
from stretto.service.tenants import Tenant
from stretto.tasks import Criteria, Objective

_CHARS_PER_TOKEN = 4
_LATER_S = 1.0
_MAX_SHOWN = 1000
"""Number of the last outputs of a session whose calls its graph shows."""


class ServiceSession:
    """A session of a tenant.

    Attributes:
        used_s: time of the last request, by the clock of the event loop.
        num_readers: number of requests that wait for variables.
    """

    __slots__ = (
        "_bytes_of",
        "_calls",
        "_depths",
        "_ledger",
        "_num_bytes",
        "_num_names",
        "_objective",
        "_runtime",
        "_session",
        "_wishes",
        "id",
        "num_readers",
        "tenant",
        "used_s",
    )

    def __init__(
        self,
        session_id: str,
        tenant: Tenant,
        runtime: Runtime,
        session: Session,
        objective: Objective,
        now_s: float,
    ) -> None:
        self.id = session_id
        self.tenant = tenant
        self.used_s = now_s
        self.num_readers = 0
        self._runtime = runtime
        self._session = session
        self._objective = objective
        self._ledger = Ledger()
        self._depths: dict[str, int] = {}
        self._bytes_of: dict[str, int] = {}
        self._calls: dict[str, Call] = {}
        self._num_bytes = 0
        self._num_names = 0
        self._wishes: Counter[tuple[str, Criteria | None]] = Counter()

    @property
    def num_variables(self) -> int:
        """Number of variables that requests have named and not given up."""
        return len(self._depths)

    async def close(self) -> None:
        """End the session: variables without a value fail."""
        await self._session.close()

    async def submit(self, body: SubmitBody, works: Works, now_s: float) -> list[dict[str, str]]:
        """Do what a request asks for, or nothing at all; return the variables of each call's outputs.

        Where there are many calls, other requests have turns while they are read.

        Raises:
            StrettoError: something does not fit; the message names the place.
        """
        self._check_open()
        check_num_items(body.values.values(), "values")
        values = {name: self._value(name, value) for name, value in body.values.items()}
        calls = await self._read_calls(_calls(body), works)
        named = _named(values, calls, body.wanted)
        dropped = dict.fromkeys(body.dropped)
        for name in dropped:
            if name not in named:
                self._check_known(name)
        self._check_limits(values, calls, named)
        num_tokens = sum(_num_tokens(call) for call in calls)
        self.tenant.check_tokens(num_tokens, now_s)
        self._note(values, calls)
        self.tenant.spend_tokens(num_tokens)
        for name in body.wanted:
            self._depths.setdefault(name, 0)
        for name, criteria in body.wanted.items():
            self._session.want(name, criteria)
            self._wishes[name, criteria] += 1
        for name, value in values.items():
            self._session.provide(name, value)
        for name in dropped:
            self.drop(name)
        return [dict(call.outputs) for call in calls]

    def provide(self, name: str, value: object) -> None:
        """Set a variable to a value as JSON has it.

        Raises:
            Refused: it has a value, or a call produces it.
            UserError: the value cannot be used.
        """
        self._check_open()
        check_num_items((value,), f"the variable {name!r:.80}")
        values = {name: self._value(name, value)}
        self._check_limits(values, (), values)
        self._note(values, [])
        self._session.provide(name, values[name])

    def drop(self, name: str) -> None:
        """Give a variable up: cancel the work that only serves it, and free its value and its id.

        Raises:
            Refused: there is no such variable.
        """
        self._check_known(name)
        self._check_open()
        del self._depths[name]
        self._num_bytes -= self._bytes_of.pop(name, 0)
        self._calls.pop(name, None)
        for criteria in (None, *get_args(Criteria)):
            self._wishes.pop((name, criteria), None)
        self._ledger.forget([name])
        self._session.drop(name)

    def is_settled(self, name: str) -> bool:
        """Return whether a variable has its value, or has failed.

        Raises:
            Refused: there is no such variable.
        """
        self._check_known(name)
        return self._session.is_settled(name)

    async def get(
        self, name: str, criteria: Criteria | None, timeout_s: float | None, max_wait_s: float
    ) -> object:
        """Wait for a variable and return its value.

        Raises:
            Refused: there is no such variable, or it has not come within `timeout_s` or `max_wait_s` seconds.
            StrettoError: what it has failed with.
        """
        if self.is_settled(name):
            return await self._session.get(name)
        limit_s = max_wait_s if timeout_s is None or timeout_s > max_wait_s else None
        try:
            with self._reading(name, criteria):
                async with asyncio.timeout(limit_s):
                    return await self._session.get(name, criteria, deadline_s=timeout_s)
        except TimeoutError:
            raise not_yet(name) from None
        except DeadlineExceeded:
            if self._session.is_settled(name):
                raise
            raise not_yet(name) from None

    async def stream(self, name: str, criteria: Criteria | None, max_wait_s: float) -> AsyncIterator[str]:
        """Yield the text of a variable as it is generated.

        Raises:
            Refused: there is no such variable, or nothing of it has come within `max_wait_s` seconds.
            StrettoError: what it has failed with.
        """
        self._check_known(name)
        with self._reading(name, criteria):
            async with aclosing(self._session.stream(name, criteria)) as pieces:  # type: ignore[type-var]
                try:
                    async with asyncio.timeout(max_wait_s):
                        first = await anext(pieces, None)
                except TimeoutError:
                    raise not_yet(name) from None
                if first is None:
                    return
                yield first
                async for piece in pieces:
                    yield piece

    def lines(self, places: Places) -> list[Line]:
        """Return a line for each request to an LLM of the last calls, in words."""
        calls = list({id(call): call for call in self._calls.values()}.values())
        wanted: dict[str, Objective] = {}
        for name, criteria in self._wishes:
            asked = asked_by(criteria or self._objective).criteria
            if wanted.get(name) != "latency" and asked is not None:
                wanted[name] = asked
        return lines_of(calls, wanted, self._state, places.of(self._session.id))

    def _state(self, name: str) -> str:
        return "has come" if self._session.is_settled(name) else "is to come"

    @contextmanager
    def _reading(self, name: str, criteria: Criteria | None) -> Iterator[None]:
        """Count a reader of a variable."""
        wish = (name, criteria)
        self.num_readers += 1
        self._wishes[wish] += 1
        try:
            yield
        finally:
            self.num_readers -= 1
            self._wishes[wish] -= 1
            if self._wishes[wish] <= 0:
                del self._wishes[wish]

    async def _read_calls(self, bodies: Sequence[CallBody], works: Works) -> list[Call]:
        """Return the calls of a request. Many are read in parts, and their graphs compiled for the plan
        cache, with turns for other requests in between.
        """
        if len(bodies) <= MOST_TOGETHER:
            return [self._call(body, works, place) for place, body in enumerate(bodies)]
        calls: list[Call] = []
        for place, body in enumerate(bodies):
            calls.append(self._call(body, works, place))
            if len(calls) % MOST_TOGETHER == 0:
                await asyncio.sleep(0)
        for part in parts_of(calls):
            with suppress(StrettoError):  # it is raised again where the calls are added to the session
                plan(self._runtime, self._session, part, self._ledger.is_set)
            await asyncio.sleep(0)
        self._check_open()
        return calls

    def _call(self, body: CallBody, works: Works, place: int) -> Call:
        try:
            work = works.find(body)
            self.tenant.check_output_tokens(work.max_tokens)
            inputs: dict[str, str | None] = {}
            outputs: dict[str, str] = {}
            constants: dict[str, object] = {}
            check_num_items([one.value for one in body.placeholders], "placeholders")
            for one in body.placeholders:
                if one.in_out:
                    outputs[one.name] = self._output(one)
                elif one.value is not msgspec.UNSET:
                    inputs[one.name] = None
                    constants[one.name] = checked(value_from_wire(one.value), one.name)
                elif isinstance(one.semantic_var_id, str):
                    inputs[one.name] = one.semantic_var_id
                else:
                    message = f"the input {one.name!r:.80} has neither a variable nor a value"
                    raise Refused(422, "invalid", message)
            return Call(work, inputs, outputs, constants, body.each, body.when)
        except StrettoError as error:
            raise error.at(f"calls[{place}]") from error

    def _output(self, place: Placeholder) -> str:
        if place.value is not msgspec.UNSET:
            raise Refused(422, "invalid", f"the output {place.name!r:.80} takes no value")
        if isinstance(place.semantic_var_id, str):
            return place.semantic_var_id
        return self._new_name(place.name)

    def _new_name(self, stem: str) -> str:
        """Return an id for a variable that has none yet."""
        while True:
            self._num_names += 1
            name = f"{stem}.{self._num_names}"
            if name not in self._depths:
                return name

    def _value(self, name: str, value: object) -> object:
        return checked(value_from_wire(value), f"the variable {name!r}")

    def _check_limits(
        self, values: Mapping[str, object], calls: Sequence[Call], named: Collection[str]
    ) -> None:
        limits = self.tenant.limits
        if len(calls) > limits.width:
            raise Refused(
                422, "over_limit", f"there are {len(calls)} calls; at most {limits.width} go together"
            )
        num_new = sum(name not in self._depths for name in named)
        if self.num_variables + num_new > limits.variables:
            raise over_limit(f"a session has at most {limits.variables} variables; give some up", _LATER_S)
        if self._num_bytes + sum(map(num_bytes, values.values())) > limits.bytes:
            raise over_limit(f"values of a session have at most {limits.bytes} bytes; give some up", _LATER_S)

    def _note(self, values: Mapping[str, object], calls: Sequence[Call]) -> None:
        """Add values and calls to the books, and the calls to the session; all of them, or none."""
        depths: dict[str, int] = {}
        with self._ledger.all_or_none():
            for name in values:
                self._check_free(name)
                self._ledger.note_set(name)
            for call in calls:
                for name in call.outputs.values():
                    self._check_free(name)
                self._ledger.note_call(call, call.outputs)
                self._note_depth(call, depths)
            if calls:
                extend(self._runtime, self._session, calls, self._ledger.is_set)
        self._depths.update(depths)
        for call in calls[-_MAX_SHOWN:]:
            self._calls.update(dict.fromkeys(call.outputs.values(), call.without_values()))
        while len(self._calls) > _MAX_SHOWN:
            del self._calls[next(iter(self._calls))]
        for name, value in values.items():
            self._depths.setdefault(name, 0)
            self._bytes_of[name] = value_bytes = num_bytes(value)
            self._num_bytes += value_bytes

    def _note_depth(self, call: Call, depths: dict[str, int]) -> None:
        deepest = 0
        for name in call.reads:
            if name not in depths:
                depths[name] = self._depths.get(name, 0)
            deepest = max(deepest, depths[name])
        if deepest >= self.tenant.limits.depth:
            raise Refused(
                422, "over_limit", f"at most {self.tenant.limits.depth} calls may depend on each other"
            )
        depths.update(dict.fromkeys(call.outputs.values(), deepest + 1))

    def _check_free(self, name: str) -> None:
        if self._ledger.knows(name):
            raise conflict(f"the variable {name!r} has a value, or a call produces it, already")

    def _check_known(self, name: str) -> None:
        if name not in self._depths:
            raise not_found(f"variable {name!r} in this session")

    def _check_open(self) -> None:
        if self._session.is_closed():
            raise Refused(410, "query_ended", "the session has ended")


def _calls(body: SubmitBody) -> Sequence[CallBody]:
    """Return the calls of a request; the one of the paper's form comes first."""
    if body.prompt is msgspec.UNSET:
        return body.calls
    return (CallBody(placeholders=body.placeholders, prompt=body.prompt), *body.calls)


def _named(values: Collection[str], calls: Sequence[Call], wanted: Collection[str]) -> set[str]:
    """Return the variables that a request names, but for those that it gives up."""
    named = {*values, *wanted}
    for call in calls:
        named.update(call.outputs.values(), call.reads)
    return named


def _num_tokens(call: Call) -> float:
    prompt = getattr(call.work, "prompt", "")
    num_chars = len(prompt) + sum(num_bytes(value) for value in call.constants.values())
    return num_chars / _CHARS_PER_TOKEN + call.work.max_tokens * len(call.outputs)
