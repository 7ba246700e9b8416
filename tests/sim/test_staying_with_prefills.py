"""Answers stay with the prefill that was made ahead for them, unless it is much faster elsewhere."""

from __future__ import annotations

import random

from support.machines import compiled

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from benchmarks.common.simulated_answers import as_max_tokens
from stretto.engines.batch.calls import Calls, CallsConfig
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import deploy
from stretto.model.profile import Profile
from stretto.sched.actions import Admit
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import SimulatedModel
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import filler, filler_output

NUM_QUERIES = 150
RATE_PER_S = 5.0
PROFILE = Profile(base_s=0.01, per_unit_s=0.0003, per_output_s=0.02, per_neighbour_s=0.0008)
MODEL = SimulatedModel(
    SchedulerConfig(num_blocks=1600, block_tokens=16),
    ProfileCost(PROFILE),
    filler_output(as_max_tokens),
)
ASK = compiled(
    """
    graph ask(%rules: text, %question: text)
      %found  = call(%question) {function="find", result="text"} : text @search
      %begun  = prefill([%rules]) : kv @llm
      %kv     = prefill([%rules, %found], hint=%begun) : kv @llm
      %answer = decode(%kv) {max_tokens=100} : text @llm
      return %answer
    """
)


def test_most_answers_on_16_instances_stay_with_their_prefills() -> None:
    """Without a margin, more than half of them go to an instance that looks a little faster."""
    llm = deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm", instances=16, profile=PROFILE)
    finding = CallsConfig({"find": lambda question: filler(question, 300)})
    search = deploy("search", Calls, finding, instances=64, max_batch=1, profile=Profile(base_s=0.5))
    driver = VirtualDriver([llm, search], models={"llm": MODEL})
    draw = random.Random(0)
    at_s = 0.0
    for number in range(NUM_QUERIES):
        at_s += draw.expovariate(RATE_PER_S)
        rules = filler(f"rules {number}", draw.choice((100, 400, 800)))
        driver.submit(f"{number}", ASK, {"rules": rules, "question": f"question {number}"}, at_s=at_s)
    replies = driver.run()
    assert not [reply.error for reply in replies.values() if reply.error is not None]
    admits = [action for _, action in driver.actions if isinstance(action, Admit)]
    begun = {admit.task.query: admit.instance for admit in admits if admit.task.decode is None}
    assert len(begun) == NUM_QUERIES
    left = [
        admit.task.query
        for admit in admits
        if admit.task.decode is not None and admit.instance != begun[admit.task.query]
    ]
    assert len(left) <= NUM_QUERIES * 0.3
