"""The load of LLM requests that have been assigned to an instance and wait until they fit there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stretto.cluster.instances import InstanceTable
from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Bound, Unbound
from stretto.cluster.placement_request import PlacementRequest
from stretto.sched.llm.instance_choice import PolicyCalls
from stretto.sched.llm.shared_context import SharedContext


class WaitingLoads:
    """What waits at each instance, as placement policies see it in the table.

    Attributes:
        context: blocks of the prompts of what runs and waits at each instance.
    """

    def __init__(self, table: InstanceTable, policy: PolicyCalls) -> None:
        self.context = SharedContext()
        self._table = table
        self._policy = policy

    def wait(
        self, instance: InstanceId, request: PlacementRequest, seconds: float, prefill_s: float, now_s: float
    ) -> None:
        """Add a request to the load of the instance in whose queue it waits from now on.

        `seconds` is the predicted time by which it delays the next request there, of which `prefill_s` is the
        prefill.
        """
        self._policy.tell(Bound(instance, request, now_s))
        num_tokens = request.all_tokens - self.context.add(instance, request)
        self.change(instance, 1, num_tokens, seconds, prefill_s)

    def wait_no_more(
        self, instance: InstanceId, request: PlacementRequest, seconds: float, prefill_s: float
    ) -> None:
        """Take a request out of the waiting load of an instance, because it has left that instance's queue:
        it starts, moves or was cancelled.

        `seconds` and `prefill_s` are those that were told when it joined the queue.
        """
        self._policy.tell(Unbound(instance, request))
        num_tokens = request.all_tokens - self.context.remove(instance, request)
        self.change(instance, -1, -num_tokens, -seconds, -prefill_s)

    def change(
        self,
        instance: InstanceId,
        num: int = 0,
        num_tokens: int = 0,
        seconds: float = 0.0,
        prefill_s: float = 0.0,
    ) -> None:
        """Change the load of an instance by so much."""
        view = self._table.get(instance)
        if view is None or not (num or num_tokens):
            return
        view.num_waiting += num
        view.waiting_tokens += num_tokens
        view.waiting_s = max(0.0, view.waiting_s + seconds) if view.num_waiting else 0.0
        view.waiting_prefill_s = max(0.0, view.waiting_prefill_s + prefill_s) if view.num_waiting else 0.0
        self._table.changed(instance)

    def num_repeated(
        self,
        instance: InstanceId,
        running: Sequence[PlacementRequest],
        waiting: Iterable[PlacementRequest],
    ) -> int:
        """Return how many tokens of requests that wait at an instance count no more, because others that run
        or wait there have them too. For tests: computed anew.
        """
        both = self.context.num_repeated(instance, [*running, *waiting])
        return both - self.context.num_repeated(instance, running)
