"""Metrics in Prometheus's text format. All names stand in `metric_table.py`.

A family is a name with its kind; a sample is one line. The names of counters end in `_total` in the text. A
histogram has samples for each of its bounds (those at most that large), their sum and their count.

Source: the Prometheus text format 0.0.4.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeAlias

from stretto.model.errors import BadReply

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MetricKind: TypeAlias = Literal["gauge", "counter", "histogram"]

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?[ \t]+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """The declaration of one metric that a server publishes at `/metrics`: its name, kind and help text.

    Its values are `Sample`s with the same `name`; those of a histogram add endings to the name.

    Attributes:
        labels: names of the labels that its samples have, in order.
        bounds: upper bounds of a histogram, in rising order.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    def sample(self, value: float, *labels: str) -> Sample:
        """Return one value of the metric, whose labels have these values."""
        return Sample(self.name, value, dict(zip(self.labels, labels, strict=True)))


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric with its labels: one line of the text that a server publishes at `/metrics`."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


Published: TypeAlias = tuple[Family, list[Sample]]
"""A metric and its values, as a server publishes them."""


def one_value_each(values: Mapping[Family, float], *labels: str) -> list[Published]:
    """Return metrics that have one value each, with the same values of their labels."""
    return [(family, [family.sample(value, *labels)]) for family, value in values.items()]


class Histogram:
    """A Prometheus histogram: it counts observed values by upper bounds, given in rising order."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = (*bounds, math.inf)
        self._counts = [0] * len(self._bounds)
        self._total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value in the histogram that was observed so many times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def samples(self, family: Family, *values: str) -> list[Sample]:
        """Return the lines of the histogram for `/metrics`, whose labels have these values: the number of
        values up to each bound, then their count and sum.
        """
        labels = dict(zip(family.labels, values, strict=True))
        samples, so_far = [], 0
        for bound, count in zip(self._bounds, self._counts, strict=True):
            so_far += count
            samples.append(Sample(f"{family.name}_bucket", so_far, {**labels, "le": _number(bound)}))
        samples.append(Sample(f"{family.name}_count", so_far, labels))
        samples.append(Sample(f"{family.name}_sum", self._total, labels))
        return samples


def render(families: Iterable[Published]) -> str:
    """Return metrics and their values in Prometheus's text format, as `/metrics` serves them. A metric that
    several parts of a server publish stands there once, with the values of all.
    """
    lines: list[str] = []
    merged: dict[Family, list[Sample]] = {}
    for family, samples in families:
        merged.setdefault(family, []).extend(samples)
    for family, samples in merged.items():
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += [f"{sample.name}{_labels(sample.labels)} {_number(sample.value)}" for sample in samples]
    return "".join(f"{line}\n" for line in lines)


def read_samples(text: str, names: Collection[str]) -> Iterator[Sample]:
    """Read the text of a server's `/metrics`, and yield the values of the metrics in `names`, in order.

    Raises:
        BadReply: one of these values is not a finite number.
    """
    for name, labels, value in _SAMPLE.findall(text):
        if name in names:
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if not math.isfinite(number):
                raise BadReply(f"the server's metrics have {name} at {value!r:.100}")
            yield Sample(name, number, {key: _unescaped(said) for key, said in _LABEL.findall(labels)})


def _labels(labels: Mapping[str, str]) -> str:
    return f"{{{','.join(map(_label, labels.items()))}}}" if labels else ""


@lru_cache(4096)
def _label(label: tuple[str, str]) -> str:
    """Return a label with its value: nearly all stand in many lines."""
    name, value = label
    return f'{name}="{_escaped(value)}"'


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _unescaped(value: str) -> str:
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], value)


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else repr(float(value))
