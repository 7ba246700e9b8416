"""A batch op that somebody might add: all that belongs to it is here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stretto import DEFAULT, Component, Input, Template, deploy
from stretto.apps.components.builder import Builder
from stretto.costs.mean_output import num_tokens
from stretto.engines.batch.applications import OpApplication, answer_batch
from stretto.graph.graph import Ref
from stretto.graph.op_workloads import text_of_words
from stretto.graph.ops import MeasuredBatch, OpSpec, Port
from stretto.model.profile import Profile
from stretto.model.tasks import Task


def _workloads() -> Iterator[MeasuredBatch]:
    for num_words in (5, 50):
        for count in (1, 2, 4):
            yield MeasuredBatch(
                count, {"texts": [text_of_words(num_words, i) for i in range(count)]}, ("texts",)
            )


REDACT = OpSpec(
    "redact",
    (Port("texts", "text"),),
    "text",
    tokens=lambda inputs: num_tokens(str(inputs["texts"])),
    synthetic=lambda inputs, settings: "x" * len(str(inputs["texts"])),
    workloads=_workloads,
)


@dataclass(frozen=True, slots=True)
class RedactingConfig:
    """The words that nobody is to read."""

    words: tuple[str, ...] = ("secret",)


class Redacting:
    """A batch engine that hides words."""

    op_names = (REDACT.name,)

    def __init__(self, config: RedactingConfig) -> None:
        self._words = config.words

    def run(self, tasks: Sequence[Task]) -> list[object]:
        return answer_batch(tasks, {REDACT.name: self._redact})

    def release(self, query: str) -> None: ...

    def close(self) -> None: ...

    def _redact(self, applications: Sequence[OpApplication]) -> list[object]:
        return [
            " ".join("…" if word in self._words else word for word in one.require("texts", str).split())
            for one in applications
        ]


class Redaction(Component):
    """Hide words in each text of a list."""

    ports = (Port("texts", "list[text]"),)
    outs = {"texts": "list[text]"}  # noqa: RUF012

    def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
        args = (build.take_each_if_list("texts", "texts"),)
        return {"texts": build.add("redacted", REDACT.name, args, engine="redacting")}


vocabulary = DEFAULT.with_op(REDACT)
redaction = Redaction(texts=Input("texts", "list[text]"))
app = Template("redact", redaction, {"texts": redaction["texts"]}, vocabulary)
engine = deploy("redacting", Redacting, RedactingConfig(), profile=Profile(0.001, 0.002), runs_in="loop")
