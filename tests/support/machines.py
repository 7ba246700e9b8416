"""Helpers of the tests of single machines: nodes and work without a graph around them, and a checked
`System`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from stretto.apps.vocabulary import DEFAULT
from stretto.cluster.messages import StartInstance
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph, Node
from stretto.graph.text import parse_graph
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import StrettoError
from stretto.model.profile import Profile
from stretto.model.replica import Replica
from stretto.model.tasks import Decode
from stretto.model.values import Segment
from stretto.sched.actions import Action, Reply, WakeAt
from stretto.sched.engine_events import AddInstance, InstanceReady
from stretto.sched.engines.batch_scheduler import BatchScheduler
from stretto.sched.llm.scheduler import LLMScheduler
from stretto.sched.messages import Event
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import StepRequest
from stretto.sched.queries.results import Report
from stretto.sched.system import ExpandWith, System
from stretto.sched.vocabulary import Vocabulary

_EMBED, _DECODE = compile_graph(
    parse_graph(
        "graph g(%xs: list[text], %kv: kv)\n%e = embed(each %xs) : any @e\n%d = decode(%kv) : text @llm"
    ),
    {},
).nodes


def batch_request(
    query: str, name: str, items: Sequence[object], *, depth: int = 0, path_s: float = 0.0, **changes: Any
) -> StepRequest:
    """An `embed` of `items` that waits at a batch engine."""
    node = replace(_EMBED, name=name, depth=depth, path_s=path_s)
    return StepRequest(
        **{
            "query": query,
            "node": node,
            "step": name,
            "lo": 0,
            "hi": len(items),
            "inputs": {"texts": list(items)},
            "each": ("texts",),
            "demand": Demand("throughput", path_s=path_s),
            **changes,
        }
    )


def llm_request(
    query: str, name: str, tokens: int, *, depth: int = 0, num: int = 1, **changes: Any
) -> StepRequest:
    """`num` requests of `tokens` each, up to half of them to be decoded; a hint is to the whole prompt.

    No more are decoded than are expected of a step that nothing is known of.
    """
    node: Node = replace(
        _DECODE,
        name=name,
        depth=depth,
        path_s=changes.pop("path_s", 0.0),
        template=changes.pop("template", ""),
    )
    decode = changes.pop("decode", Decode(min(tokens // 2, 256)))
    num_prompt = tokens - (decode.max_tokens if decode else 0)
    if "hint" in changes:
        changes.setdefault("num_held_tokens", num_prompt)
    return StepRequest(
        **{
            "query": query,
            "node": node,
            "step": name,
            "lo": 0,
            "hi": num,
            "inputs": {},
            "each": ("kv",),
            "prompts": ((Segment(f"{query}.{name}"),),) * num,
            "decode": decode,
            "units": (num_prompt,) * num,
            "demand": Demand("throughput", path_s=node.path_s),
            **changes,
        }
    )


def batch_engine(name: str = "e", **changes: Any) -> Deployment:
    """A batch engine with its replicas; machines never run it."""
    return deploy(name, FakeBatch, FakeBatchConfig(), **{"max_batch": 4, "timeout_s": None, **changes})


def llm_engine(name: str = "llm", **changes: Any) -> Deployment:
    """An LLM engine with its replicas."""
    options = {"max_batch": 1024, "timeout_s": None, "profile": Profile(), **changes}
    return deploy(name, FakeLLM, FakeLLMConfig(), contract="llm", **options)


Machine = TypeVar("Machine", BatchScheduler, LLMScheduler)


def serving(scheduler: Machine, deployment: Deployment) -> Machine:
    """Add and ready an instance of every replica; their ids count from 0."""
    for replica in deployment.replicas:
        add_ready(scheduler, replica, 0.0)
    return scheduler


def add_ready(scheduler: BatchScheduler | LLMScheduler, replica: Replica, now_s: float) -> int:
    """Add an instance of a replica that is ready at once; return its id."""
    (start,) = scheduler.instances.add(replica, now_s)
    assert isinstance(start, StartInstance)
    scheduler.ready(start.instance, now_s)
    return start.instance


def lost(
    scheduler: BatchScheduler | LLMScheduler, instance: int, error: StrettoError, now_s: float = 0.0
) -> list[Report]:
    """Let an instance die, and make ready what is started in its place, at once or later."""
    reports, actions = scheduler.lost(instance, error, now_s)
    if not actions:
        due_s = scheduler.instances.fleet.next_due_s()
        assert due_s is not None
        actions = scheduler.expire(due_s)[1]
    start_all(scheduler, actions, now_s)
    return reports


def start_all(scheduler: BatchScheduler | LLMScheduler, actions: Iterable[Action], now_s: float) -> list[int]:
    """Ready every instance that is to be started; return their ids."""
    ids = [action.instance for action in actions if isinstance(action, StartInstance)]
    for instance in ids:
        scheduler.ready(instance, now_s)
    return ids


def compiled(text: str, profiles: Mapping[str, Profile] | None = None) -> ExecutionGraph:
    """The execution graph of a graph in text form."""
    return compile_graph(parse_graph(text), profiles or {})


class CheckedSystem(System):
    """A `System` that checks every invariant after every event, and remembers the replies.

    It begins with every replica ready. Unless told not to, it readies whatever is started later, at once.
    """

    def __init__(
        self,
        deployments: Iterable[Deployment],
        expand: ExpandWith | None = None,
        *,
        readies: bool = True,
        vocabulary: Vocabulary = DEFAULT,
    ) -> None:
        given = tuple(deployments)
        super().__init__(given, expand, vocabulary)
        self.replies: dict[str, Reply] = {}
        self.alarms_s: list[float] = []
        self._readies = True
        self.handle([AddInstance(d.name, replica) for d in given for replica in d.replicas], 0.0)
        self._readies = readies

    def handle(self, events: Sequence[Event], now_s: float) -> list[Action]:
        """Handle an event as the system does, but leave alarms out of the answer (they are in `alarms_s`)."""
        actions = super().handle(events, now_s)
        self.check_invariants()
        if self._readies and (starts := [a for a in actions if isinstance(a, StartInstance)]):
            ready = [InstanceReady(start.engine, start.instance) for start in starts]
            actions += super().handle(ready, now_s)
            self.check_invariants()
        self.alarms_s = [action.time_s for action in actions if isinstance(action, WakeAt)]
        for action in actions:
            if isinstance(action, Reply):
                assert action.query not in self.replies
                self.replies[action.query] = action
        return [action for action in actions if not isinstance(action, WakeAt)]
