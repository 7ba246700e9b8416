"""What a simulated LLM instance evicts when its schedulers know what is needed again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.machines import compiled

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from benchmarks.common.simulated_answers import as_max_tokens
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import deploy
from stretto.model.profile import Profile
from stretto.model.tasks import Done
from stretto.sched.actions import Action, Retain
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event
from stretto.sched.observer import Observer
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import LLMInstance, SimulatedModel
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import filler, filler_output

PROFILE = Profile(base_s=0.25, per_unit_s=0.0078125, per_output_s=0.0625)
READ_TWICE = compiled(
    """
    graph read(%doc: text, %junk: text)
      %k1 = prefill([c"Read. ", %doc, c"First question?"]) : kv @llm
      %a1 = decode(%k1) {max_tokens=8} : text @llm
      %k2 = prefill([c"Think. ", %a1, %junk]) : kv @llm
      %a2 = decode(%k2) {max_tokens=8} : text @llm
      %k3 = prefill([c"Think again. ", %a2, %junk]) : kv @llm
      %a3 = decode(%k3) {max_tokens=8} : text @llm
      %k4 = prefill([c"Read. ", %doc, c"Second question? ", %a3]) : kv @llm
      %a4 = decode(%k4) {max_tokens=8} : text @llm
      return %a4
    """,
    {"llm": PROFILE},
)


class _Seen(Observer):
    """An observer that counts cached prompt tokens and hints."""

    def __init__(self) -> None:
        self.num_cached: list[int] = []
        self.retains: list[Retain] = []

    def on_event(self, event: Event, now_s: float) -> None:
        if isinstance(event, LLMReport) and isinstance(event.event, Done):
            self.num_cached.append(event.event.usage.num_cached_tokens)

    def on_action(self, action: Action, now_s: float) -> None:
        if isinstance(action, Retain):
            self.retains.append(action)


def simulate(num_blocks: int, *, keeps_released: bool = False, num_queries: int = 1) -> tuple[_Seen, object]:
    """Run the app on an instance of `num_blocks` blocks; return what was seen, and the answers."""
    seen = _Seen()
    config = SchedulerConfig(num_blocks=num_blocks, block_tokens=16, max_running=4, max_batch_tokens=256)
    model = SimulatedModel(config, ProfileCost(PROFILE), filler_output(as_max_tokens))
    llm = deploy(
        "llm", FakeLLM, FakeLLMConfig(), contract="llm", keeps_state=True, timeout_s=None, profile=PROFILE
    )
    driver = VirtualDriver(
        [llm],
        models={"llm": replace(model, keeps_released=keeps_released)},
        observers=(seen,),
        check=True,
    )
    for number in range(num_queries):
        inputs = {"doc": filler(f"doc {number}", 160), "junk": filler(f"junk {number}", 160)}
        driver.submit(f"q{number}", READ_TWICE, inputs, at_s=3.0 * number)
    return seen, {query: reply.outputs for query, reply in driver.run().items()}


def test_a_document_that_is_read_again_outlives_what_was_used_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompts of the two steps in between fill the cache, which least recent use would empty for them."""
    told, answers = simulate(24)
    monkeypatch.setattr(LLMInstance, "retain", lambda *_: None)
    untold, same_answers = simulate(24)
    assert told.num_cached[-1] >= 160 > untold.num_cached[-1]
    assert answers == same_answers


def test_an_ended_query_leaves_no_promise_where_its_prefixes_stay() -> None:
    seen, _ = simulate(24, keeps_released=True, num_queries=6)
    assert seen.retains
    assert len(seen.num_cached) == 24
