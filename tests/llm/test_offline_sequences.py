"""Offline sequences of a local scheduler give way to all others, and cost no answer."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.kv_model import VOCABULARY, CheckedKV, completion, step

from stretto.costs.offline import OfflineLimits
from stretto.llm.local_scheduler import LocalScheduler, SchedulerConfig
from stretto.llm.sequence import Status, TokenSequence
from stretto.llm.step_batch import StepBatch

LAST = 2e8


def scheduler(num_blocks: int = 64, **settings: Any) -> LocalScheduler:
    return LocalScheduler(
        SchedulerConfig(
            num_blocks, **{"block_tokens": 4, "max_running": 4, "max_batch_tokens": 32, **settings}
        )
    )


def sequence(number: int, num_tokens: int = 8, count: int = 6, *, is_offline: bool = False) -> TokenSequence:
    tokens = [(number * 7 + index * index) % VOCABULARY for index in range(num_tokens)]
    rank = (LAST + number if is_offline else float(number),)
    return TokenSequence(number, tokens, count, rank=rank, salt=str(number), is_offline=is_offline)


def add(machine: LocalScheduler, *sequences: TokenSequence) -> None:
    for one in sequences:
        machine.add(one, float(one.id))


def numbers(batch: StepBatch) -> list[int]:
    return [piece.sequence.id for piece in batch.slices]


def test_offline_sequences_give_their_places_to_others() -> None:
    machine = scheduler()
    offline = [sequence(number, is_offline=True) for number in range(4)]
    add(machine, *offline)
    kv = CheckedKV(machine)
    step(machine, kv)
    add(machine, sequence(10), sequence(11))
    batch = machine.schedule()
    assert {10, 11} <= set(numbers(batch))
    assert [one.status for one in offline] == [Status.RUNNING] * 2 + [Status.WAITING] * 2, (
        "the last come last"
    )
    machine.check_invariants()


def test_offline_sequences_give_their_blocks_to_others() -> None:
    machine = scheduler(num_blocks=12)
    offline = [sequence(number, num_tokens=12, is_offline=True) for number in range(3)]
    add(machine, *offline)
    kv = CheckedKV(machine)
    step(machine, kv)
    step(machine, kv)
    add(machine, sequence(10, num_tokens=30))
    batch = machine.schedule()
    assert 10 in numbers(batch)
    assert [one.status for one in offline] == [Status.RUNNING, Status.WAITING, Status.WAITING]
    machine.check_invariants()


def test_a_sequence_larger_than_what_others_leave_keeps_offline_ones_out() -> None:
    machine = scheduler(num_blocks=12)
    kv = CheckedKV(machine)
    add(machine, sequence(0, num_tokens=20))
    step(machine, kv)
    add(machine, sequence(1, num_tokens=30), sequence(2, num_tokens=4, is_offline=True))
    assert numbers(machine.schedule()) == [0]


def test_offline_work_in_a_step_with_other_work_is_limited() -> None:
    limits = OfflineLimits(context_tokens=20, prefill_tokens=3, alone_prefill_tokens=20)
    machine = scheduler(max_running=8, offline=limits)
    kv = CheckedKV(machine)
    add(machine, *(sequence(number, num_tokens=10, count=20, is_offline=True) for number in range(3)))
    first = machine.schedule()
    assert first.num_tokens == 20
    machine.complete(first, kv.run(first))
    step(machine, kv)
    add(machine, sequence(10), sequence(3, num_tokens=10, is_offline=True))
    prefill = machine.schedule()
    assert numbers(prefill) == [0, 1, 10], "two contexts are more than 20 tokens; no prefill beside another"
    machine.complete(prefill, kv.run(prefill))
    assert numbers(machine.schedule()) == [0, 1, 10], "the third pauses, and the fourth does not begin"


def test_an_offline_prefill_beside_decodes_gets_few_tokens() -> None:
    limits = OfflineLimits(context_tokens=20, prefill_tokens=3)
    machine = scheduler(offline=limits)
    kv = CheckedKV(machine)
    add(machine, sequence(10))
    step(machine, kv)
    add(machine, sequence(0, num_tokens=10, is_offline=True))
    assert [(piece.sequence.id, piece.num_tokens) for piece in machine.schedule().slices] == [(10, 1), (0, 3)]


def test_an_offline_prefill_does_not_keep_decodes_from_going_on() -> None:
    """With `prefill_first`, a step of prefills has no decodes."""
    machine = scheduler(policy="prefill_first")
    kv = CheckedKV(machine)
    add(machine, sequence(10))
    step(machine, kv)
    add(machine, sequence(0, is_offline=True))
    assert numbers(machine.schedule()) == [10]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_others_never_wait_for_room_of_offline_sequences_and_all_end_with_equal_answers(
    data: st.DataObject,
) -> None:
    machine = scheduler(
        data.draw(st.integers(20, 40)),
        max_running=data.draw(st.integers(1, 5)),
        policy=data.draw(st.sampled_from(["chunked", "prefill_first"])),
        offline=OfflineLimits(
            *(data.draw(st.integers(1, 30)) for _ in range(4)),
        ),
    )
    kv, given_, steps = CheckedKV(machine), dict[int, TokenSequence](), 0
    for number in range(data.draw(st.integers(1, 12))):
        one = sequence(
            number,
            data.draw(st.integers(1, 40)),
            data.draw(st.integers(1, 12)),
            is_offline=data.draw(st.booleans()),
        )
        given_[number] = one
        add(machine, one)
        for _ in range(data.draw(st.integers(0, 4))):
            steps += 1
            before = {one.id for one in machine.running}
            step(machine, kv, data.draw(st.sampled_from([1, 1, 4])))
            waits = any(not one.is_offline for one in machine.waiting)
            begun = [one for one in machine.running if one.id not in before and one.is_offline]
            assert not (waits and begun), "nothing offline begins while something else waits"
    while machine.has_work():
        steps += 1
        assert steps < 5000, "offline sequences get on in the end"
        step(machine, kv)
    for one in given_.values():
        prompt = one.tokens[: one.num_prompt_tokens]
        assert one.tokens[one.num_prompt_tokens :] == completion(prompt, one.max_new_tokens)
    assert machine.cache.num_available == machine.pool.num_blocks
