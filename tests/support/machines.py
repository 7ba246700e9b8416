"""What tests of single machines need: nodes and work without a graph around them, and a checked `System`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stretto.core import Segment
from stretto.costs.profile import Profile
from stretto.engine import Engine
from stretto.engines.scripted.fake import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from stretto.graph.compile import ExecutionGraph, Node, compile_graph
from stretto.graph.text import parse_graph
from stretto.messages import Action, Event, Reply, WakeAt
from stretto.sched.request import Request
from stretto.sched.system import System
from stretto.tasks import Decode

_EMBED, _DECODE = compile_graph(
    parse_graph(
        "graph g(%xs: list[text], %kv: kv)\n%e = embed(each %xs) : any @e\n%d = decode(%kv) : text @llm"
    ),
    {},
).nodes


def batch_request(
    query: str, name: str, items: Sequence[object], *, depth: int = 0, path_s: float = 0.0, **changes: Any
) -> Request:
    """An `embed` of `items` that waits at a batch engine."""
    node = replace(_EMBED, name=name, depth=depth, path_s=path_s)
    return Request(
        **{
            "query": query,
            "node": node,
            "step": name,
            "lo": 0,
            "hi": len(items),
            "inputs": {"texts": list(items)},
            "each": ("texts",),
            **changes,
        }
    )


def llm_request(
    query: str, name: str, tokens: int, *, depth: int = 0, num: int = 1, **changes: Any
) -> Request:
    """`num` requests of `tokens` each, up to half of them to be decoded; a hint is to the whole prompt.

    No more are decoded than are expected of a step that nothing is known of.
    """
    node: Node = replace(_DECODE, name=name, depth=depth, path_s=changes.pop("path_s", 0.0))
    decode = changes.pop("decode", Decode(min(tokens // 2, 256)))
    num_prompt = tokens - (decode.max_tokens if decode else 0)
    if "hint" in changes:
        changes.setdefault("num_held_tokens", num_prompt)
    return Request(
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
            **changes,
        }
    )


def batch_engine(name: str = "e", **changes: Any) -> Engine:
    """A registered batch engine; machines never run it."""
    return Engine(name, FakeBatch, FakeBatchConfig(), **{"max_batch": 4, "timeout_s": None, **changes})


def llm_engine(name: str = "llm", **changes: Any) -> Engine:
    """A registered LLM engine."""
    options = {"max_batch": 1024, "timeout_s": None, "profile": Profile(), **changes}
    return Engine(name, FakeLLM, FakeLLMConfig(), kind="llm", **options)


def compiled(text: str, profiles: Mapping[str, Profile] | None = None) -> ExecutionGraph:
    """The execution graph of a graph in text form."""
    return compile_graph(parse_graph(text), profiles or {})


class CheckedSystem(System):
    """Checks every invariant after every event; remembers the replies."""

    replies: dict[str, Reply]

    def handle(self, events: Sequence[Event], now_s: float) -> list[Action]:
        """As the system does, but alarms are left out of the answer (they are in `alarms_s`)."""
        actions = super().handle(events, now_s)
        self.check_invariants()
        self.alarms_s = [action.time_s for action in actions if isinstance(action, WakeAt)]
        if not hasattr(self, "replies"):
            self.replies = {}
        for action in actions:
            if isinstance(action, Reply):
                assert action.query not in self.replies
                self.replies[action.query] = action
        return [action for action in actions if not isinstance(action, WakeAt)]
