"""Agents beyond KV memory in virtual time, at toy size."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.programs.room.bound import mean_call, most_tokens_per_s
from benchmarks.programs.room.load import Load, Measured
from benchmarks.programs.room.routed import RoutedServers
from benchmarks.programs.room.scenes import closed_loop, door, errors, open_loop, others, several_routers
from benchmarks.programs.room.servers import Servers
from benchmarks.programs.room.sessions import Opened, Session, Turn, recorded_sessions

SESSIONS = tuple(
    Session(tuple(Turn(((1, 200 + 20 * turn + number),), 10, 0.3) for turn in range(8)))
    for number in range(5)
)
SMALL = Servers(memory=0.1)


def run(servers: Servers, **load: object) -> Measured:
    settings = {"num_clients": 30, "warm_s": 5.0, "end_s": 40.0, **load}
    return servers.run(Load(**settings), SESSIONS, seed=0)  # type: ignore[arg-type]


@pytest.mark.long
def test_a_memory_that_is_too_small_for_all_serves_more_if_programs_are_held() -> None:
    nothing, endless = run(SMALL), run(Servers(memory=1.0))
    ours = run(Servers(memory=0.1, holds=True))
    assert nothing.num_cached < 0.5 * nothing.num_prompt
    assert ours.num_cached > 0.7 * ours.num_prompt
    assert ours.num_calls > 1.2 * nothing.num_calls
    assert endless.longest_hold_s == nothing.longest_hold_s == 0.0 < ours.longest_hold_s
    call = mean_call(SESSIONS, math.inf)
    most, of_endless = (most_tokens_per_s(call, kv_tokens, 30) for kv_tokens in (11_771, 117_715))
    assert nothing.row()["tokens_per_s"] < ours.row()["tokens_per_s"] < most
    assert most < endless.row()["tokens_per_s"] < of_endless


@pytest.mark.parametrize("placement", ["stretto", pytest.param("least_loaded", marks=pytest.mark.long)])
def test_plain_requests_through_a_router_are_held_too(placement: str) -> None:
    by_arrival = RoutedServers(memory=0.1, order="per_invocation", placement=placement)
    nothing, ours = run(by_arrival), run(RoutedServers(memory=0.1, holds=True, placement=placement))
    assert nothing.num_cached < 0.5 * nothing.num_prompt
    assert ours.num_cached > 0.7 * ours.num_prompt
    assert ours.num_calls > 1.2 * nothing.num_calls
    assert ours.longest_hold_s > 0.0


@pytest.mark.long
def test_two_routers_find_what_one_finds_if_they_tell_each_other() -> None:
    one, silent, telling = (
        run(RoutedServers(3, memory=0.1, holds=True, routers=number, tells=tells), end_s=20.0)
        for number, tells in ((1, False), (2, False), (2, True))
    )
    assert one.num_cached / one.num_prompt - telling.num_cached / telling.num_prompt < 0.02
    assert silent.num_cached / silent.num_prompt < telling.num_cached / telling.num_prompt - 0.05


@pytest.mark.long
def test_a_router_loses_nothing_where_all_fit() -> None:
    by_arrival = run(RoutedServers(order="per_invocation"), num_clients=8)
    assert run(RoutedServers(holds=True), num_clients=8).row() == by_arrival.row()


def test_where_all_fit_nothing_changes() -> None:
    assert run(Servers(), num_clients=8, end_s=20.0).row() == (
        run(Servers(holds=True), num_clients=8, end_s=20.0).row()
    )


def test_sessions_of_an_open_loop_all_end_and_a_cap_keeps_some_outside() -> None:
    plain = run(SMALL, num_clients=0, per_s=2.0, num_sessions=12)
    capped = run(SMALL, num_clients=0, per_s=2.0, num_sessions=12, cap=2)
    assert plain.num_sessions == capped.num_sessions == 12
    assert capped.row()["mean_s"] > plain.row()["mean_s"]


def test_wrong_names_elephants_and_chats_come_along() -> None:
    both = run(Servers(holds=True), num_clients=4, renamed=0.2, chats_per_s=1.0, elephants=0.5, end_s=20.0)
    assert both.first_s
    assert both.num_prompt > 50_000


def test_prompts_go_on_from_each_other_and_openings_may_be_shared() -> None:
    one, other = Opened(1, SESSIONS[0], 0.5), Opened(2, SESSIONS[0], 0.5)
    assert one.prompt(1).startswith(one.prompt(0))
    assert one.prompt(0)[:1600] == other.prompt(0)[:1600]
    assert one.prompt(0)[1600:1616] != other.prompt(0)[1600:1616]


def test_scenes_have_names_of_their_own() -> None:
    scenes = [*closed_loop(), *door(), *several_routers(), *errors(), *others(), *open_loop(0.4)]
    assert len({(one.table, one.row, one.arm) for one in scenes}) == len(scenes)


def test_recorded_sessions_are_read_without_long_ones(tmp_path: Path) -> None:
    import gzip
    import json

    lines = [
        {
            "requests": [
                {"type": "n", "out": 160, "think_time": 32.0, "runs": [[1, size]]},
                {"requests": []},
            ]
        }
        for size in (10, 10_000)
    ]
    with gzip.open(tmp_path / "sessions.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))
    (session,) = recorded_sessions(tmp_path)
    assert session.turns == (Turn(((1, 10),), 10, 2.0),)
    assert session.turns[0].num_blocks == pytest.approx(10)
