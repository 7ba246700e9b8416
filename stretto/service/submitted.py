"""The values and calls of a request, read from its body: checked, and the graphs of the calls compiled.

Nothing of a session changes here, so a long request is read in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from stretto.model.errors import StrettoError
from stretto.programs.connection import Planned
from stretto.programs.fragment import Call
from stretto.programs.values import checked
from stretto.programs.wire.values import value_from_wire
from stretto.service.calls import Works
from stretto.service.refusals import Refused
from stretto.service.schema import CallBody, Placeholder, SubmitBody
from stretto.service.sizes import check_num_items, num_bytes
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
        named: variables that the request names, but for those that it gives up.
        num_tokens: tokens that the calls ask for.
        planned: compiled graphs of the calls; the error where they have none.
    """

    values: Mapping[str, ReadValue]
    calls: Sequence[Call]
    named: set[str]
    num_tokens: float
    planned: Sequence[Planned] | StrettoError


def read_value(value: object, where: str) -> ReadValue:
    """Return a value of JSON as the value of a variable.

    Raises:
        Refused: it has too many items.
        UserError: it cannot be used.
    """
    check_num_items((value,), where)
    found = checked(value_from_wire(value), where)
    return ReadValue(found, num_bytes(found))


def read_values(values: Mapping[str, object]) -> dict[str, ReadValue]:
    """Return values of JSON as values of variables. Raises as `read_value`; their items count together."""
    check_num_items(values.values(), "values")
    return {name: read_value(value, f"the variable {name!r}") for name, value in values.items()}


def calls_of(body: SubmitBody) -> Sequence[CallBody]:
    """Return the calls of a request; the one of the paper's form comes first."""
    if body.prompt is msgspec.UNSET:
        return body.calls
    return (CallBody(placeholders=body.placeholders, prompt=body.prompt), *body.calls)


def are_light(bodies: Sequence[CallBody], works: Works) -> bool:
    """Return whether reading calls and compiling their graphs is the work of a ms or two: they are few, and
    of prompts that are known.
    """
    num_places = sum(len(body.placeholders) for body in bodies)
    return num_places <= _FEW_PLACES and all(map(works.knows, bodies))


def read_calls(
    bodies: Sequence[CallBody], works: Works, tenant: Tenant, new_name: Callable[[str], str]
) -> list[Call]:
    """Return the calls of a request of a tenant; `new_name` makes names for outputs without a variable.

    Raises:
        StrettoError: a call does not fit; it names the place.
    """
    calls = []
    for place, body in enumerate(bodies):
        try:
            calls.append(_call(body, works, tenant, new_name))
        except StrettoError as error:
            raise error.at(f"calls[{place}]") from error
    return calls


def num_tokens(call: Call) -> float:
    """Return the number of tokens that a call asks for: what it may generate, and a quarter of the characters
    of its prompt and of the values that come with it.
    """
    prompt = getattr(call.work, "prompt", "")
    num_chars = len(prompt) + sum(num_bytes(value) for value in call.constants.values())
    return num_chars / _CHARS_PER_TOKEN + call.work.max_tokens * len(call.outputs)


def _call(body: CallBody, works: Works, tenant: Tenant, new_name: Callable[[str], str]) -> Call:
    work = works.find(body)
    tenant.check_output_tokens(work.max_tokens)
    inputs: dict[str, str | None] = {}
    outputs: dict[str, str] = {}
    constants: dict[str, object] = {}
    check_num_items([one.value for one in body.placeholders], "placeholders")
    for one in body.placeholders:
        if one.in_out:
            outputs[one.name] = _output(one, new_name)
        elif one.value is not msgspec.UNSET:
            inputs[one.name] = None
            constants[one.name] = checked(value_from_wire(one.value), one.name)
        elif isinstance(one.semantic_var_id, str):
            inputs[one.name] = one.semantic_var_id
        else:
            raise Refused(422, "invalid", f"the input {one.name!r:.80} has neither a variable nor a value")
    return Call(work, inputs, outputs, constants, body.each, body.when)


def _output(place: Placeholder, new_name: Callable[[str], str]) -> str:
    if place.value is not msgspec.UNSET:
        raise Refused(422, "invalid", f"the output {place.name!r:.80} takes no value")
    if isinstance(place.semantic_var_id, str):
        return place.semantic_var_id
    return new_name(place.name)
