"""The classes of the requests that run at each instance, and how much room the strictest of them leaves.

A step takes longer the more tokens are in flight at an instance. Requests of the class "latency" want short
steps, so an instance that runs one of them has room for fewer tokens than fit. Requests of the class
"throughput" want many tokens in flight.

Source: Parrot §5.4, where 4,096 tokens are the room at a latency of 40 ms. Differs: the room follows from the
times that the instance is known or measured to take.

That requests for latency and for throughput meet at an instance costs seconds; nothing, where all requests
are of one class. Else:

- a request for latency takes room from those for throughput that run or wait at an instance, for as long as
  it runs, unless another one for latency has taken it already or waits there to take it. At an instance with
  few of them it takes the room of the next, so that they count there as on the average instance;
- a request for throughput that has no room beside those for latency waits until one of them ends, and
  perhaps another one that comes meanwhile;
- its prefill delays those for latency, whose seconds weigh more than those of others.

Source: own; Parrot §5.4 has the principle.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Bound, Dispatched, Ended, Joined, Left, PlacementEvent, Unbound
from stretto.cluster.placement_request import PlacementRequest

LATENCY_TOKENS = 4096
"""Tokens in flight beside requests for latency, where it is not known how long steps take."""
LATENCY_STRETCH = 4 / 3
"""How much longer a step may take for requests for latency than a step of one sequence alone."""


@dataclass(slots=True)
class ClassLoad:
    """The requests at one instance: how many run, by class, and the tokens of those for throughput; how many
    for latency wait there.
    """

    num_latency: int = 0
    num_throughput: int = 0
    throughput_tokens: int = 0
    num_waiting_latency: int = 0


NOTHING = ClassLoad()
"""What runs at an instance that has got no request."""


class ClassLoads:
    """The classes of the requests that run at each instance, as a placement policy is told of them.

    Attributes:
        num_latency: number of requests for latency that run at any instance.
        num_throughput: number of all other requests that run at any instance.
        throughput_tokens: number of their tokens.
        num_instances: number of instances that have joined.
    """

    def __init__(self) -> None:
        self.num_latency = self.num_throughput = self.throughput_tokens = self.num_instances = 0
        self._loads: dict[InstanceId, ClassLoad] = {}

    def of(self, instance: InstanceId) -> ClassLoad:
        """Return what runs or waits at an instance, by class. The caller must not change it."""
        return self._loads.get(instance, NOTHING)

    def observe(self, event: PlacementEvent) -> None:
        """Count requests that begin to run or have ended, and those that wait at an instance."""
        if isinstance(event, Dispatched):
            self._add(self._of(event.instance), event.request, 1)
        elif isinstance(event, Ended):
            if (found := self._loads.get(event.instance)) is not None:
                self._add(found, event.request, -1)
        elif isinstance(event, Bound):
            if event.request.purpose.preference == "latency":
                self._of(event.instance).num_waiting_latency += 1
        elif isinstance(event, Unbound):
            if event.request.purpose.preference == "latency" and event.instance in self._loads:
                self._loads[event.instance].num_waiting_latency -= 1
        elif isinstance(event, Joined):
            self.num_instances += 1
        elif isinstance(event, Left):
            self.num_instances -= 1
            left = self._loads.pop(event.instance, NOTHING)
            self.num_latency -= left.num_latency
            self.num_throughput -= left.num_throughput
            self.throughput_tokens -= left.throughput_tokens

    def _of(self, instance: InstanceId) -> ClassLoad:
        load = self._loads.get(instance)
        if load is None:
            load = self._loads[instance] = ClassLoad()
        return load

    def _add(self, load: ClassLoad, request: PlacementRequest, sign: int) -> None:
        num_tokens = sign * (request.num_tokens + request.expected_output)
        if request.purpose.preference == "latency":
            load.num_latency += sign
            self.num_latency += sign
        else:
            load.num_throughput += sign
            load.throughput_tokens += num_tokens
            self.num_throughput += sign
            self.throughput_tokens += num_tokens


def latency_room(view: InstanceView, request: PlacementRequest) -> int:
    """Return how many tokens may be in flight at an instance while requests for latency run there.

    With so many, a step takes `LATENCY_STRETCH` times as long as one sequence alone. What a token adds to a
    step is measured there; before that, it follows from the profile and the mean length of the requests
    there, or of `request`.
    """
    profile = view.profile
    spare_s = (LATENCY_STRETCH - 1) * profile.per_output_s
    mean_tokens = view.running_tokens / view.num_running if view.num_running else request.all_tokens
    if view.per_resident_s is not None and spare_s:
        tokens = mean_tokens + spare_s / view.per_resident_s if view.per_resident_s else view.capacity_tokens
    elif spare_s and profile.per_neighbour_s:
        tokens = mean_tokens * (1 + spare_s / profile.per_neighbour_s)
    else:
        tokens = LATENCY_TOKENS
    return round(min(tokens, view.capacity_tokens))


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
