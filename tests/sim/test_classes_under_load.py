"""A map-reduce beside chats: classes and task groups in the simulator."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from statistics import fmean

from support.machines import compiled

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from benchmarks.common.simulated_answers import as_max_tokens
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.model.deployment import deploy
from stretto.model.profile import Profile
from stretto.model.tasks import Objective
from stretto.sched.actions import Admit, Emit, Settled
from stretto.sched.messages import Extend, Open, Provide, Want
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import SimulatedModel
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import filler, filler_output

NUM_MAPS = 20
CHAT_TOKENS = 120
PROFILE = Profile(base_s=0.005, per_unit_s=0.0002, per_output_s=0.025, per_neighbour_s=0.0005)
MODEL = SimulatedModel(
    SchedulerConfig(num_blocks=2000, block_tokens=16, max_running=64),
    ProfileCost(PROFILE),
    filler_output(as_max_tokens),
)
CHAT = compiled(
    f"""
    graph chat(%x: text)
      %kv = prefill([%x]) : kv @llm
      %y = decode(%kv) {{max_tokens={CHAT_TOKENS}}} : text @llm
      return %y
    """,
    {"llm": PROFILE},
)
_MAPS = "\n".join(
    f'%k{n} = prefill([c"Sum up: ", %x{n}]) : kv @llm\n%m{n} = decode(%k{n}) {{max_tokens=50}} : text @llm'
    for n in range(NUM_MAPS)
)
MAP_REDUCE = compiled(
    f"""
    graph map_reduce({", ".join(f"%x{n}: text" for n in range(NUM_MAPS))})
{_MAPS}
      %all = aggregate({", ".join(f"m{n}=%m{n}" for n in range(NUM_MAPS))}) {{join=" "}} : text
      %kv = prefill([%all]) : kv @llm
      %end = decode(%kv) {{max_tokens=50}} : text @llm
      return %end, {", ".join(f"%m{n}" for n in range(NUM_MAPS))}
    """,
    {"llm": PROFILE},
)


@dataclass
class Run:
    """What one policy did.

    Attributes:
        places: instances of the requests of each query, in the order of their admission.
        token_s: seconds of each token of each chat after its first text.
        ends_s: time at which each variable had its value, by session and name.
    """

    places: dict[str, list[int]] = field(default_factory=dict)
    token_s: list[float] = field(default_factory=list)
    ends_s: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def chat_s(self) -> float:
        return fmean(self.token_s)

    @property
    def last_behind_s(self) -> float:
        """Seconds by which the last map of a map-reduce ends after the mean one."""
        of_jobs: dict[str, list[float]] = {}
        for (query, name), end_s in self.ends_s.items():
            if name.startswith("m"):
                of_jobs.setdefault(query, []).append(end_s)
        return fmean(max(ends_s) - fmean(ends_s) for ends_s in of_jobs.values())

    @property
    def map_reduce_s(self) -> float:
        return fmean(self.ends_s[name] for name in self.ends_s if name[1] == "end") - 10.0


def run(placement: str, *, num_chats: int = 30, num_jobs: int = 1, chat_class: Objective = "latency") -> Run:
    llm = deploy(
        "llm",
        FakeLLM,
        FakeLLMConfig(),
        contract="llm",
        instances=4,
        profile=PROFILE,
        kv_tokens=32_000,
        max_running=64,
        placement=placement,
    )
    driver = VirtualDriver([llm], models={"llm": MODEL}, check=True)
    draw = random.Random(1)
    at_s = 0.0
    for number in range(num_chats):
        at_s += draw.expovariate(1.5)
        query = f"chat{number}"
        driver.send(Open(query), at_s)
        driver.send(Provide(query, "x", filler(query, draw.randrange(100, 600))), at_s)
        driver.send(Want(query, "y", chat_class), at_s)
        driver.send(Extend(query, CHAT), at_s)
    for number in range(num_jobs):
        query = f"job{number}"
        driver.send(Open(query), 10.0)
        for place in range(NUM_MAPS):
            driver.send(Provide(query, f"x{place}", filler(f"{query}/{place}", 1000)), 10.0)
        driver.send(Want(query, "end", "latency"), 10.0)
        driver.send(Extend(query, MAP_REDUCE), 10.0)
    driver.run()
    found, begun = Run(), dict[str, float]()
    for now_s, action in driver.actions:
        match action:
            case Admit(instance=instance, task=task):
                found.places.setdefault(task.query, []).append(instance)
            case Emit(query=query) if query.startswith("chat"):
                begun.setdefault(query, now_s)
            case Settled(query=query, name=name, value=value):
                assert isinstance(value, str)
                found.ends_s[query, name] = now_s
                if query in begun:
                    found.token_s.append((now_s - begun[query]) / (CHAT_TOKENS - 1))
    return found


def test_a_map_reduce_is_fast_beside_chats_whose_tokens_take_no_longer_than_their_class_allows() -> None:
    """A token of a chat by itself takes 25 ms."""
    plain, weighed = run("least_seconds"), run("stretto")
    assert weighed.map_reduce_s <= 1.15 * plain.map_reduce_s
    assert weighed.chat_s <= plain.chat_s
    assert weighed.chat_s <= 1.1 * PROFILE.per_output_s
    assert max(weighed.token_s) <= 1.5 * PROFILE.per_output_s
    assert weighed.last_behind_s <= 1.0, "the group ends together"


def test_room_for_chats_keeps_their_tokens_fast_under_a_high_load() -> None:
    """Three map-reduces at once double the time per token of chats where all room is for throughput."""
    plain, weighed = run("least_seconds", num_jobs=3), run("stretto", num_jobs=3)
    assert weighed.chat_s <= 0.97 * plain.chat_s
    assert max(weighed.token_s) <= 0.85 * max(plain.token_s)
    assert weighed.map_reduce_s <= 1.5 * plain.map_reduce_s, "batches get what is left, and do not starve"


def test_parrot_keeps_groups_together_and_chats_away_from_them() -> None:
    plain, parrot = run("least_seconds", num_jobs=3), run("parrot", num_jobs=3)
    assert [len(set(plain.places[f"job{n}"])) for n in range(3)] == [4, 4, 4]
    assert max(len(set(parrot.places[f"job{n}"])) for n in range(3)) <= 2
    assert parrot.last_behind_s <= 1.0
    assert max(parrot.token_s) <= 1.4 * PROFILE.per_output_s <= 0.7 * max(plain.token_s)
