"""Programs that do not fit into KV memory together, under random faults: each query ends once, and no room is
lost.

Set STRETTO_FAULT_RUNS to run more than a normal run does.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from support.faults import FaultPlan
from support.random_faults import draw_faults

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto.graph.compile import compile_graph
from stretto.graph.text import parse_graph
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import EngineFailure, QueryEnded
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, LLMTask, Objective
from stretto.sched.actions import Admit, Reply
from stretto.sched.messages import EndProgram, Event, Submit
from stretto.sched.orders import ORDERS
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import SimulatedModel
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import chars, filler_output

NUM_RUNS = int(os.environ.get("STRETTO_FAULT_RUNS", "6"))
PROFILE = Profile(base_s=0.02, per_unit_s=0.001, per_output_s=0.02)
BLOCK_TOKENS = 16
ONE = compile_graph(
    parse_graph("""
    graph one(%x: any)
      %kv = prefill([%x]) : kv @llm
      %y  = decode(%kv) {max_tokens=30} : text @llm
      return %y
"""),
    {"llm": PROFILE},
)
TWO = compile_graph(
    parse_graph("""
    graph two(%x: any)
      %k1 = prefill([%x]) : kv @llm
      %y  = decode(%k1) {max_tokens=20} : text @llm
      %k2 = prefill([%x, %y.kv, c" and then: "]) : kv @llm
      %z  = decode(%k2) {max_tokens=20} : text @llm
      return %z
"""),
    {"llm": PROFILE},
)


@dataclass
class Agents:
    """Agents whose every turn is a query, with names of programs that may be wrong.

    With `is_rough`, queries are of all classes, have deadlines and are cancelled.
    """

    draw: random.Random
    is_rough: bool
    driver: VirtualDriver | None = None
    texts: dict[str, str] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    num_sent: int = 0
    ends: Counter[str] = field(default_factory=Counter)

    def begin(self, driver: VirtualDriver, number: int) -> None:
        """Plan the first turns of agents."""
        self.driver = driver
        for agent in (f"a{n}" for n in range(number)):
            self.left[agent] = self.draw.randint(1, 6)
            self.texts[agent] = chars(agent, 4 * self.draw.randint(20, 700))
            at_s = self.draw.uniform(0.0, 5.0)
            driver.at(at_s, lambda agent=agent: [self.turn(agent)])  # type: ignore[misc]

    def turn(self, agent: str) -> Event:
        """Return the next turn of an agent."""
        self.left[agent] -= 1
        self.num_sent += 1
        self.texts[agent] += chars(f"{agent} {self.num_sent}", 4 * self.draw.randint(4, 60))
        program = self.draw.choice(
            (agent, agent, agent, self.draw.choice(list(self.left)), "", str(self.num_sent))
        )
        self.names.add(program)
        query, graph = f"{agent}/{self.num_sent}", self.draw.choice((ONE, ONE, TWO))
        streamed = self.draw.random() < 0.5
        assert self.driver is not None
        now_s = self.driver.now_s
        objective: Objective = "throughput"
        deadline_s = None
        if self.is_rough:
            if self.draw.random() < 0.2:
                self.driver.cancel(query, now_s + self.draw.choice((0.05, 1.0, 5.0)))
            deadline_s = self.draw.choice((None, None, None, now_s + 8.0))
            objective = self.draw.choice(("throughput", "throughput", "latency", "offline"))
        inputs = {"x": self.texts[agent]}
        return Submit(
            query,
            graph,
            inputs,
            deadline_s,
            objective=objective,
            is_streamed=streamed,
            program=program,
        )

    def on_reply(self, reply: Reply) -> None:
        """Plan the next turn."""
        assert self.driver is not None
        self.ends[reply.query] += 1
        agent = reply.query.split("/")[0]
        now_s = self.driver.now_s
        if self.left[agent]:
            think_s = self.draw.choice((0.0, 0.3, 2.0, 20.0))
            self.driver.at(now_s + think_s, lambda: [self.turn(agent)])
        elif self.draw.random() < 0.5:
            self.driver.send(EndProgram(agent), now_s)


def engine(draw: random.Random, kv_tokens: int) -> Deployment:
    told = draw.choice((None, kv_tokens, kv_tokens, int(0.6 * kv_tokens), 2 * kv_tokens))
    return deploy(
        "llm",
        FakeLLM,
        FakeLLMConfig(),
        contract="llm",
        instances=draw.randint(1, 3),
        policy=draw.choice(sorted(ORDERS)),
        placement=draw.choice(("stretto", "least_seconds", "round_robin", "least_loaded")),
        timeout_s=draw.choice((10.0, 30.0)),
        max_attempts=draw.choice((3, 20)),
        max_running=draw.choice((2, 8)),
        max_batch=kv_tokens,
        keeps_state=draw.random() < 0.5,
        profile=PROFILE,
        kv_tokens=told,
    )


def run(seed: int, *, has_faults: bool) -> tuple[VirtualDriver, Agents]:
    draw = random.Random(seed)
    num_blocks = draw.choice((80, 120, 400))
    llm = engine(draw, num_blocks * BLOCK_TOKENS)
    scheduler = SchedulerConfig(
        num_blocks,
        block_tokens=BLOCK_TOKENS,
        max_running=8,
        max_batch_tokens=256,
        with_events=draw.random() < 0.5,
    )

    def length(task: LLMTask, decode: Decode) -> int:
        return 1 + sum(f"{task.query}{task.step}{seed}".encode()) % 20

    agents = Agents(draw, has_faults)
    instances = {"llm": len(llm.replicas)}
    faults = (
        draw_faults(seed, instances, [f"a{n}/{n + 1}" for n in range(5)], 30.0) if has_faults else FaultPlan()
    )
    driver = VirtualDriver(
        [llm],
        seed=seed,
        models={
            "llm": SimulatedModel(scheduler, ProfileCost(PROFILE), filler_output(length), keeps_released=True)
        },
        faults=faults,
        check=seed % 4 == 0,
        on_reply=agents.on_reply,
    )
    if has_faults:
        for _ in range(draw.choice((0, 0, 3, 8))):
            at_s, slot = draw.uniform(0.0, 30.0), draw.randrange(len(llm.replicas))
            match draw.choice(("add", "kill", "finish", "suspend")):
                case "add":
                    driver.add("llm", llm.replicas[0], at_s)
                case "kill":
                    driver.lose("llm", slot, at_s)
                case "finish" | "suspend" as how:
                    driver.drain("llm", slot, at_s, how)
    agents.begin(driver, draw.randint(6, 20) if has_faults else draw.randint(2, 12))
    driver.run()
    return driver, agents


@pytest.mark.parametrize("has_faults", [True, False])
@pytest.mark.parametrize("seed", range(NUM_RUNS))
def test_every_turn_ends_once_and_all_room_returns(seed: int, has_faults: bool) -> None:
    driver, agents = run(seed, has_faults=has_faults)
    assert set(agents.ends.values()) == {1}
    assert len(agents.ends) == agents.num_sent
    assert driver.system.is_idle()
    for reply in driver.replies.values():
        if reply.error is not None:
            assert has_faults
            assert isinstance(reply.error, EngineFailure | QueryEnded)
    scheduler = driver.system.schedulers["llm"]
    assert scheduler.picture().held == ()
    driver.system.handle([EndProgram(name) for name in sorted(agents.names | set(agents.left))], driver.now_s)
    driver.system.check_invariants()
    assert not any(one.claimed_tokens for one in scheduler.picture().instances)


def test_programs_are_held_in_these_workloads() -> None:
    longest_s = []
    for seed in range(10):
        driver, _ = run(seed, has_faults=False)
        longest_s.append(max(a.held_s for _, a in driver.actions if isinstance(a, Admit)))
    assert sum(held_s > 0 for held_s in longest_s) >= 3
