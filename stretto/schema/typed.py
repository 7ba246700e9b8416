"""The typed reader: makes structs and dataclasses of plain data that JSON, YAML or TOML gave.

A type says with its annotations what each key may hold: `Annotated[int, Meta(ge=1)]` is a number of at
least 1. msgspec converts the data. It names neither the value that it refuses nor the key that was meant, so
refused data is looked through once more, piece by piece, for an error that says what would be right. Keys
that no type knows are refused, those of dataclasses too, which msgspec alone would ignore.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from reprlib import Repr
from typing import Annotated, Any, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, inspect

from stretto.model.errors import ConfigError
from stretto.model.nearest_name import did_you_mean

Keys: TypeAlias = tuple[str | int, ...]
MOST = 10**9
"""Largest count, and largest number of seconds: sums of larger ones lose small differences."""
Count: TypeAlias = Annotated[int, Meta(ge=0, le=MOST)]
Number: TypeAlias = Annotated[int, Meta(ge=1, le=MOST)]
Text: TypeAlias = Annotated[str, Meta(pattern="^[^\\ud800-\\udfff]*$", description="a text of Unicode")]
Object: TypeAlias = dict[str, Any]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=MOST, description=f"a time from 0 to {MOST} s")]

_T = TypeVar("_T")
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_UNIONS = (Union, types.UnionType)
_LISTS = (list, tuple, Sequence)
_MAPPINGS = (dict, Mapping)


class ValueProblem(ConfigError):
    """Error: plain data does not have the type that it should have.

    Attributes:
        keys: keys and positions that lead to the fault.
        reason: what is wrong there, without the place.
    """

    def __init__(self, message: str, *, step: str | None = None, keys: Keys = (), reason: str = "") -> None:
        super().__init__(message, step=step)
        self.keys = keys
        self.reason = reason or message


@dataclass(frozen=True, slots=True)
class _Fault:
    """A fault of plain data: keys that lead to it, those that a message names, and words for the message.

    `is_value` says that the words are about the value at the place.
    """

    keys: Keys
    around: Keys
    reason: str
    is_value: bool = True


def read_as(kind: type[_T], value: object, place: str = "", keys: Keys = ()) -> _T:
    """Return plain data as a value of the type `kind`.

    Args:
        place: what the data is, or where it stands: the first words of messages, if there are any.
        keys: keys that lead to the data in what `place` names.

    Raises:
        ValueProblem: a key is unknown or missing, or a value has another type.
        ConfigError: a dataclass does not accept the values together.
    """
    try:
        found: _T = convert(kind, value)
    except msgspec.ValidationError as error:
        raise problem_of(kind, value, place, keys) or ValueProblem(str(error)) from None
    if (
        _ignores_keys(cast("Hashable", kind))
        and (problem := problem_of(kind, value, place, keys)) is not None
    ):
        raise problem
    return found


def problem_of(kind: Any, value: object, place: str = "", keys: Keys = ()) -> ValueProblem | None:
    """Return the first fault of plain data that does not have the type `kind`; None if it has none."""
    return next((_problem(fault, place) for fault in _faults(kind, value, keys)), None)


def words_for(kind: Any) -> str:
    """Return what a value of the type `kind` is called in messages."""
    return _words(inspect.type_info(_written(kind)))


def shortened(value: object) -> str:
    """Return the text of a value for an error message, shortened if it is long or nested deeply."""
    return _SHORT.repr(value)


def unknown_key(key: object, known: Collection[str]) -> str:
    """Return what an error says of a key that no type knows: the one that it may be, and all."""
    near = did_you_mean(str(key), known)
    return f"unknown key {shortened(key)}{near}; known keys: {', '.join(known) or 'none'}"


def convert(kind: Any, value: object) -> Any:
    """Return plain data as a value of the type `kind`, without a look at unknown keys of dataclasses.

    Raises:
        msgspec.ValidationError: the data does not have the type.
    """
    return msgspec.convert({"value": value}, _holder(kind), dec_hook=_path).value


@cache
def _holder(kind: Any) -> Any:
    """Return a struct with one value of the type `kind`.

    msgspec keeps what it knows of a struct. It reads any other type anew each time, and its version 0.22 then
    frees the pattern of a text too often, which ends the process.
    """
    return msgspec.defstruct("Holder", [("value", _written(kind))])


def _written(kind: Any) -> Any:
    """Return the type without paths where texts are allowed beside them: plain data has no paths, and msgspec
    refuses such a union.
    """
    origin, arms = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        arms = tuple(arm for arm in arms if arm is not Path) if str in arms else arms
        return Union[tuple(_written(arm) for arm in arms)]  # noqa: UP007
    if origin in (*_LISTS, *_MAPPINGS):
        return origin[tuple(arm if arm is ... else _written(arm) for arm in arms)]
    return kind


def _path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise TypeError(f"a {kind.__name__} cannot be written")  # msgspec makes a ValidationError of it


def _problem(fault: _Fault, place: str) -> ValueProblem:
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in fault.around)
    path = path.removeprefix(".") or ("the value" if fault.is_value else "")
    words = f"{path} {fault.reason}" if fault.is_value else ": ".join(filter(None, (path, fault.reason)))
    return ValueProblem(f"{place}: {words}" if place else words, keys=fault.keys, reason=fault.reason)


def _faults(kind: Any, value: Any, keys: Keys, *, is_secret: bool = False) -> Iterator[_Fault]:
    whole, kind = kind, _meant(kind, value)
    hints = _hints(kind)
    if hints is not None and isinstance(value, dict):
        for key in value:
            if key not in hints:
                yield _Fault((*keys, str(key)), keys, unknown_key(key, hints), False)
        for name in _required(kind):
            if name not in value:
                reason = f"the key {name!r} is missing; it must be {words_for(hints[name])}"
                yield _Fault(keys, keys, reason, False)
        for key, item in value.items():
            if key in hints:
                yield from _faults(hints[key], item, (*keys, key), is_secret=key in _secrets(kind))
    elif isinstance(value, list) and get_origin(kind) in _LISTS:
        for position, (one, item) in enumerate(zip(_item_kinds(kind, len(value)), value, strict=False)):
            yield from _faults(one, item, (*keys, position), is_secret=is_secret)
    elif isinstance(value, dict) and get_origin(kind) in _MAPPINGS:
        for key, item in value.items():
            yield from _faults(get_args(kind)[0], key, (*keys, str(key)), is_secret=is_secret)
            yield from _faults(get_args(kind)[1], item, (*keys, str(key)), is_secret=is_secret)
    try:
        convert(whole, value)
    except msgspec.ValidationError:
        given = "" if is_secret else f", got {shortened(value)}"
        yield _Fault(keys, keys, f"must be {words_for(whole)}{given}")


def _item_kinds(kind: Any, num_items: int) -> Sequence[Any]:
    """Return the types of the items of a list."""
    kinds = get_args(kind)
    return kinds if get_origin(kind) is tuple and kinds[-1:] != (...,) else kinds[:1] * num_items


def _meant(kind: Any, value: object) -> Any:
    """Return what a list or a mapping is meant to be: the arm of a union that is of its form."""
    if not isinstance(value, dict | list):
        return kind
    if get_origin(kind) is Annotated:
        return _meant(get_args(kind)[0], value)
    if get_origin(kind) not in _UNIONS:
        return kind
    origins = _LISTS if isinstance(value, list) else _MAPPINGS
    arms = [arm for arm in get_args(kind) if get_origin(arm) in origins]
    if isinstance(value, dict):
        arms += [arm for arm in get_args(kind) if _hints(arm) is not None]
    return arms[0] if len(arms) == 1 else kind


def _words(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata(extra_json_schema={"description": words}):
            return str(words)
        case inspect.Metadata(type=inner):
            return _words(inner)
        case inspect.UnionType(types=arms):
            return " or ".join(_words(arm) for arm in arms if not isinstance(arm, inspect.NoneType))
        case inspect.StructType(fields=fields) | inspect.DataclassType(fields=fields):
            return f"a mapping with {', '.join(one.name for one in fields)}"
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(map(str, values))  # msgspec sorts them
        case inspect.IntType() | inspect.FloatType():
            return ("a whole number" if isinstance(info, inspect.IntType) else "a number") + _bounds(info)
        case inspect.EnumType(cls=cls):
            return "one of " + ", ".join(str(one.value) for one in cls)
        case inspect.TupleType(item_types=items):
            return f"a list with {', '.join(map(_words, items))}"
        case inspect.CollectionType(item_type=item):
            return f"a list{' that is not empty' if info.min_length else ''}, each {_words(item)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType(min_length=least):
            return "a text that is not empty" if least else "a text"
        case inspect.CustomType(cls=cls):
            return "a path" if cls is Path else "a value that only code can give"
        case inspect.DictType():
            return "a mapping"
        case inspect.AnyType():
            return "a value"
        case inspect.BytesType():
            return "a text in base64"
    return f"a {type(info).__name__.removesuffix('Type').lower()}"


def _bounds(info: inspect.IntType | inspect.FloatType) -> str:
    match info.ge, info.gt, info.le:
        case least, None, most if least is not None and most is not None:
            return f" from {least} to {most}"
        case None, above, most if above is not None:
            return f" above {above}" + (f", at most {most}" if most is not None else "")
        case least, None, None if least is not None:
            return f" of at least {least}"
    return "" if info.le is None else f" of at most {info.le}"


@cache
def _ignores_keys(kind: Hashable) -> bool:
    """Return whether msgspec ignores unknown keys of the type, as it does in dataclasses."""
    return "DataclassType(" in repr(inspect.type_info(_written(kind)))


@cache
def _hints(kind: Any) -> Mapping[str, Any] | None:
    """Return the types of the keys of a struct or a dataclass; None of other types."""
    if not isinstance(kind, type) or not (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)):
        return None
    return get_type_hints(kind, include_extras=True)


@cache
def _secrets(kind: Any) -> frozenset[str]:
    """Return the keys of a dataclass whose values it does not print; messages do not, either."""
    found = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return frozenset(one.name for one in found if not one.repr)


def _required(kind: Any) -> Iterator[str]:
    if issubclass(kind, msgspec.Struct):
        yield from (one.name for one in msgspec.structs.fields(kind) if one.required)
        return
    for one in dataclasses.fields(kind):
        if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
            yield one.name
