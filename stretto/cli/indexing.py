"""Indexing of documents before the questions are asked, as a run of an app of its own, and its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stretto.apps.components.component import Component
from stretto.apps.template import Configuration, Template
from stretto.engines.batch.chunking import check_sizes, max_tokens
from stretto.engines.batch.local_models import model_name
from stretto.model.references import Reference
from stretto.model.values import Chunk
from stretto.sched.engine_events import BatchDone
from stretto.sched.messages import Event
from stretto.trace.recorder import Recorder

NAME = "indexing"
READING = 4
"""Number of the way in which files are read and cut; it grows when the same file gives other chunks."""


def indexing_of(template: Template) -> Component:
    """Return the component of a RAG app that indexes the documents."""
    return next(component for component in template.components if component.name == NAME)


def indexing_template(template: Template) -> Template:
    """Return an app that only indexes documents, as `template` does before it answers."""
    indexing = indexing_of(template)
    return Template(
        f"{template.name}_{NAME}", indexing, {"indexed": indexing["indexed"]}, template.vocabulary
    )


def recipe(template: Template, configuration: Configuration, embedder: str, counted_by: str) -> str:
    """Return a text that says how documents are cut and embedded: chunk sizes and embedding model.

    It is stored with a collection's documents; those with another text are indexed again.

    Args:
        counted_by: model in whose tokens chunks are measured.

    Raises:
        ConfigError: chunks of that size are too large for that model.
    """
    settings = {**vars(indexing_of(template).config), **configuration.get(NAME, {})}
    check_sizes(settings["tokens"], settings["overlap"], max_tokens(counted_by))
    sizes = f"tokens={settings['tokens']} overlap={settings['overlap']}"
    return f"{sizes} reading={READING} model={model_name(embedder)}"


def recipe_before(recipe: str) -> str:
    """Return a recipe as journals without checksums have it: it does not say how documents are read."""
    return recipe.replace(f" reading={READING}", "", 1)


def embedder_of(recipe: str) -> str:
    """Return the name of the embedding model in a recipe, a text that says how documents were cut and
    embedded.
    """
    return recipe.partition(" model=")[2]


@dataclass(slots=True)
class Indexed:
    """The progress of indexing: numbers of documents cut into chunks, of chunks, and of chunks embedded and
    stored.
    """

    num_documents: int = 0
    num_chunks: int = 0
    num_embedded: int = 0
    num_stored: int = 0


class IndexingRecorder(Recorder):
    """A recorder of what ran when that also counts what has been indexed.

    It calls `on_progress` with the counts whenever they change.
    """

    def __init__(self) -> None:
        super().__init__()
        self.indexed = Indexed()
        self.on_progress: Callable[[Indexed], None] = lambda indexed: None

    def on_event(self, event: Event, now_s: float) -> None:
        """Record what a message to the schedulers says has happened, and count what a batch has indexed."""
        if isinstance(event, BatchDone):
            self._count(event)
        super().on_event(event, now_s)

    def _count(self, event: BatchDone) -> None:
        span = self._batches.get((event.engine, event.instance, event.batch))
        for part, result in zip(span.parts if span is not None else (), event.results, strict=False):
            match part.op:
                case "chunk":
                    self.indexed.num_documents += part.num_items
                    self.indexed.num_chunks += _num_chunks(result)
                case "embed":
                    self.indexed.num_embedded += part.num_items
                case "ingest":
                    self.indexed.num_stored += part.num_items
        self.on_progress(self.indexed)


def _num_chunks(value: object) -> int:
    if isinstance(value, Chunk | Reference):
        return 1
    return sum(map(_num_chunks, value)) if isinstance(value, list | tuple) else 0
