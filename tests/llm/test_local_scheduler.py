"""The local scheduler against a model whose KV can be checked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.kv_model import VOCABULARY, CheckedKV, completion, step

from stretto.cluster.kv_events import BlockStored
from stretto.llm.admission import in_proportion
from stretto.llm.local_scheduler import LocalScheduler, SchedulerConfig
from stretto.llm.sequence import Status, TokenSequence
from stretto.model.errors import CapacityError, ConfigError

TOKENS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40)


def scheduler(num_blocks: int = 64, **settings: Any) -> LocalScheduler:
    return LocalScheduler(
        SchedulerConfig(
            num_blocks=num_blocks, **{"block_tokens": 4, "max_running": 8, "max_batch_tokens": 16, **settings}
        )
    )


def prompt(count: int, first: int = 0) -> list[int]:
    return [(first + index * index) % 251 for index in range(count)]


def run_all(machine: LocalScheduler, kv: CheckedKV, max_repeats: int = 1) -> list[int]:
    ended: list[int] = []
    for _ in range(2000):
        if not machine.has_work():
            return ended
        ended += [sequence.id for sequence in step(machine, kv, max_repeats=max_repeats)]
    raise AssertionError("the scheduler does not come to an end")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_workload_reads_the_right_kv_and_gives_every_block_back(data: st.DataObject) -> None:
    """Prompts of few different tokens share a lot; memory is short; tasks come, fork and are cancelled."""
    machine = scheduler(
        data.draw(st.integers(14, 40)),
        block_tokens=data.draw(st.sampled_from([1, 3, 4])),
        max_running=data.draw(st.integers(1, 6)),
        max_batch_tokens=data.draw(st.integers(7, 30)),
        policy=data.draw(st.sampled_from(["chunked", "prefill_first"])),
        shares_partial_blocks=data.draw(st.booleans()),
        host_blocks=data.draw(st.sampled_from([0, 0, 9, 60])),
    )
    kv, live, prompts = CheckedKV(machine), dict[int, TokenSequence](), list[list[int]]()
    for number in range(data.draw(st.integers(1, 12))):
        kept = data.draw(st.sampled_from(prompts)) if len(prompts) > 0 and data.draw(st.booleans()) else []
        tokens = (kept[: data.draw(st.integers(0, len(kept)))] + data.draw(TOKENS))[:40]
        prompts.append(tokens)
        sequence = TokenSequence(
            number,
            list(tokens),
            data.draw(st.sampled_from([0, 1, 5, 12])),
            rank=data.draw(st.sampled_from([(), (0.0,), (1.0, 2.0)])),
            query=f"q{number % 3}",
            salt=data.draw(st.sampled_from(["", "", "tenant"])),
        )
        try:
            machine.add(sequence, float(number))
        except CapacityError:
            continue
        live[number] = sequence
        for _ in range(data.draw(st.integers(0, 4))):
            for ended in step(machine, kv, data.draw(st.sampled_from([1, 1, 4]))):
                del live[ended.id]
                expected = completion(prompts[ended.id], ended.max_new_tokens)
                assert ended.tokens[ended.num_prompt_tokens :] == expected
        if live and data.draw(st.integers(0, 4)) == 0:
            machine.abort(live.pop(data.draw(st.sampled_from(sorted(live)))))
            machine.check_invariants()
        if data.draw(st.integers(0, 5)) == 0:
            machine.cache.forget(f"q{number % 3}")
            machine.check_invariants()
    run_all(machine, kv)
    assert all(sequence.status is Status.FINISHED for sequence in live.values())
    assert machine.cache.num_available == machine.pool.num_blocks
    machine.cache.clear()
    assert machine.pool.num_free == machine.pool.num_blocks


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(TOKENS, st.integers(1, 20)), min_size=1, max_size=4), st.integers(2, 9))
def test_k_repeats_equal_k_single_steps(tasks: list[tuple[list[int], int]], max_repeats: int) -> None:
    ends = []
    for repeats in (1, max_repeats):
        machine = scheduler(60, max_running=4)
        kv = CheckedKV(machine)
        sequences = [TokenSequence(n, list(tokens), count) for n, (tokens, count) in enumerate(tasks)]
        for sequence in sequences:
            machine.add(sequence, 0.0)
        order = run_all(machine, kv, repeats)
        ends.append((order, [sequence.tokens for sequence in sequences], len(machine.cache)))
    assert ends[0] == ends[1]


def test_repeats_stop_at_the_next_end() -> None:
    machine = scheduler()
    kv = CheckedKV(machine)
    for number, count in enumerate((9, 5)):
        machine.add(TokenSequence(number, prompt(3, number), count), 0.0)
    step(machine, kv)
    assert machine.schedule(100).num_repeats == 4


def test_prefill_never_delays_a_decode() -> None:
    """A prompt of many chunks joins: the one that decodes gets a token in every step."""
    machine = scheduler()
    kv = CheckedKV(machine)
    first = TokenSequence(0, prompt(5), 30)
    machine.add(first, 0.0)
    step(machine, kv)
    machine.add(TokenSequence(1, prompt(90, 7), 4), 0.0)
    for count in range(2, 9):
        step(machine, kv)
        assert first.num_generated == count


def test_prefill_first_lets_decodes_wait() -> None:
    machine = scheduler(policy="prefill_first")
    kv = CheckedKV(machine)
    first = TokenSequence(0, prompt(5), 30)
    machine.add(first, 0.0)
    step(machine, kv)
    machine.add(TokenSequence(1, prompt(90, 7), 4), 0.0)
    batch = machine.schedule()
    assert [(piece.sequence.id, piece.num_tokens) for piece in batch.slices] == [(1, 90)]


def test_second_of_two_equal_prompts_waits_for_the_first_and_finds_it_cached() -> None:
    machine = scheduler()
    kv = CheckedKV(machine)
    sequences = [TokenSequence(number, prompt(50), 2) for number in range(3)]
    for sequence in sequences:
        machine.add(sequence, 0.0)
    run_all(machine, kv)
    assert [sequence.num_cached for sequence in sequences] == [0, 48, 49] or [
        sequence.num_cached for sequence in sequences
    ] == [0, 48, 48]


def test_fork_copies_the_block_that_it_writes_on() -> None:
    machine = scheduler()
    kv = CheckedKV(machine)
    machine.add(TokenSequence(0, prompt(10), 0), 0.0)
    run_all(machine, kv)
    forks = [TokenSequence(1, [*prompt(10), 1], 3), TokenSequence(2, [*prompt(10), 2], 3)]
    for fork in forks:
        machine.add(fork, 0.0)
    batch = machine.schedule()
    assert [fork.num_cached for fork in forks] == [10, 10]
    assert [target for _, target in batch.copies] == [fork.blocks[2] for fork in forks]
    assert forks[0].blocks[:2] == forks[1].blocks[:2]
    assert forks[0].blocks[2] != forks[1].blocks[2]


@pytest.mark.parametrize(("shares_partial", "num_cached"), [(True, 11), (False, 8)])
def test_blocks_that_match_in_part_are_hits_only_where_wanted(shares_partial: bool, num_cached: int) -> None:
    machine = scheduler(shares_partial_blocks=shares_partial)
    kv = CheckedKV(machine)
    machine.add(TokenSequence(0, prompt(14), 4), 0.0)
    run_all(machine, kv)
    second = TokenSequence(1, [*prompt(11), 250, 250, 250], 4)
    machine.add(second, 1.0)
    run_all(machine, kv)
    assert second.num_cached == num_cached
    machine.check_invariants()


def test_growing_beyond_the_pool_preempts_the_last_comer_and_loses_nothing() -> None:
    machine = scheduler(12, max_running=3)
    kv = CheckedKV(machine)
    sequences = [TokenSequence(number, prompt(8, number * 3), 30) for number in range(3)]
    for sequence in sequences:
        machine.add(sequence, 0.0)
    assert run_all(machine, kv)[0] == 0
    assert machine.num_preemptions > 0
    assert sequences[0].num_preemptions == 0
    for number, sequence in enumerate(sequences):
        assert sequence.tokens[8:] == completion(prompt(8, number * 3), 30)


def test_preempted_sequence_does_not_come_back_in_the_same_step() -> None:
    """A sequence has its slice when a second one needs its block; a third then gives up its own."""
    machine = scheduler(3)
    kv = CheckedKV(machine)
    sequences = [TokenSequence(n, [n] * count, 5, rank=(n % 2, n)) for n, count in ((3, 1), (2, 3), (1, 3))]
    machine.add(sequences[0], 0.0)
    step(machine, kv)
    for sequence in sequences[1:]:
        machine.add(sequence, 0.0)
    for _ in range(2):
        step(machine, kv)
    batch = machine.schedule()
    assert [(piece.sequence.id, piece.start) for piece in batch.slices] == [(2, 4)]
    assert [sequence.num_preemptions for sequence in sequences] == [1, 0, 1]


def test_tenants_share_nothing() -> None:
    machine = scheduler()
    kv = CheckedKV(machine)
    sequences = [TokenSequence(number, prompt(20), 1, salt=salt) for number, salt in enumerate("aba")]
    for sequence in sequences:
        machine.add(sequence, 0.0)
        run_all(machine, kv)
    assert [sequence.num_cached for sequence in sequences] == [0, 0, 19]


def ends(machine: LocalScheduler) -> list[int]:
    """Run to the end; return the sequences in the order in which they end."""
    return run_all(machine, CheckedKV(machine))


def test_waiting_counts_where_ranks_grow_with_arrival() -> None:
    """Seconds of work, and 0.3 of each second of arrival: the last has less work, and comes too late."""
    machine = scheduler(max_running=1)
    for number, (work_s, arrived_s) in enumerate([(2.0, 0.0), (0.5, 1.0), (1.5, 3.0)]):
        sequence = TokenSequence(number, prompt(4, number), 1, rank=(work_s + 0.3 * arrived_s, 0.0))
        machine.add(sequence, arrived_s)
    assert ends(machine) == [1, 0, 2]


def test_without_ranks_the_first_come_goes_first() -> None:
    machine = scheduler(max_running=1)
    for number, arrived_s in enumerate([3.0, 1.0, 2.0]):
        machine.add(TokenSequence(number, prompt(4, number), 1), arrived_s)
    assert ends(machine) == [1, 2, 0]


def test_a_new_rank_changes_the_place_of_who_waits() -> None:
    machine = scheduler(max_running=1)
    sequences = [TokenSequence(number, prompt(4, number), 1, rank=(float(number),)) for number in range(4)]
    for sequence in sequences:
        machine.add(sequence, 0.0)
    machine.reprioritise(sequences[3], (-1.0,))
    machine.reprioritise(sequences[0], (2.5,))
    assert ends(machine) == [3, 1, 2, 0]


def test_a_new_rank_changes_who_is_preempted() -> None:
    machine = scheduler(12, max_running=3)
    kv = CheckedKV(machine)
    sequences = [TokenSequence(n, prompt(8, n * 3), 30, rank=(float(n),)) for n in range(3)]
    for sequence in sequences:
        machine.add(sequence, 0.0)
    step(machine, kv)
    machine.reprioritise(sequences[2], (-1.0,))
    assert run_all(machine, kv)[0] == 2
    assert sequences[2].num_preemptions == 0 < machine.num_preemptions


@pytest.mark.parametrize(("level_s", "expected"), [(1.0, [0, 2, 1]), (0.125, [0, 1, 2])])
def test_what_is_cached_counts_within_a_level_only(level_s: float, expected: list[int]) -> None:
    machine = scheduler(max_running=1, level_s=level_s)
    shared = prompt(20, 5)
    for number, tokens in enumerate((shared, prompt(20, 9), [*shared, 7])):
        machine.add(TokenSequence(number, tokens, 1, rank=(number / 4,)), 0.0)
    assert ends(machine) == expected


def test_groups_are_served_in_proportion_to_their_share() -> None:
    """Each round takes three of the best group, two of the next, and one of the last."""
    sequences = [TokenSequence(number, [0], 1) for number in range(12)]
    share = {number: (1.0, 0.5, 0.0)[number % 3] for number in range(12)}
    ordered = in_proportion(sequences, lambda sequence: share[sequence.id], 2)
    assert [sequence.id for sequence in ordered] == [0, 3, 6, 1, 4, 2, 9, 7, 10, 5, 8, 11]


def test_no_stream_of_cached_prompts_overtakes_a_prompt_of_an_earlier_level() -> None:
    """One sequence runs at a time; another one whose prompt is cached comes before each step. The prompt
    without a hit waits for those of its own level (0.25 s each, 1 s in all) alone.
    """
    machine = scheduler(max_running=1, level_s=1.0)
    kv, shared, ended = CheckedKV(machine), prompt(16, 5), []
    machine.add(TokenSequence(0, shared, 1, rank=(0.0,)), 0.0)
    machine.add(TokenSequence(1, prompt(16, 90), 1, rank=(0.0,)), 0.0)
    for number in range(2, 20):
        machine.add(TokenSequence(number, [*shared, number], 1, rank=(number / 4 - 0.25,)), 0.0)
        ended += [sequence.id for sequence in step(machine, kv)]
    ended += run_all(machine, kv)
    assert len(ended) == 20
    assert ended.index(1) in (1, 2, 3, 4), ended
    assert set(ended[: ended.index(1)]) <= {0, 2, 3, 4}


def test_shares_are_looked_up_again_when_the_cache_changes() -> None:
    """Two wait; what the second shares with comes into the cache; the second goes first."""
    machine = scheduler(max_running=1)
    kv = CheckedKV(machine)
    for sequence in (
        TokenSequence(0, prompt(20, 5), 1),
        TokenSequence(1, prompt(20, 9), 1),
        TokenSequence(2, [*prompt(20, 5), 7], 1),
    ):
        machine.add(sequence, 0.0)
    assert run_all(machine, kv) == [0, 2, 1]


def test_leases_outlive_other_idle_blocks() -> None:
    machine = scheduler(16, max_running=1)
    kv = CheckedKV(machine)
    for sequence in (
        TokenSequence(0, prompt(12, 1), 0, query="ahead"),
        TokenSequence(1, prompt(12, 2), 1, query="other"),
        TokenSequence(2, prompt(44, 3), 1, query="other"),
    ):
        machine.add(sequence, 0.0)
        run_all(machine, kv)
    later = TokenSequence(3, [*prompt(12, 1), 1], 1, query="ahead")
    machine.add(later, 0.0)
    run_all(machine, kv)
    assert later.num_cached == 12


@pytest.mark.parametrize(
    "changed",
    [{"policy": "magic"}, {"max_batch_tokens": 4}, {"num_blocks": 0}, {"lookahead": 0}, {"level_s": 0.0}],
)
def test_configuration_that_cannot_work_is_an_error(changed: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        LocalScheduler(SchedulerConfig(**{"num_blocks": 8, "max_running": 4, **changed}))  # type: ignore[arg-type]


def test_sequence_that_never_fits_is_a_capacity_error() -> None:
    with pytest.raises(CapacityError, match="17 tokens need 5 KV blocks; the engine has 4"):
        scheduler(4).add(TokenSequence(0, prompt(15), 2), 0.0)


def test_what_the_device_has_evicted_is_loaded_from_host_memory() -> None:
    machine = scheduler(6, max_running=1, host_blocks=32, with_events=True)
    kv = CheckedKV(machine)
    again = TokenSequence(2, prompt(20, 1), 2)
    for sequence in (TokenSequence(0, prompt(20, 1), 2), TokenSequence(1, prompt(20, 100), 2), again):
        machine.add(sequence, 0.0)
        batch = machine.schedule()
        assert batch.num_loaded == (16 if sequence is again else 0)
        machine.complete(batch, kv.run(batch))
        run_all(machine, kv)
    assert again.num_cached == 16
    assert machine.host is not None
    stored = [one for one in machine.host.take_events() if isinstance(one, BlockStored)]
    assert [one.medium for one in stored] == ["host"] * 10
