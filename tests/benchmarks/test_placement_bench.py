"""The benchmark of placement: workloads like the paper's, and tables at toy size."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.baselines import PLACEMENTS
from benchmarks.baselines.placements.oracle_partition import OraclePartition
from benchmarks.placement.benchmark import OUTPUTS, QUICK, SHARERS, SPEED, TABLE_1, WORKLOADS, measure
from benchmarks.placement.contestants import key_portions, new_policy
from benchmarks.placement.hit_replay import Keyed, LRUCache, pooled_share, replay_hits
from benchmarks.placement.hits import HitScene, table_of
from benchmarks.placement.latency import BOUND, RATIOS, Simulated, goals, simulate_scenes, where_we_lose
from benchmarks.placement.machines import machine
from benchmarks.placement.scenes import ABLATION, ORACLES, POLICIES, Scene, full_scenes, quick_scenes
from benchmarks.placement.simulated import simulate
from benchmarks.placement.workloads import SHAPES, make_requests, make_trace, poisson_s, study, write_trace
from benchmarks.registry import BenchmarkOptions
from stretto.model.errors import UserError
from stretto.trace.agents.formats import read_agent_trace
from stretto.trace.agents.known_prompts import known_prompts
from stretto.trace.agents.sharing import quantities, study_prompts

PAIR = ("A6000",) * 2


@pytest.mark.parametrize("name", SHAPES)
def test_workloads_have_the_wanted_lengths_and_differ_by_seed(name: str) -> None:
    requests = make_requests(name, 150)
    again, other = make_requests(name, 150), make_requests(name, 150, seed=1)
    assert requests == again != other
    lengths = [request.num_tokens for request in requests]
    mean, deviation = SHAPES[name].prompt_tokens
    assert statistics.fmean(lengths) == pytest.approx(mean, rel=0.1)
    assert statistics.pstdev(lengths) == pytest.approx(deviation, rel=0.3)


@pytest.mark.parametrize(("name", "num"), [("toolbench", 4000), ("embodied", 2000), ("video", 500)])
def test_means_and_deviations_are_those_of_the_paper(name: str, num: int) -> None:
    found = quantities(study(make_requests(name, num)))
    for quantity, (mean, deviation) in paper(name).items():
        assert statistics.fmean(found[quantity]) == pytest.approx(mean, rel=0.1), quantity
        assert statistics.pstdev(found[quantity]) == pytest.approx(deviation, rel=0.1), quantity


def test_short_problems_share_the_system_prompt() -> None:
    """That is why some key portion has as many sharers as there are requests."""
    found = quantities(study(make_requests("programming", 4000)))
    for quantity, (mean, _) in paper("programming").items():
        assert statistics.fmean(found[quantity]) == pytest.approx(mean, rel=0.1), quantity
    assert max(found["key_sharers"]) == 4000


def paper(name: str) -> dict[str, tuple[float, float]]:
    return {**TABLE_1[name], "output_tokens": OUTPUTS[name], "key_sharers": SHARERS[name]}


def test_popular_groups_by_zipf() -> None:
    requests = make_requests("toolbench", 400, zipf=1.1)
    counts = sorted(sum(r.group == group for r in requests) for group in {r.group for r in requests})
    assert counts[-1] > 2 * counts[-2] * 0.8


def test_a_written_trace_shares_what_the_requests_share(tmp_path: Path) -> None:
    requests = make_requests("embodied", 60)
    write_trace(make_trace(requests, poisson_s(60, 5.0)), tmp_path / "trace.jsonl")
    read = list(known_prompts(read_agent_trace(tmp_path / "trace.jsonl")))
    assert [one.shared_tokens for one in study_prompts(read)] == [
        one.shared_tokens for one in study(requests)
    ]


def test_missing_texts_and_unknown_workloads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no texts"):
        make_requests("toolbench", 10, data=tmp_path)
    with pytest.raises(UserError, match="there is no workload 'chat'"):
        make_requests("chat", 10)


@pytest.mark.long
def test_all_tables_at_toy_size(tmp_path: Path) -> None:
    scenes = tuple(replace(scene, num=30) for scene in quick_scenes())
    requests = dict.fromkeys(SHAPES, 100)
    size = replace(QUICK, decisions=40, runs=2, history=(50, 100), requests=requests, scenes=scenes)
    report = measure(size, BenchmarkOptions(cells=tmp_path))
    tables = {row.table for row in report.rows}
    assert {SPEED, WORKLOADS, RATIOS, *map(table_of, QUICK.hits or ())} <= tables
    for scene in scenes:
        simulated = report.table(f"{scene.group}: {scene.name}")
        assert list(simulated) == [BOUND, *scene.contestants]
        bound = float(simulated[BOUND].values["mean_s"] or 0)
        for name in scene.contestants:
            values = simulated[name].values
            assert float(values["mean_s"] or 0) > bound > 0
            assert values["failed"] == 0
            assert float(values["first_mean_s"] or 0) < float(values["mean_s"] or 0)
    assert {goal.better for goal in report.goals} == {"higher", "lower"}


def test_a_cache_evicts_the_end_of_the_prompt_that_was_not_used_for_longest() -> None:
    cache = LRUCache(6 * 64, 64)
    first, second = (Keyed(0.0, 200, 1, [b"%d%d" % (n, at) for at in range(4)], 64) for n in range(2))
    assert [cache.use(one)[0] for one in (first, first, second, first)] == [0, 200, 0, 128]


@pytest.mark.parametrize("has_events", [False, True])
def test_hits_of_a_replay_are_bounded_by_one_cache_for_all(has_events: bool) -> None:
    requests = HitScene("tools", "toolbench", 300, 20.0, 20).requests(3, None)
    for size, least in ((None, 0.97), (20_000, 0.75)):
        pool = pooled_share(requests, None if size is None else 4 * size)
        found = {
            name: replay_hits(
                requests, PLACEMENTS[name](), machine("A6000").profile, 4, size, has_events=has_events
            )
            for name in ("round_robin", "stretto")
        }
        ours, plain = found["stretto"], found["round_robin"]
        assert plain.hit_share < 0.9 * ours.hit_share
        assert least * pool < ours.hit_share
        assert size is not None or ours.hit_share <= pool
        assert plain.requests_imbalance == 1.0
        assert 1.0 <= ours.work_imbalance < 2.0


def test_finished_cells_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene("workloads", "toolbench", 20, 4.0, PAIR, contestants=("round_robin",))
    options = BenchmarkOptions(cells=tmp_path)
    first = simulate_scenes([scene], 1, options)
    runs = Counter[str]()

    def counted(*arguments: object) -> object:
        runs["simulate"] += 1
        return simulate(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("benchmarks.placement.latency.simulate", counted)
    assert simulate_scenes([scene], 1, options) == first
    assert not runs
    simulate_scenes([replace(scene, contestants=("round_robin", "stretto"))], 1, options)
    simulate_scenes([replace(scene, slowness=3.0)], 1, options)
    assert runs["simulate"] == 3, "the result of a cell depends on all settings of its scene"


def test_the_oracle_knows_the_groups_of_all_requests() -> None:
    requests = make_requests("video", 60)
    trace = make_trace(requests, poisson_s(60, 1.0))
    portions = key_portions(requests, trace)
    assert len({block for block, _ in portions}) == len({request.group for request in requests})
    found = simulate(
        trace,
        new_policy("oracle_partition", requests, trace, 2),
        Scene("workloads", "video", 60, 1.0, PAIR).instances(),
    )
    possible = sum(one.found_tokens for one in study(requests)) / sum(one.num_tokens for one in requests)
    assert found.hit_share == pytest.approx(possible, rel=0.03)


def test_the_papers_oracle_splits_key_portions_by_number_and_the_harder_one_by_load() -> None:
    requests = make_requests("toolbench", 300, zipf=1.1)
    trace = make_trace(requests, poisson_s(300, 10.0))
    portions = dict(key_portions(requests, trace))
    unevenness = {}
    for name in ORACLES:
        policy = new_policy(name, requests, trace, 3)()
        assert isinstance(policy, OraclePartition)
        parts = [[load for block, load in portions.items() if policy.parts[block] == n] for n in range(3)]
        unevenness[name] = (
            max(map(sum, parts)) / min(map(sum, parts)),
            max(map(len, parts)) - min(map(len, parts)),
        )
    by_load, by_number = (unevenness[name] for name in ORACLES)
    assert by_number[1] <= 1 < by_load[1]
    assert by_load[0] < 1.2 < by_number[0]


def test_prompts_without_sharing_share_nothing() -> None:
    requests, _ = Scene("no sharing", "toolbench", 50, 1.0, PAIR).requests(0, None)
    assert all(one.shared_tokens == 0 for one in study(requests))
    original = make_requests("toolbench", 50)
    assert [one.num_tokens for one in requests] == [one.num_tokens for one in original]


def test_requests_at_the_times_of_azure(tmp_path: Path) -> None:
    (tmp_path / "toolbench").mkdir()
    (tmp_path / "toolbench" / "a.txt").write_text("a tool " * 5000)
    (tmp_path / "traces").mkdir()
    for number, name in enumerate(("code", "conv")):
        lines = ["arrival_s,prompt_tokens,output_tokens"]
        lines += [f"{number + 2 * at},100,10" for at in range(300)]
        (tmp_path / "traces" / f"azure_llm_2023_{name}.csv").write_text("\n".join(lines))
    scene = Scene("Azure mixture", "tools and videos", 40, 0.0, PAIR)
    requests, arrivals_s = scene.requests(0, tmp_path)
    assert arrivals_s == pytest.approx([0.7 * number for number in range(40)])
    assert statistics.fmean(one.num_tokens for one in requests[::2]) < 4000, "tools"
    assert statistics.fmean(one.num_tokens for one in requests[1::2]) > 6000, "videos"


def test_a_straggler_and_an_unlike_instance_take_longer_or_less() -> None:
    requests = make_requests("toolbench", 30)
    trace = make_trace(requests, poisson_s(30, 2.0))
    plain = Scene("workloads", "toolbench", 30, 1.0, PAIR)
    means = []
    for scene in (plain, replace(plain, slowness=4.0), replace(plain, machines=("A100", "A100"))):
        policy = new_policy("round_robin", requests, trace, 2)
        means.append(simulate(trace, policy, scene.instances()).mean_s)
    usual_s, straggler_s, faster_s = means
    assert faster_s < 0.8 * usual_s < usual_s < straggler_s


def test_machines_cost_what_they_should() -> None:
    a6000, h100 = machine("A6000").profile, machine("4xH100").profile
    assert a6000.per_unit_s == pytest.approx(0.00012, rel=0.05)
    assert a6000.per_output_s == pytest.approx(0.025, rel=0.1)
    assert 0.00002 < h100.per_unit_s < 0.00012
    assert 0.008 < h100.per_output_s < 0.03


def test_a_loss_is_only_named_beyond_the_spread() -> None:
    scene = Scene("no sharing", "toolbench", 10, 1.0, PAIR)

    def simulated(**means: tuple[float, ...]) -> Simulated:
        outcomes = {name: [{"mean_s": one, "p99_s": one} for one in found] for name, found in means.items()}
        return Simulated(scene, outcomes, [0.5])

    noisy = simulated(stretto=(1.0, 3.0), lmetric=(2.0, 1.8), least_loaded=(2.0, 2.0))
    assert not where_we_lose([noisy])
    assert goals([noisy])[0].value == 0
    lost = simulated(stretto=(2.0, 3.0), lmetric=(1.8, 2.7), least_loaded=(2.0, 3.0))
    assert where_we_lose([lost]) == [f"no sharing: {scene.name}: lmetric is better, by 1.11 times"]
    assert goals([lost])[0].value == 1


def test_the_scenes_have_the_parts_of_the_papers_evaluation() -> None:
    scenes = list(full_scenes(with_azure=True))
    assert len({scene.group for scene in scenes}) == 7
    workloads = [scene for scene in scenes if scene.group == "workloads"]
    for name in SHAPES:
        sizes = {(len(one.machines), one.machines[0]) for one in workloads if one.workload == name}
        assert sizes == {(2, "A6000"), (4, "A6000"), (8, "A6000"), (2, "4xH100")}
    assert all(scene.contestants == POLICIES for scene in workloads)
    assert [scene for scene in scenes if scene.contestants == ABLATION]
    assert all(scene.num <= 1200 for scene in scenes), "each cell is cheap"
