"""Starts of replicas by the place of the weights, and the disk that they share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.costs.loading import LoadingCost, Source, Storage
from stretto.costs.presets import load_output_lengths
from stretto.costs.shape import LLMModel
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.execute import execute
from stretto.planner.machine import MACHINES
from stretto.planner.plan import Plan, PlannedReplica, Stage
from stretto.planner.planners.table import PLANNERS
from stretto.planner.problem import Problem
from stretto.planner.run_times import RunTimes
from stretto.planner.starts import Starts

STORAGE = Storage(disk_bytes_s=1e9, link_bytes_s=20e9)
MODEL = LLMModel("model", 10, 4096, 32, 32, 11008, 32000)
NODES = [ModelNode(name, name, 30) for name in ("vicuna-13b-v1.5", "mpt-7b-chat", "chatglm3-6b")]


def problem(weights: Source, nodes: list[ModelNode] = NODES) -> Problem:
    requests = [AppRequest(str(at), 10 + at % 30) for at in range(20)]
    machine = replace(MACHINES["4xA100-80G"], storage=Storage(disk_bytes_s=0.5e9, link_bytes_s=25e9))
    lengths = load_output_lengths()
    return Problem(Application("app", nodes), requests, machine, lengths, num_draws=1, weights=weights)


def test_a_start_takes_longer_the_farther_the_weights_are() -> None:
    cost = LoadingCost(start_s=5.0, group_s=3.0, byte_s=0.4e-9)
    share_s = {tp: MODEL.weight_bytes / tp for tp in (1, 2)}
    assert cost.start(MODEL, 1, "asleep", STORAGE).seconds == pytest.approx(share_s[1] / 20e9)
    assert cost.start(MODEL, 2, "host", STORAGE).seconds == pytest.approx(8 + share_s[2] / 20e9)
    cached, read = (cost.start(MODEL, 2, source, STORAGE) for source in ("cache", "disk"))
    assert cached.seconds == read.seconds == pytest.approx(8 + 0.4e-9 * share_s[2])
    assert cached.disk_s == 0
    assert read.reading_s == pytest.approx(0.4e-9 * share_s[2])
    assert read.disk_s == pytest.approx(share_s[1] / 1e9)


def test_models_that_start_together_are_read_one_after_the_other() -> None:
    cold = problem("disk")
    starts = Starts(cold)
    one, other = (cold.costs[node.name][1].start for node in NODES[:2])
    begin_s = one.seconds - one.reading_s
    assert starts.ready_s(NODES[0].name, 1, 0.0) == pytest.approx(begin_s + one.disk_s)
    assert begin_s < other.seconds - other.reading_s < begin_s + one.disk_s
    assert starts.ready_s(NODES[1].name, 1, 0.0) == pytest.approx(begin_s + one.disk_s + other.disk_s)


def test_a_model_is_read_once() -> None:
    cold = problem("disk")
    starts, start = Starts(cold), cold.costs[NODES[0].name][1].start
    first_s = starts.ready_s(NODES[0].name, 1, 0.0)
    assert starts.ready_s(NODES[0].name, 1, 0.0) == first_s
    assert starts.ready_s(NODES[0].name, 1, 500.0) == 500 + start.seconds


def test_a_start_asked_for_later_takes_the_gap_before_another() -> None:
    cold = problem("disk")
    starts = Starts(cold)
    late_s = starts.ready_s(NODES[0].name, 1, 1000.0)
    alone_s = Starts(cold).ready_s(NODES[1].name, 1, 0.0)
    assert starts.ready_s(NODES[1].name, 1, 0.0) == alone_s < late_s


def test_plans_from_disk_take_longer_and_from_sleep_shorter() -> None:
    sources: tuple[Source, ...] = ("asleep", "cache", "disk")
    stage = Stage(tuple(PlannedReplica(node.name, (at,)) for at, node in enumerate(NODES)))
    asleep_s, cached_s, disk_s = (
        execute(one, Plan("hand", (stage,)), one.draw(0)).makespan_s for one in map(problem, sources)
    )
    assert asleep_s < cached_s - 10
    assert cached_s < disk_s


def test_the_search_knows_the_wait_for_the_disk() -> None:
    cold = problem("disk", NODES[:2])
    plan = PLANNERS["stretto"](RunTimes(cold))
    done = execute(cold, plan, cold.draw(0))
    warm = problem("cache", NODES[:2])
    assert done.makespan_s <= execute(cold, PLANNERS["stretto"](RunTimes(warm)), cold.draw(0)).makespan_s
