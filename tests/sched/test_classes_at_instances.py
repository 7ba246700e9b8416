"""Classes in the LLM scheduler: what waits beside requests for latency, and what a late get moves."""

from __future__ import annotations

from itertools import count
from typing import Any

from support.machines import llm_engine, llm_request, serving

from stretto.cluster.placements.stretto import Stretto
from stretto.model.profile import Profile
from stretto.model.tasks import Done, Piece, Usage
from stretto.sched.actions import Admit
from stretto.sched.llm.scheduler import LLMScheduler
from stretto.sched.queries.demand import Demand

PROFILE = Profile(per_unit_s=0.001, per_output_s=0.03, per_neighbour_s=0.001)
LATENCY, BATCH = Demand("latency"), Demand("throughput")
GROUP = Demand("latency", job="end", stage=2, group="end#2")


class Machine:
    """A scheduler of one engine with the policy `stretto`, checked after every call."""

    def __init__(self, instances: int = 1, **options: Any) -> None:
        self.deployment = llm_engine(
            instances=instances, max_batch=20_000, max_running=64, profile=PROFILE, **options
        )
        engine = self.deployment.engine
        self.scheduler = serving(LLMScheduler(engine, PROFILE, Stretto(), count(1)), self.deployment)
        self.admitted: dict[str, Admit] = {}

    def add(self, step: str, demand: Demand, now_s: float = 0.0, num: int = 1) -> list[str]:
        self.scheduler.add(llm_request(step, step, 400, demand=demand, num=num), now_s)
        return self.schedule(now_s)

    def schedule(self, now_s: float) -> list[str]:
        admits = [action for action in self.scheduler.schedule(now_s) if isinstance(action, Admit)]
        self.admitted |= {admit.task.step: admit for admit in admits}
        self.scheduler.check_invariants()
        return [admit.task.step for admit in admits]

    def end(self, step: str, now_s: float) -> list[str]:
        admit = self.admitted[step]
        self.scheduler.report(admit.instance, Done(admit.task.id, "x", Usage()), now_s)
        return self.schedule(now_s)


def test_a_batch_fills_what_a_chat_leaves_and_the_rest_waits_for_its_end() -> None:
    """A step of eleven sequences takes a third longer than of one, so room is for eleven."""
    machine = Machine()
    assert machine.add("chat", LATENCY) == ["chat"]
    assert machine.add("batch", BATCH, num=15) == ["batch"] * 10
    assert machine.scheduler.picture().num_waiting == 5
    assert machine.end("chat", 1.0) == ["batch"] * 5


def test_a_batch_waits_for_chats_no_longer_than_the_age_limit() -> None:
    machine = Machine(age_limit_s=4.0)
    machine.add("chat", LATENCY)
    machine.add("batch", BATCH, num=11)
    assert machine.scheduler.not_before_s is not None
    assert machine.scheduler.not_before_s <= 4.0
    assert machine.schedule(3.9) == []
    assert machine.schedule(4.0) == ["batch"]


def test_chats_go_out_at_once_beside_a_batch() -> None:
    machine = Machine()
    assert machine.add("batch", BATCH, num=30) == ["batch"] * 30
    assert machine.add("chat", LATENCY) == ["chat"]
    assert machine.add("more", BATCH) == [], "the chat needs the room"
    assert machine.end("batch", 1.0) == []


def test_the_class_of_a_group_is_told_to_instances() -> None:
    machine = Machine()
    machine.add("map", GROUP)
    machine.add("chat", LATENCY)
    assert machine.admitted["map"].task.objective == "throughput"
    assert machine.admitted["chat"].task.objective == "latency"


def test_a_late_stricter_get_lets_what_waits_go_out() -> None:
    machine = Machine()
    machine.add("chat", LATENCY)
    machine.add("batch", BATCH, num=10)
    assert machine.add("asked", BATCH) == []
    machine.scheduler.ask("asked", {llm_request("asked", "asked", 400).node.id: LATENCY})
    assert machine.schedule(1.0) == ["asked"]
    assert machine.admitted["asked"].task.objective == "latency"


def test_what_becomes_a_group_is_known_as_one_where_it_waits() -> None:
    machine = Machine()
    machine.add("chat", LATENCY)
    machine.add("batch", BATCH, num=10)
    machine.add("late", BATCH)
    machine.scheduler.ask("late", {llm_request("late", "late", 400).node.id: GROUP})
    assert machine.schedule(1.0) == []
    (waiting,) = machine.scheduler._placing.bound()
    assert waiting.demand == GROUP
    assert machine.end("chat", 2.0) == ["late"]


def test_the_time_of_tokens_is_measured_where_answers_are_shown() -> None:
    """Ten tokens in 0.5 s, 20 ms more each than by itself, beside 400 tokens in flight."""
    machine = Machine()
    machine.add("chat", LATENCY)
    admit = machine.admitted["chat"]
    machine.scheduler.report(admit.instance, Piece(admit.task.id, "a"), 1.0)
    machine.scheduler.report(
        admit.instance, Done(admit.task.id, "a", Usage(num_prompt_tokens=1, num_output_tokens=11)), 1.5
    )
    (view,) = machine.scheduler._loads.table
    assert view.per_resident_s is not None
    assert abs(view.per_resident_s - 0.02 / 400) < 0.01 / 400
