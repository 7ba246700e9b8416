"""The description of a request for the placement policy, which chooses its instance: its lengths, its owner,
and where its beginning is held.
"""

from __future__ import annotations

from stretto.cluster.messages import InstanceId
from stretto.cluster.placement_request import PlacementRequest, Purpose
from stretto.cluster.prompt_keys import PromptKeys
from stretto.sched.llm.expected_outputs import ExpectedOutputs
from stretto.sched.llm.prefills_ahead import PrefillsAhead
from stretto.sched.queries.request import QueueEntry


class PlacementRequests:
    """A function object that describes the next item of a queue entry to the
    placement policy, which chooses an instance by it.
    """

    def __init__(
        self, outputs: ExpectedOutputs, ahead: PrefillsAhead, keys: PromptKeys, age_limit_s: float
    ) -> None:
        self._outputs = outputs
        self._age_limit_s = age_limit_s
        self._ahead = ahead
        self._keys = keys

    def __call__(
        self, entry: QueueEntry, now_s: float, bound_to: InstanceId | None = None, ahead_s: float = 0.0
    ) -> PlacementRequest:
        """Return the description.

        `bound_to` and `ahead_s` are given for a request that waits at an instance already.
        """
        request = entry.request
        hint = self._ahead.hint_of(request)
        held = {} if hint.instance is None else {hint.instance: hint.num_tokens}
        tenant = request.record.tenant
        return PlacementRequest(
            entry.num_units(entry.lo, entry.lo + 1),
            self._outputs.expected(request),
            self._keys.of(request.prompts[entry.lo - request.lo], tenant),
            held,
            held if hint.is_running else {},
            tenant,
            max(0.0, entry.demand.start_by_s - now_s),
            bound_to,
            ahead_s,
            self.purpose(entry),
        )

    def purpose(self, entry: QueueEntry) -> Purpose:
        """Return what a queue entry is scheduled for now.

        Jobs and groups of two sessions never have one name.
        """
        demand = entry.demand
        is_offline = entry.request.record.criteria == "offline"
        return Purpose(
            demand.preference or ("offline" if is_offline else "throughput"),
            f"{entry.query} {demand.job}" if demand.job else "",
            f"{entry.query} {demand.group}" if demand.group else "",
            entry.arrival_s + self._age_limit_s,
        )
