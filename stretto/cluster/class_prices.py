"""What it costs in seconds that requests for latency and for throughput meet at an instance.

Nothing, where all requests are of one class. Else:

- a request for latency takes room from those for throughput that run or wait at an instance, for as long as
  it runs, unless another one for latency has taken it already or waits there to take it. At an instance with
  few of them it takes the room of the next, so that they count there as on the average instance;
- a request for throughput that has no room beside those for latency waits until one of them ends, and
  perhaps another one that comes meanwhile;
- its prefill delays those for latency, whose seconds weigh more than those of others.

Source: own; Parrot §5.4 has the principle.
"""

from __future__ import annotations

from stretto.cluster.class_loads import ClassLoads, latency_room
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.placement_request import PlacementRequest

_LATENCY_WEIGHT = 4.0
"""Weight of a second of delay of a request for latency; that of a request for throughput is 1."""
_TURNS = 2
"""Number of answers for latency that a request for throughput is taken to wait for. Found by trial: with 1,
batches and chats of a simulated load that is too high for both take longer."""


class ClassPrices:
    """The prices of placing requests of unlike classes at one instance, and the room that they leave.

    Attributes:
        loads: what runs and waits at each instance, which is to be told of all events.
    """

    def __init__(self) -> None:
        self.loads = ClassLoads()

    def seconds(
        self, request: PlacementRequest, view: InstanceView, prefill_s: float, decode_s: float
    ) -> float:
        """Return the price of a request at an instance, where it takes so many seconds."""
        is_for_latency = request.purpose.preference == "latency"
        if not is_for_latency and not self.loads.num_latency:
            return 0.0
        load = self.loads.of(view.id)
        if is_for_latency and load.num_latency + load.num_waiting_latency:
            return 0.0
        room = latency_room(view, request)
        if is_for_latency:
            num_here = min(load.throughput_tokens, view.running_tokens) + view.waiting_tokens
            num_others = max(num_here, self.loads.throughput_tokens / max(1, self.loads.num_instances))
            return (prefill_s + decode_s) * min(1.0, num_others / max(1, room))
        if not load.num_latency:
            return 0.0
        delay_s = (_LATENCY_WEIGHT - 1.0) * load.num_latency * prefill_s
        if view.running_tokens + view.waiting_tokens + request.new_tokens(view) <= room:
            return delay_s
        return delay_s + _TURNS * view.expected_output * view.profile.decode_s(view.num_running)

    def admits(self, request: PlacementRequest, view: InstanceView, now_s: float) -> bool:
        """Return whether the requests for latency that run at an instance leave room for a request.

        Requests for latency never wait for each other's room, and no request waits beyond its
        `yields_until_s`.
        """
        purpose = request.purpose
        if purpose.preference == "latency" or not self.loads.of(view.id).num_latency:
            return True
        has_room = view.running_tokens + request.new_tokens(view) <= latency_room(view, request)
        return has_room or now_s >= purpose.yields_until_s
