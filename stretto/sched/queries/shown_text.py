"""The text of unfinished outputs that callers have already seen, which must never change."""

from __future__ import annotations

from collections.abc import Sequence
from io import SEEK_END, StringIO

from stretto.graph.execution_graph import Node, StreamedOutput
from stretto.model.errors import BadReply
from stretto.model.values import ABSENT, Failure
from stretto.sched.queries.live_values import Values


class ShownText:
    """A record of the text of unfinished outputs that callers of one query have already seen,
    and which must not change.
    """

    def __init__(self) -> None:
        self._streamed: dict[int, tuple[StreamedOutput, ...]] = {}
        self._shown: dict[tuple[int, str], StringIO] = {}
        self._nodes: dict[str, dict[int, None]] = {}

    def add(self, node_id: int, outputs: tuple[StreamedOutput, ...]) -> None:
        """Register a decode node whose text may be shown to callers while it is
        still being generated, or an `expand` node, which is replaced by a graph with such steps.

        `outputs` are the outputs of the query that may turn out to be the decode's text;
        which one does may only be known later, for example when a branch has been chosen.
        """
        if outputs:
            self._streamed[node_id] = outputs
            for output in outputs:
                self._nodes.setdefault(output.name, {})[node_id] = None

    def within(self, node: Node, inner: Sequence[StreamedOutput]) -> tuple[StreamedOutput, ...]:
        """Return what the streamed outputs of an inner step are in the query, whose `expand` node `node`
        contains the step.

        `inner` has the outputs of the inner graph that the step's text may become.
        """
        return tuple(
            StreamedOutput(outer.name, (*outer.unless, *one.unless))
            for outer in self._streamed.get(node.id, ())
            for one in inner
        )

    def may_show(self, node: Node) -> bool:
        """Return whether text of a decode may be shown to the caller before it ends, because
        it may be the text of an output.
        """
        return bool(self._streamed.get(node.id))

    def show(self, node: Node, offset: int, text: str, values: Values) -> list[tuple[str, str]]:
        """Record a piece of a decode's text; return (output, new text) pairs that may be
        shown to the caller now.

        Text is shown once it is certain that it is the text of that output, and only the part that was not
        shown before.

        Raises:
            BadReply: a second attempt contradicts what was shown.
        """
        new_text = []
        for output in self._streamed.get(node.id, ()):
            shown = self._shown.get((node.id, output.name)) or StringIO()
            num_shown = shown.tell()
            num_again = max(0, num_shown - offset)
            again, new = text[:num_again], text[num_again:]
            if again and _part(shown, offset, len(again)) != again:
                raise BadReply("a second attempt decoded another text than was shown", step=node.name)
            is_certain = all(
                values[value] is ABSENT or isinstance(values[value], Failure) for value in output.unless
            )
            if is_certain and new and offset <= num_shown:
                new_text.append((output.name, new))
                shown.write(new)
                self._shown[node.id, output.name] = shown
        return new_text

    def conceal(self, name: str) -> None:
        """Show no more text as the output `name`, because its variable was given up: another variable may get
        that name.
        """
        for node_id in self._nodes.pop(name, ()):
            outputs = self._streamed[node_id]
            self._streamed[node_id] = tuple(output for output in outputs if output.name != name)
            self._shown.pop((node_id, name), None)

    def drop(self, node: Node) -> None:
        """Forget which text of a decode node was shown, as the node has ended."""
        for output in self._streamed.pop(node.id, ()):
            self._shown.pop((node.id, output.name), None)
            nodes = self._nodes.get(output.name, {})
            nodes.pop(node.id, None)
            if not nodes:
                self._nodes.pop(output.name, None)

    def check_end(self, node: Node, value: object) -> None:
        """Check that the whole `value` of a decode begins with the text that was already
        shown to the caller. Raises BadReply.
        """
        for output in self._streamed.get(node.id, ()):
            shown = self._shown.get((node.id, output.name)) or StringIO()
            if not isinstance(value, str) or not value.startswith(shown.getvalue()):
                raise BadReply("the text it streamed is not what it returned", step=node.name)


def _part(shown: StringIO, offset: int, num_chars: int) -> str:
    """Return `num_chars` characters of a text from character `offset` on; its position stays at its end."""
    shown.seek(offset)
    part = shown.read(num_chars)
    shown.seek(0, SEEK_END)
    return part
