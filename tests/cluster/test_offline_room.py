"""How much offline work runs beside the requests of others, and how many instances they leave free."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.cluster.kept_free import KeptFree, RoomPerInstance
from stretto.cluster.offline_room import OfflineRoom
from stretto.costs.learned_steps import LearnedSteps
from stretto.model.profile import Profile

PROFILE = Profile(base_s=0.0, per_unit_s=5e-5, per_output_s=0.01, per_neighbour_s=1e-4)
ROOMS = RoomPerInstance(num_slots=256, capacity_tokens=100_000)


def begin_lines(room: OfflineRoom, until_s: float, most: int = 1000) -> list[float]:
    """Begin offline requests as soon as each may, from 0 on, of which `most` run at a time; return when."""
    now_s, times = 0.0, list[float]()
    while now_s < until_s:
        if room.takes_one(now_s):
            room.started(1000 + len(times), 200, 50, now_s, is_offline=True)
            times.append(now_s)
            room.ended(1000 + len(times) - 1 - most, None, now_s)
        now_s = max(now_s + 1e-6, room.next_s(now_s))
    return times


@pytest.mark.parametrize(("seconds", "is_left"), [(0.1, True), (20.0, False)])
def test_an_instance_is_left_to_others_whose_requests_are_short(seconds: float, is_left: bool) -> None:
    room = OfflineRoom(PROFILE)
    room.started(1, 200, 50, 0.0, is_offline=True)
    assert not room.is_left_to_others(0.0)
    room.started(2, 0, round(seconds / PROFILE.per_output_s), 0.0, is_offline=False)
    room.ended(2, round(seconds / PROFILE.per_output_s), seconds)
    assert room.is_left_to_others(seconds) == is_left
    assert not room.is_left_to_others(seconds + 60.0)


@pytest.mark.parametrize("seconds", [2.0, 5.0, 20.0])
def test_prefills_beside_others_take_a_share_of_their_time(seconds: float) -> None:
    room = OfflineRoom(PROFILE)
    num_output = round(seconds / PROFILE.per_output_s)
    room.started(1, 0, num_output, -seconds, is_offline=False)
    room.ended(1, num_output, 0.0)  # such a request is usual
    room.started(2, 0, num_output, 0.0, is_offline=False)
    times = begin_lines(room, 10 * seconds, most=4)
    in_one = max(sum(at <= one < at + seconds for one in times) for at in times)
    cost_s = 200 * PROFILE.per_unit_s
    assert 0.3 * room.share * seconds < in_one * cost_s <= room.share * seconds


def test_few_requests_meet_a_prefill_that_is_too_long_for_them() -> None:
    room = OfflineRoom(PROFILE)
    room.started(1, 50, 10, -0.1, is_offline=False)
    room.ended(1, 10, 0.0)
    room.started(2, 50, 10, 0.0, is_offline=False)
    times = begin_lines(room, 100.0, most=4)
    assert 1 < len(times) <= 0.05 * 100.0 / 0.1


def test_alone_many_run_and_leave_when_others_come() -> None:
    room = OfflineRoom(PROFILE)
    begun = begin_lines(room, 3.0)
    assert room.num_offline == len(begun) == 64
    assert begun[-1] > 60 * 0.4 * 200 * PROFILE.per_unit_s  # no queue of prefills
    assert not room.in_the_way(3.0)
    room.started(1, 50, 10, 3.0, is_offline=False)
    leave = room.in_the_way(3.0)
    kept = 64 - len(leave)
    assert leave == [1063 - at for at in range(len(leave))]
    assert 1 <= kept <= room.share * PROFILE.per_output_s / PROFILE.per_neighbour_s
    for key in leave:
        assert room.ended(key, None, 3.0)
    assert not room.in_the_way(3.0)
    assert not room.takes_one(3.0)
    room.ended(1, 10, 4.0)
    assert room.has_others(4.5)  # who has asked asks again
    assert not room.has_others(9.5)
    assert room.takes_one(9.5)
    room.check_invariants()


def test_no_share_is_no_room_beside_others() -> None:
    room = OfflineRoom(PROFILE)
    room.share = 0.0
    room.started(1, 50, 10, 0.0, is_offline=False)
    room.started(2, 50, 10, 0.0, is_offline=True)
    assert not room.takes_one(1e6)
    room.ended(1, 10, 1e6)
    assert room.takes_one(room.next_s(1e6))


@given(
    st.floats(0.1, 10.0),
    st.floats(0.1, 10.0),
    st.lists(
        st.tuples(st.integers(1, 400), st.floats(0, 40), st.integers(0, 4000)), min_size=60, max_size=90
    ),
)
def test_steps_are_learned_whatever_the_profile_says(
    decoding: float, prefilling: float, answers: list[tuple[int, float, int]]
) -> None:
    steps = LearnedSteps(PROFILE)
    mixed = [(100, 3.0, 20), (5, 1.0, 3000), *answers]
    for num_output, neighbours, num_prefilled in mixed * 2:
        decode_s = decoding * num_output * (PROFILE.per_output_s + PROFILE.per_neighbour_s * neighbours)
        seconds = decode_s + prefilling * PROFILE.per_unit_s * num_prefilled
        steps.answered(seconds, num_output, neighbours, num_prefilled)
    predicted_s = 50 * steps.per_output_s + 500 * steps.per_token_s
    true_s = 50 * decoding * PROFILE.per_output_s + 500 * prefilling * PROFILE.per_unit_s
    assert steps.per_token_s > 0
    if decoding / 3 < prefilling < 3 * decoding:
        assert predicted_s == pytest.approx(true_s, rel=0.5)


def people(number: int, prompt: int, seconds: float, until_s: float = 60.0) -> KeptFree:
    """Return what is known of so many people who ask without a pause."""
    found, now_s = KeptFree(), 0.0
    for _ in range(number):
        found.started(prompt, prompt * PROFILE.per_unit_s, now_s)
    while now_s < until_s:
        now_s += seconds / number
        found.ended(prompt, now_s)
        found.started(prompt, prompt * PROFILE.per_unit_s, now_s)
    return found


@pytest.mark.parametrize(
    ("number", "prompt", "used"), [(1, 50, 1), (2, 50, 1), (2, 4000, 3), (32, 200, 3), (100, 400, 4)]
)
def test_few_people_leave_instances_free(number: int, prompt: int, used: int) -> None:
    steps = LearnedSteps(PROFILE)
    assert people(number, prompt, 1.0).num_used(4, ROOMS, steps, 60.0) == used


def test_people_who_fill_the_memory_of_an_instance_go_to_more() -> None:
    found = people(2, 50_000, 1000.0, until_s=3000.0)
    assert found.num_used(4, ROOMS, LearnedSteps(PROFILE), 3000.0) > 1
