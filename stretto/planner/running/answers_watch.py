"""The lengths of a run's answers, and how far the answers under way have come."""

from __future__ import annotations

from collections import Counter

from stretto.messages import Event, LLMReport
from stretto.observer import Observer
from stretto.tasks import Done, Failed, Started


class AnswersWatch(Observer):
    """Notes the lengths of all answers of each node, and the calls under way.

    Engines need not tell how many tokens they have generated. So an answer under way is taken to grow as fast
    as those of the same node that have ended.

    Attributes:
        lengths: numbers of answers by tokens, by node.
    """

    def __init__(self) -> None:
        self.lengths: dict[str, Counter[int]] = {}
        self._started: dict[str, dict[int, float]] = {}
        self._ended: dict[str, tuple[int, float]] = {}
        self._now_s = 0.0

    def running(self, node: str) -> list[int]:
        """Return about how many tokens each answer of a node under way has, in the order of their begins."""
        tokens, seconds = self._ended.get(node, (0, 0.0))
        rate = tokens / seconds if seconds > 0 else 0.0
        return [int((self._now_s - start_s) * rate) for start_s in self._started.get(node, {}).values()]

    def note(self, node: str, num_tokens: int) -> None:
        """Count an answer, which may be of an earlier run."""
        self.lengths.setdefault(node, Counter())[num_tokens] += 1

    def on_event(self, event: Event, now_s: float) -> None:
        """Note that an answer begins or ends."""
        if not isinstance(event, LLMReport):
            return
        self._now_s = now_s
        node = event.engine
        match event.event:
            case Started(task):
                self._started.setdefault(node, {})[task] = now_s
            case Done(task, _, usage):
                self.note(node, usage.num_output_tokens)
                start_s = self._started.get(node, {}).pop(task, None)
                if start_s is not None:
                    tokens, seconds = self._ended.get(node, (0, 0.0))
                    self._ended[node] = tokens + usage.num_output_tokens, seconds + now_s - start_s
            case Failed(task):
                self._started.get(node, {}).pop(task, None)
