"""The values and calls of a request, read from its body: checked, and the graphs of the calls compiled.

Nothing of a session changes here, so a long request is read in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from stretto.http.refusals import Refused
from stretto.model.errors import StrettoError
from stretto.programs.connection import Planned
from stretto.programs.fragment import WaitingCall, Work
from stretto.programs.ledger import Ledger
from stretto.programs.values import checked_value
from stretto.programs.wire.values import value_from_wire
from stretto.service.calls import Works
from stretto.service.schema import CallBody, Placeholder, SubmitBody
from stretto.service.sizes import check_item_counts, has_many_items, num_bytes
from stretto.service.tenants import Tenant

_CHARS_PER_TOKEN = 4
_FEW_PLACES = 32
"""Most placeholders of calls that are read and compiled on the event loop."""


@dataclass(frozen=True, slots=True)
class ReadValue:
    """A value of a variable, and about how many bytes it takes."""

    value: object
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Submitted:
    """What a request asks for, read and checked as far as that needs no more than a look at its session.

    Attributes:
        num_tokens: tokens that the calls ask for.
        planned: compiled graphs of the calls; the error where they have none.
    """

    values: Mapping[str, ReadValue]
    calls: Sequence[WaitingCall]
    num_tokens: float
    planned: Sequence[Planned] | StrettoError


def read_value(value: object, where: str) -> ReadValue:
    """Return a value of JSON as the value of a variable.

    Raises:
        Refused: it has too many items.
        UserError: it cannot be used.
    """
    check_item_counts((value,), where)
    found = checked_value(value_from_wire(value), where)
    return ReadValue(found, num_bytes(found))


def read_values(values: Mapping[str, object]) -> dict[str, ReadValue]:
    """Return values of JSON as values of variables. Raises as `read_value`; their items count together."""
    check_item_counts(values.values(), "values")
    return {name: read_value(value, f"the variable {name!r}") for name, value in values.items()}


def have_few_items(body: SubmitBody) -> bool:
    """Return whether the values of a request have so few items that reading them takes a ms or so at most."""
    values = [one.value for call in calls_of(body) for one in call.placeholders]
    return not has_many_items([*values, *body.values.values()])


def calls_of(body: SubmitBody) -> Sequence[CallBody]:
    """Return the calls of a request; the one of the paper's form comes first."""
    if body.prompt is msgspec.UNSET:
        return body.calls
    return (CallBody(placeholders=body.placeholders, prompt=body.prompt), *body.calls)


def known_works(bodies: Sequence[CallBody], works: Works) -> Sequence[Work] | None:
    """Return what calls call, if reading them and compiling their graphs is the work of a ms or two: they are
    few, and of prompts that are known; else None.
    """
    if sum([len(body.placeholders) for body in bodies]) > _FEW_PLACES:
        return None
    known = [works.known(body) for body in bodies]
    return None if None in known else known  # type: ignore[return-value]


def read_calls(
    bodies: Sequence[CallBody],
    works: Works,
    tenant: Tenant,
    new_name: Callable[[str], str],
    known: Sequence[Work] | None = None,
) -> list[WaitingCall]:
    """Return the calls of a request of a tenant.

    Args:
        new_name: makes names for outputs without a variable.
        known: what the calls call, where that was looked up already.

    Raises:
        StrettoError: a call does not fit; it names the place.
    """
    calls = []
    for place, body in enumerate(bodies):
        try:
            work = works.find(body) if known is None else known[place]
            calls.append(_call(body, work, tenant, new_name))
        except StrettoError as error:
            raise error.at(f"calls[{place}]") from error
    return calls


def num_asked_tokens(call: WaitingCall) -> float:
    """Return the number of tokens that a call asks for: what it may generate, and a quarter of the characters
    of its prompt and of the values that come with it.
    """
    prompt = getattr(call.work, "prompt", "")
    num_chars = len(prompt) + sum(num_bytes(value) for value in call.constants.values())
    return num_chars / _CHARS_PER_TOKEN + call.work.max_tokens * len(call.outputs)


def _call(body: CallBody, work: Work, tenant: Tenant, new_name: Callable[[str], str]) -> WaitingCall:
    tenant.check_output_tokens(work.max_tokens)
    inputs: dict[str, str | None] = {}
    outputs: dict[str, str] = {}
    constants: dict[str, object] = {}
    check_item_counts([one.value for one in body.placeholders], "placeholders")
    for one in body.placeholders:
        if one.in_out:
            outputs[one.name] = _output(one, new_name)
        elif one.value is not msgspec.UNSET:
            inputs[one.name] = None
            constants[one.name] = checked_value(value_from_wire(one.value), one.name)
        elif isinstance(one.semantic_var_id, str):
            inputs[one.name] = one.semantic_var_id
        else:
            raise Refused(422, "invalid", f"the input {one.name!r:.80} has neither a variable nor a value")
    return WaitingCall(work, inputs, outputs, constants, body.each, body.when)


def _output(place: Placeholder, new_name: Callable[[str], str]) -> str:
    if place.value is not msgspec.UNSET:
        raise Refused(422, "invalid", f"the output {place.name!r:.80} takes no value")
    if isinstance(place.semantic_var_id, str):
        return place.semantic_var_id
    return new_name(place.name)


def may_close_circle(bodies: Sequence[CallBody], ledger: Ledger) -> bool:
    """Return whether a call produces what others wait for: then what it is made of has to be searched."""
    return any(
        isinstance(place.semantic_var_id, str) and ledger.is_awaited(place.semantic_var_id)
        for body in bodies
        for place in body.placeholders
        if place.in_out
    )
