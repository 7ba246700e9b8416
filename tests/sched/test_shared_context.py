"""What the prompts of jobs have in common counts once against an instance's budget."""

from __future__ import annotations

import random
from itertools import count

import pytest
from support.machines import llm_engine, llm_request, serving

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.placement_request import PlacementRequest, PromptKey, Purpose
from stretto.cluster.placements.table import PLACEMENTS
from stretto.cluster.prompt_keys import BYTES, PromptSpace, no_space, token_space
from stretto.model.profile import Profile
from stretto.model.replica import Replica
from stretto.model.tasks import Decode, Done, Usage
from stretto.model.values import Prompt, Segment
from stretto.sched.actions import Admit
from stretto.sched.llm.scheduler import LLMScheduler
from stretto.sched.llm.shared_context import SharedContext
from stretto.sched.queries.demand import Demand

SHARED, OWN, OUTPUT = 600, 40, 40
PROFILE = Profile(per_unit_s=0.001, per_output_s=0.03, per_neighbour_s=0.001)


def characters(prompt: Prompt) -> list[int]:
    return [ord(character) for segment in prompt for character in str(segment.text)]


def reported(engine: str, replica: Replica) -> PromptSpace:
    return token_space("characters", 4, characters)


class Machine:
    """A scheduler of one instance with room for 1,000 tokens, where prompts share `SHARED` of them."""

    def __init__(self, placement: str, *, is_reported: bool = True) -> None:
        deployment = llm_engine(max_batch=1000, max_running=64, profile=PROFILE, placement=placement)
        policy, space_of = PLACEMENTS[placement](), reported if is_reported else no_space
        scheduler = LLMScheduler(deployment.engine, PROFILE, policy, count(1), space_of=space_of)
        self.scheduler = serving(scheduler, deployment)
        self.running: list[Admit] = []

    @property
    def view(self) -> InstanceView:
        (view,) = self.scheduler._loads.table
        return view

    def add(self, num: int, job: str) -> int:
        """Add requests; return how many of all run then."""
        for number in range(num):
            text = "x" * SHARED + chr(1000 + number) * OWN
            request = llm_request(
                f"{number}{job}",
                "answer",
                SHARED + OWN + OUTPUT,
                decode=Decode(OUTPUT),
                prompts=((Segment(text),),),
                demand=Demand("throughput", job=job),
            )
            self.scheduler.add(request, 0.0)
        return self.schedule()

    def schedule(self) -> int:
        actions = self.scheduler.schedule(0.0)
        self.running += [action for action in actions if isinstance(action, Admit)]
        self.scheduler.check_invariants()
        return len(self.running)

    def end(self) -> int:
        """End the request that runs longest; return how many run then."""
        admit = self.running.pop(0)
        self.scheduler.report(admit.instance, Done(admit.task.id, "y", Usage(1, 0, OUTPUT)), 0.0)
        self.scheduler.check_invariants()
        return self.schedule()


@pytest.mark.parametrize("placement", ["parrot", "stretto"])
def test_requests_of_jobs_fill_a_budget_with_what_each_has_alone(placement: str) -> None:
    machine = Machine(placement)
    assert machine.add(8, "job") == 5
    assert machine.view.running_tokens == SHARED + 5 * (OWN + OUTPUT)
    assert [machine.end() for _ in range(3)] == [5, 5, 5], "the rest follows one by one"
    assert [machine.end() for _ in range(5)] == [4, 3, 2, 1, 0]
    assert machine.view.running_tokens == machine.view.waiting_tokens == 0


def test_what_waits_counts_what_nothing_else_there_has() -> None:
    machine = Machine("stretto")
    machine.add(8, "job")
    assert machine.view.waiting_tokens == 3 * (OWN + OUTPUT)
    assert machine.view.waiting_prefill_s == pytest.approx(3 * PROFILE.per_unit_s * OWN)


@pytest.mark.parametrize("placement", ["parrot", "stretto"])
def test_others_count_in_full(placement: str) -> None:
    assert Machine(placement).add(8, "") == 1, "no job"
    assert Machine(placement, is_reported=False).add(8, "job") == 1, "nobody knows what the instance shares"


def request(draw: random.Random) -> PlacementRequest:
    """A request of a job whose prompt is one of few, cut somewhere."""
    prompt, num_blocks = draw.randrange(3), draw.randrange(6)
    blocks = [f"{prompt}/{number}".encode() for number in range(num_blocks)]
    return PlacementRequest(4 * draw.randrange(8), keys={"s": PromptKey(blocks, 4)}, purpose=Purpose(job="j"))


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_a_list(seed: int) -> None:
    draw, context, running = random.Random(seed), SharedContext(), list[PlacementRequest]()
    context.join(0, "s")
    context.join(1, BYTES.name)
    num_tokens = 0
    for _ in range(60):
        if running and draw.random() < 0.5:
            gone = running.pop(draw.randrange(len(running)))
            num_tokens -= gone.num_tokens - context.remove(0, gone)
        else:
            new = request(draw)
            num_shared = context.tokens(0, new)
            assert context.by_instance(new) == ({0: num_shared} if num_shared else {})
            assert context.add(0, new) == num_shared
            assert context.add(1, new) == 0, "it reports nothing"
            running.append(new)
            num_tokens += new.num_tokens - num_shared
        all_tokens = sum(one.num_tokens for one in running)
        assert num_tokens == all_tokens - context.num_repeated(0, running)
    context.leave(0)
    assert not context
    assert context.remove(0, request(draw)) == 0
