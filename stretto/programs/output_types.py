"""The types of a semantic function's outputs, which its annotations name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stretto.model.errors import TemplateError
from stretto.programs.outputs import Output
from stretto.programs.variable import SemanticVariable
from stretto.transforms.annotations import Typed

_UNTYPED = (None, type(None), Any, object, str, SemanticVariable, Output, inspect.Parameter.empty)


def output_types(function: Callable[..., object], outputs: Sequence[str]) -> Mapping[str, Typed]:
    """Return the types of outputs, by name: of a parameter whose default is an `Output` its annotation; of
    the only output of a prompt what the function returns. Outputs that are texts have none.

    Raises:
        TemplateError: an annotation cannot be read.
        ConfigError: a type has no JSON schema.
    """
    name = getattr(function, "__name__", "")
    signature = inspect.signature(function)
    found = {
        output: signature.parameters[output].annotation
        for output in outputs
        if output in signature.parameters
    }
    known = {output: _evaluated(function, annotation) for output, annotation in found.items()}
    if len(outputs) == 1 and _is_untyped(known.get(outputs[0])):
        known[outputs[0]] = _evaluated(function, signature.return_annotation)
    return {
        output: Typed(f"{name}, {output}", kind) for output, kind in known.items() if not _is_untyped(kind)
    }


def _is_untyped(kind: object) -> bool:
    return any(kind is one for one in _UNTYPED)


def _evaluated(function: Callable[..., object], annotation: object) -> object:
    """Return an annotation, which `from __future__ import annotations` leaves as a text."""
    if not isinstance(annotation, str):
        return annotation
    scope = dict(getattr(function, "__globals__", {}))
    try:
        return eval(annotation, scope, dict(inspect.getclosurevars(function).nonlocals))
    except Exception as error:
        raise TemplateError(
            f"{getattr(function, '__name__', '')}: the annotation {annotation!r} of an output cannot be read "
            f"({error}); define the type at the top of the module"
        ) from error
