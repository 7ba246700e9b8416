"""The placement policy `scorers`: a weighted sum of scores between 0 and 1.

Source: the default scorers of llm-d's endpoint picker: prefix (weight 3), queue (2), KV use (2), and for
requests without any hit the instance that had none for the longest time (2).
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.cluster.index_members import HeldTokens
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Left, PlacementEvent
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.prefix_index import PrefixIndex
from stretto.cluster.scored_placement import ScoredPlacement

_PREFIX, _QUEUE, _KV, _NO_HIT = 3.0, 2.0, 2.0, 2.0
_NEUTRAL = 0.5


class Scorers(ScoredPlacement):
    """A placement policy that adds up weighted scores for the held prefix, the queue, the use of KV memory,
    and the turn of instances to get a prompt that no instance holds.

    Terms are what is missing from the best score, so that the lowest sum wins.
    """

    names = ("prefix", "queue", "kv_use", "no_hit_turn")

    def __init__(self, index: PrefixIndex | None = None) -> None:
        super().__init__(index)
        self._cold: dict[InstanceId, int] = {}
        self._num_cold = 0
        self._turn: dict[InstanceId, float] = {}
        self._queue_range = (0, 1)

    def prepare(
        self, request: PlacementRequest, options: Sequence[InstanceView], held: HeldTokens, now_s: float
    ) -> None:
        """Find the shortest and the longest queue, and the order in which instances get cold prompts."""
        queues = [view.num_waiting for view in options]
        self._queue_range = min(queues), max(queues)
        self._turn = {}
        if not any(map(held.of, options)):
            order = sorted(options, key=lambda view: self._cold.get(view.id, 0))
            self._turn = {view.id: n / max(1, len(order) - 1) for n, view in enumerate(order)}

    def terms(
        self, request: PlacementRequest, view: InstanceView, held_tokens: int, now_s: float
    ) -> tuple[float, ...]:
        """Return what is missing from the best scores, each with its weight."""
        shortest, longest = self._queue_range
        queue = (view.num_waiting - shortest) / max(1, longest - shortest)
        return (
            _PREFIX * (1.0 - held_tokens / max(1, request.num_tokens)),
            _QUEUE * queue,
            _KV * min(1.0, view.running_tokens / view.capacity_tokens),
            _NO_HIT * self._turn.get(view.id, _NEUTRAL),
        )

    def placed(self, instance: InstanceId, request: PlacementRequest) -> None:
        """Note which instance gets a prompt of which it holds nothing."""
        if not self.index.held_by(instance, request):
            self._num_cold += 1
            self._cold[instance] = self._num_cold

    def observe(self, event: PlacementEvent) -> None:
        """Update the index, and forget instances that have left."""
        super().observe(event)
        if isinstance(event, Left):
            self._cold.pop(event.instance, None)
