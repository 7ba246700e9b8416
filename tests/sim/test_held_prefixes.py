"""Prefixes of other queries, found by the reports of simulated instances."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.machines import compiled, llm_request

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from benchmarks.common.simulated_answers import as_max_tokens
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import deploy
from stretto.model.profile import Profile
from stretto.model.values import Segment
from stretto.sched.actions import Admit
from stretto.sched.llm.scheduler import LLMScheduler
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import SimulatedModel
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import filler, filler_output

PROFILE = Profile(per_unit_s=0.001, per_output_s=0.01)
MODEL = SimulatedModel(
    SchedulerConfig(num_blocks=800, block_tokens=16, with_events=True),
    ProfileCost(PROFILE),
    filler_output(as_max_tokens),
    keeps_released=True,
)
ASK = compiled(
    """
    graph ask(%rules: text, %q: text)
      %k = prefill([%rules, %q]) : kv @llm
      %a = decode(%k) {max_tokens=20} : text @llm
      return %a
    """
)


def run(model: SimulatedModel) -> tuple[VirtualDriver, dict[str, Admit]]:
    """Thirty queries one after the other, of five kinds, on three instances."""
    llm = deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm", instances=3, profile=PROFILE)
    driver = VirtualDriver([llm], models={"llm": model}, check=True)
    draw = random.Random(0)
    for number in range(30):
        inputs = {"rules": filler(f"rules {draw.randrange(5)}", 500), "q": filler(f"{number}", 20)}
        driver.submit(f"{number}", ASK, inputs, at_s=5.0 * number)
    driver.run()
    admits = [action for _, action in driver.actions if isinstance(action, Admit)]
    return driver, {admit.task.query: admit for admit in admits}


def test_a_prefix_that_another_query_left_wins_where_it_saves_time() -> None:
    _, admits = run(MODEL)
    first: dict[Segment, int] = {}
    for admit in admits.values():
        rules = admit.task.prompt[0]
        is_known = rules in first
        assert admit.instance == first.setdefault(rules, admit.instance)
        num_held = 496 if is_known else 0
        assert admit.reason == f"ends first; holds {num_held} of 520 tokens"


def test_the_key_of_a_prompt_has_the_blocks_that_its_instance_reports() -> None:
    driver, admits = run(MODEL)
    scheduler = driver.system.schedulers["llm"]
    assert isinstance(scheduler, LLMScheduler)
    reported = scheduler._loads.policy.placement.reported
    assert reported is not None
    for admit in admits.values():
        (key,) = scheduler._loads._keys.of(admit.task.prompt, "").values()
        assert len(key.blocks) == 520 // 16
        assert reported.num_held(admit.instance, key.blocks) == len(key.blocks)
    again = replace(llm_request("again", "a", 520), prompts=(admit.task.prompt,))
    assert reported.num_instances < 3
    assert scheduler._loads.num_held(again) is None  # who has not reported may hold it
    for instance in range(3):
        reported.apply(instance, ())
    assert scheduler._loads.num_held(again) == 16 * len(key.blocks)


@pytest.mark.parametrize("with_events", [False, True])
def test_without_reports_no_key_is_computed(with_events: bool) -> None:
    calls = []

    def tokenize(prompt: tuple[Segment, ...]) -> list[int]:
        calls.append(prompt)
        return MODEL.tokenize(prompt)

    _, admits = run(
        replace(MODEL, tokenize=tokenize, scheduler=replace(MODEL.scheduler, with_events=with_events))
    )
    assert len(calls) == len(admits) * (2 if with_events else 1)
