"""A small simulated LLM instance, and graphs of queries for it."""

from __future__ import annotations

from dataclasses import replace

from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, LLMTask
from stretto.sim.llm_instance import SimulatedModel
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import filler_output
from support.machines import compiled

PROFILE = Profile(base_s=0.25, per_unit_s=0.0078125, per_output_s=0.0625)
HEAD = "You are a helpful assistant who answers in one word, or in two. "
TEXT = compiled(
    f'graph t(%q: text)\n%k = prefill([c"{HEAD}", %q]) : kv @llm\n'
    "%a = decode(%k) {max_tokens=24} : text @llm\nreturn %a"
)
ITEMS = compiled(
    f'graph i(%q: text)\n%k = prefill([c"{HEAD}", %q]) : kv @llm\n'
    '%a = decode(%k) {items="json_list", max_tokens=30} : list[text] @llm\n'
    "%v = embed(each~1 %a) : list[vector] @e\nreturn %v"
)
PARTIAL = compiled(
    f'graph p(%q: text)\n%h = prefill([c"{HEAD}"]) : kv @llm\n'
    f'%k = prefill([c"{HEAD}", %q], hint=%h) : kv @llm\n'
    "%a = decode(%k) {max_tokens=9} : text @llm\nreturn %a"
)
GRAPHS = (TEXT, ITEMS, PARTIAL)


def length(task: LLMTask, decode: Decode) -> int:
    """Return an output length that differs for every query and is below the limit."""
    return 1 + sum(task.query.encode()) % decode.max_tokens


def model(**changes: object) -> SimulatedModel:
    scheduler = SchedulerConfig(num_blocks=64, block_tokens=4, max_running=6, max_batch_tokens=32)
    made = SimulatedModel(scheduler, ProfileCost(PROFILE), filler_output(length))
    return replace(made, **changes)  # type: ignore[arg-type]
