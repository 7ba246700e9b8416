"""A reader of reStructuredText that refuses substitutions which would not fit in memory."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from docutils import nodes
from docutils.readers import standalone
from docutils.transforms import Transform

_MAX_EXPANSION = 1_000_000  # nodes and characters of all substitutions together


class CheckSubstitutions(Transform):
    """A docutils transform (a pass over a parsed document) that refuses a document whose substitutions would
    expand to too much text.

    It counts before docutils expands them, because nested substitutions multiply.
    """

    default_priority = 219  # right before docutils substitutes

    def apply(self) -> None:
        """Raise ValueError if the document's substitutions expand to too much, or refer to each other."""
        definitions = {name.lower(): node for name, node in self.document.substitution_defs.items()}
        uses = {name: _references(node) for name, node in definitions.items()}
        sizes: dict[str, int] = {}
        try:
            for name in TopologicalSorter(uses).static_order():
                if name in definitions:
                    own = len(definitions[name].astext()) + sum(1 for _ in definitions[name].findall())
                    sizes[name] = own + sum(sizes[used] for used in uses[name])
                else:
                    sizes[name] = 1
        except CycleError as error:
            raise ValueError("its substitutions refer to each other in a circle") from error
        if sum(sizes.get(used, 1) for used in _references(self.document)) > _MAX_EXPANSION:
            raise ValueError(f"its substitutions expand to more than {_MAX_EXPANSION} nodes and characters")


class RstReader(standalone.Reader):  # type: ignore[type-arg]  # generic in the stubs alone
    """A reader of reStructuredText: docutils' own, which also refuses documents with too large
    substitutions.
    """

    def get_transforms(self) -> list[type[Transform]]:
        """Return the transforms that docutils applies to a document, and the check of its substitutions."""
        return [*super().get_transforms(), CheckSubstitutions]


def _references(node: nodes.Element) -> list[str]:
    return [str(found["refname"]).lower() for found in node.findall(nodes.substitution_reference)]
