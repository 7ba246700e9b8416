"""Ready-made component that cuts documents into chunks, for components that read them one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stretto.apps.components.builder import Builder
from stretto.apps.components.component import Component, check_chunks
from stretto.graph.graph import Ref
from stretto.graph.ops import Port


class Splitting(Component):
    """A component of an app that cuts documents into chunks, in the order of the documents."""

    ports = (Port("files", "list[document]"),)
    outs: ClassVar[Mapping[str, str]] = {"chunks": "list[chunk]"}

    @dataclass(frozen=True)
    class Config:
        """Settings of the component `Splitting`: the most tokens of a chunk, how many of them it may repeat
        from the one before, and the name of the engine, whose tokenizer counts.
        """

        tokens: int = 256
        overlap: int = 0
        engine: str = "chunking"

        def __post_init__(self) -> None:
            check_chunks(self.tokens, self.overlap)

    def lower(self, build: Builder, config: Config) -> Mapping[str, Ref]:
        """Add the step `chunk` to the app's graph, applied document by document."""
        settings = {"tokens": config.tokens, "overlap": config.overlap}
        files = (build.take("files", each=True),)
        return {
            "chunks": build.add(
                "chunks", "chunk", files, engine=config.engine, config=settings, hints=("batchable",)
            )
        }
