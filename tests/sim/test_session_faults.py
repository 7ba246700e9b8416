"""Sessions under random faults: each variable settles once, and every KV block returns.

Set STRETTO_FAULT_RUNS to run more seeds than a normal run does.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from support.random_faults import draw_faults

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.text import parse_graph
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import deploy
from stretto.model.errors import EngineFailure, QueryEnded
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, LLMTask, Objective, QueryRecord
from stretto.model.values import Failure
from stretto.sched.actions import Reply, Settled
from stretto.sched.messages import Close, Drop, Extend, Open, Provide, Unwant, Want
from stretto.sched.orders import ORDERS
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import SimulatedModel
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import filler_output

NUM_RUNS = int(os.environ.get("STRETTO_FAULT_RUNS", "40"))
PROFILE = Profile(base_s=0.02, per_unit_s=0.001, per_output_s=0.02)


def graph(text: str) -> ExecutionGraph:
    return compile_graph(parse_graph(text), {"llm": PROFILE})


CALL = graph("""
    graph call(%x: any)
      %kv = prefill([c"Tell me of this: ", %x]) : kv @llm
      %y  = decode(%kv) {max_tokens=30} : text @llm
      return %y
""")
TWO = graph("""
    graph two(%x: any)
      %k1 = prefill([c"First: ", %x]) : kv @llm
      %y  = decode(%k1) {max_tokens=20} : text @llm
      %k2 = prefill([c"First: ", %x, %y.kv, c" and then: "]) : kv @llm
      %z  = decode(%k2) {max_tokens=20} : text @llm
      return %y, %z
""")
JOIN = graph("""
    graph join(%x: any, %w: any)
      %y = aggregate(x=%x, w=%w) {join=" "} : text
      return %y
""")
GRAPHS = (CALL, CALL, TWO, JOIN)


@dataclass
class Caller:
    """A caller with one session, who does something at random times until it closes the session."""

    query: str
    draw: random.Random
    names: list[str] = field(default_factory=lambda: ["v0"])
    num_made: int = 0

    def plan(self, driver: VirtualDriver) -> float:
        """Plan everything; return the time of the end."""
        draw, at_s = self.draw, self.draw.uniform(0.0, 1.0)
        driver.send(Open(self.query, QueryRecord()), at_s)
        for _ in range(draw.randint(3, 12)):
            at_s += draw.expovariate(8.0)
            name = draw.choice(self.names)
            criteria: Objective = draw.choice(("latency", "throughput"))
            match draw.choice(("extend", "extend", "extend", "want", "provide", "leave", "drop")):
                case "extend":
                    made = draw.choice(GRAPHS)
                    bind = {one: draw.choice(self.names) for one in made.inputs}
                    for output, _, _ in made.outputs:
                        self.num_made += 1
                        self.names.append(f"v{self.num_made}")
                        bind[output] = self.names[-1]
                    driver.send(Extend(self.query, made, bind), at_s)
                case "want":
                    driver.send(Want(self.query, name, criteria, draw.choice((None, at_s + 0.5))), at_s)
                case "provide":
                    driver.send(Provide(self.query, "v0", "a text"), at_s)
                case "leave":
                    driver.send(Want(self.query, name, criteria), at_s)
                    driver.send(Unwant(self.query, name, criteria), at_s + 0.3)
                case "drop" if name != "v0":  # its name could be used again, for another variable
                    self.names.remove(name)
                    driver.send(Drop(self.query, name), at_s)
        at_s += draw.choice((0.1, 60.0))  # while it runs, or after
        driver.send(Close(self.query), at_s)
        return at_s


@pytest.mark.parametrize("seed", range(NUM_RUNS))
def test_each_variable_settles_once_and_every_block_returns(seed: int) -> None:
    draw = random.Random(f"sessions/{seed}")
    num_instances = draw.randint(1, 3)
    llm = deploy(
        "llm",
        FakeLLM,
        FakeLLMConfig(),
        contract="llm",
        instances=num_instances,
        policy=draw.choice(sorted(ORDERS)),
        placement=draw.choice(("least_seconds", "stretto", "parrot")),
        timeout_s=draw.choice((4.0, 10.0)),
        max_attempts=draw.choice((3, 20)),
        max_running=draw.choice((2, 8)),
        keeps_state=True,
        profile=PROFILE,
    )
    scheduler = SchedulerConfig(
        num_blocks=draw.choice((60, 300)),
        block_tokens=8,
        max_running=draw.choice((3, 8)),
        max_batch_tokens=64,
        with_events=True,
    )

    def length(task: LLMTask, decode: Decode) -> int:
        return 1 + sum(f"{task.query}{task.step}{seed}".encode()) % decode.max_tokens

    model = SimulatedModel(scheduler, ProfileCost(PROFILE), filler_output(length), keeps_released=False)
    settled: Counter[tuple[str, str]] = Counter()
    values: list[object] = []
    replies: Counter[str] = Counter()

    def on_settled(event: Settled) -> None:
        settled[event.query, event.name] += 1
        values.append(event.value)

    def on_reply(event: Reply) -> None:
        replies[event.query] += 1

    callers = [Caller(f"s{number}", draw) for number in range(draw.randint(1, 4))]
    queries = [caller.query for caller in callers]
    driver = VirtualDriver(
        [llm],
        seed=seed,
        jitter=draw.choice((0.0, 0.2)),
        check=seed % 20 == 0,  # each instant: slow
        models={"llm": model},
        faults=draw_faults(seed, {"llm": num_instances}, queries[1:], 8.0),
        keeps=False,
        on_settled=on_settled,
        on_reply=on_reply,
    )
    for caller in callers:
        caller.plan(driver)
    driver.run()
    assert replies == Counter(queries)
    assert set(settled.values()) <= {1}
    assert all(
        settled[queries[0], f"v{number + 1}"] for number in range(callers[0].num_made)
    )  # not cancelled
    for value in values:
        assert not isinstance(value, Failure) or isinstance(value.error, EngineFailure | QueryEnded)
    assert driver.system.is_idle()
    driver.system.check_invariants()
    for instance in driver.instances.stepped():
        instance.scheduler.check_invariants()
        assert instance.scheduler.cache.num_available == scheduler.num_blocks
