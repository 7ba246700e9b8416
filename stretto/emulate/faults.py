"""Faults of emulated servers, on request: plain data, and how it is read.

    slow           steps last `factor` times as long
    hang           nothing is answered any more
    refuse         every request is refused with HTTP `status`
    die            connections break, further ones are refused
    restart        as `die`; then the server starts again, with an empty cache
    late_events    KV events come `delay_s` late
    lost_events    a share of the messages with KV events never comes

A fault begins `after_s` seconds after it is requested and ends `for_s` seconds later, or never. `die` has no
end, and `restart` ends with the loading of the model. Seconds are real ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

from stretto.model.errors import ConfigError
from stretto.wire.errors import RequestRefused, unacceptable
from stretto.wire.fields import Fields, Reader, number_from, text

FaultKind: TypeAlias = Literal["slow", "hang", "refuse", "die", "restart", "late_events", "lost_events"]


@dataclass(frozen=True, slots=True)
class ServerFault:
    """One fault of one emulated server.

    Attributes:
        after_s: seconds from the request to the beginning.
        for_s: seconds from the beginning to the end; None for no end.
        factor: how much longer steps take ("slow").
        delay_s: lateness of events ("late_events").
        share: share of the messages that are lost ("lost_events").
        status: HTTP status of all answers ("refuse").
    """

    kind: FaultKind
    after_s: float = 0.0
    for_s: float | None = None
    factor: float = 1.0
    delay_s: float = 0.0
    share: float = 1.0
    status: int = 503

    def to_json(self) -> dict[str, object]:
        """Return the fault as it is requested."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value != _DEFAULTS.get(name)}


_DEFAULTS = {field.name: field.default for field in fields(ServerFault)}
_MOST = 1e9
"""Largest number of seconds, and largest factor: times beyond cannot be planned."""
_READERS: Mapping[str, Reader[Any]] = {
    "after_s": number_from(0, _MOST),
    "for_s": number_from(0, _MOST),
    "factor": number_from(0, _MOST, is_open=True),
    "delay_s": number_from(0, _MOST),
    "share": number_from(0, 1),
    "status": lambda name, value: int(number_from(400, 599)(name, value)),
}


def read_fault(body: Mapping[str, Any]) -> ServerFault:
    """Read a fault from JSON. Raises RequestRefused if a field is unknown or its value cannot be used."""
    sent = Fields(body)
    kind = sent.take("kind", text, "")
    if kind not in get_args(FaultKind):
        raise unacceptable("kind", f"kind must be one of {', '.join(get_args(FaultKind))}, got {kind!r}.")
    values = {name: sent.take(name, read, _DEFAULTS[name]) for name, read in _READERS.items()}
    if left := sent.left():
        raise unacceptable(next(iter(left)), f"a fault has no {next(iter(left))!r}.")
    return ServerFault(kind, **values)  # type: ignore[arg-type]


def parse_fault(option: str) -> tuple[int, ServerFault]:
    """Read an option such as "replica=0,kind=slow,factor=5,after_s=10"; return the replica and its fault.

    Raises:
        ConfigError: it has another form, or a value that cannot be used.
    """
    sent: dict[str, Any] = {}
    for setting in option.split(","):
        name, equals, value = setting.strip().partition("=")
        if not equals:
            raise ConfigError(f"--fault {option!r}: {setting!r} is not of the form name=value")
        try:
            sent[name] = float(value) if name != "kind" else value
        except ValueError:
            sent[name] = math.nan
    replica = sent.pop("replica", 0.0)
    if not (replica >= 0 and replica.is_integer()):
        raise ConfigError(f"--fault {option!r}: replica must be a number from 0 on")
    try:
        return int(replica), read_fault(sent)
    except RequestRefused as error:
        raise ConfigError(f"--fault {option!r}: {error}") from error
