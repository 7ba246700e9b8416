"""The evaluation of the Parrot paper: its workflows, clients and tables at toy size."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from benchmarks.parrot import contestants, runs, tables
from benchmarks.parrot.agents import NUM_ROUNDS, coding
from benchmarks.parrot.benchmark import ParrotSize, measure
from benchmarks.parrot.contestants import CONTESTANTS, LATENCY_TOKENS, contestant, is_there
from benchmarks.parrot.machines import MACHINES, a100
from benchmarks.parrot.recorded import RecordedCall, in_rounds, infinite_share, load_calls
from benchmarks.parrot.repeated import repeated_tokens
from benchmarks.parrot.runs import Ran, run_scenes
from benchmarks.parrot.scenes import PARTS, Scene, full_scenes, quick_scenes
from benchmarks.parrot.sharing import CASES, read_by_eight
from benchmarks.parrot.simulated import Outcome, simulate
from benchmarks.parrot.workflows import Arrival, Call, Output, Workflow
from benchmarks.parrot.workloads import chain, copilot, make_load, map_reduce
from benchmarks.registry import BenchmarkOptions
from stretto.graph.verify import verify
from stretto.model.errors import ConfigError, UserError

MODEL = "Llama-2-13b-hf"


@cache
def run(name: str, *workflows: Workflow, num_instances: int = 1) -> Outcome:
    arrivals = [Arrival(0.0, workflow) for workflow in workflows]
    return simulate(contestant(name), a100(MODEL), num_instances, arrivals, 0)


@cache
def chain_of_three() -> Workflow:
    return chain("document", 600, 200, 10)


def latency_s(outcome: Outcome) -> float:
    (measured,) = outcome.kinds.values()
    return max(measured.latencies_s)


def test_a_workflow_is_one_graph_whose_inputs_are_its_texts() -> None:
    workflow = map_reduce("document", 600, 200, 10)
    graph = workflow.graph()
    verify(graph)
    assert [name for name, _ in graph.outputs] == ["reduce"]
    assert [name for name, _ in graph.inputs] == list(workflow.texts)
    assert workflow.prompt_tokens == 600 + 4 * 30 + 3 * 10
    assert workflow.num_output == 10


def test_agents_end_with_all_files_and_share_what_their_stage_has_in_common() -> None:
    workflow = coding("project", 4)
    assert len(workflow.calls) == 1 + 4 + 2 * 4 * NUM_ROUNDS
    assert list(workflow.results) == [f"revise{NUM_ROUNDS}_{number}" for number in range(4)]
    assert repeated_tokens([workflow]) / workflow.prompt_tokens > 0.7
    verify(workflow.graph())


def test_a_token_is_repeated_if_an_earlier_prompt_begins_with_all_up_to_it() -> None:
    one = Workflow("one", (Call("a", ("abc", "defg"), 1), Call("b", ("abc", "hij", "defg"), 1)))
    assert repeated_tokens([one]) == 1
    assert repeated_tokens([one, one]) == 1 + one.prompt_tokens


def test_a_client_far_away_pays_a_trip_for_each_call_and_the_service_one() -> None:
    by_call, as_graph = run("throughput", chain_of_three()), run("stretto", chain_of_three())
    assert 2 * 0.2 < latency_s(by_call) - latency_s(as_graph) < 2 * 0.3 + 0.2
    assert by_call.prompt_tokens == as_graph.prompt_tokens == by_call.filled_tokens


def test_a_client_waits_for_no_stage_but_only_for_what_a_call_reads() -> None:
    slow, fast = Call("slow", ("text",), 400), Call("fast", ("text",), 2)
    both = Workflow("both", (slow, fast, Call("next", (Output("fast"),), 2)))
    alone = Workflow("alone", (slow,))
    assert latency_s(run("throughput", both)) < latency_s(run("throughput", alone)) + 0.5


def test_the_latency_baseline_holds_no_more_tokens_than_it_says() -> None:
    workflow = map_reduce("document", 20_000, 1000, 10)
    cautious, bold = run("latency", workflow), run("throughput", workflow)
    assert cautious.kv_peak_tokens <= LATENCY_TOKENS < bold.kv_peak_tokens
    assert latency_s(cautious) > latency_s(bold)


def test_declared_prefixes_are_found_and_others_are_not() -> None:
    arrivals = [arrival.workflow for arrival in copilot(0, num=3, system_tokens=640)]
    assert run("static", *arrivals).filled_tokens < run("throughput", *arrivals).filled_tokens
    team = coding("project", 4)
    assert run("automatic", team).filled_tokens < 0.5 * run("static", team).filled_tokens


def test_reading_shared_context_once_is_faster_and_fills_the_same() -> None:
    arrivals = [arrival.workflow for arrival in copilot(0, num=8)]
    without, with_kernel = run("no kernel", *arrivals), run("stretto", *arrivals)
    assert latency_s(with_kernel) < latency_s(without)
    assert with_kernel.filled_tokens == without.filled_tokens


def test_equal_seeds_give_equal_runs_and_others_do_not() -> None:
    arrivals = make_load("gpts", 0, {"rate_per_s": 2.0, "num": 6})
    assert arrivals == make_load("gpts", 0, {"rate_per_s": 2.0, "num": 6})
    assert arrivals != make_load("gpts", 1, {"rate_per_s": 2.0, "num": 6})
    found = [simulate(contestant("stretto"), a100(MODEL), 2, arrivals, 0) for _ in range(2)]
    assert found[0] == found[1]


@pytest.mark.parametrize("is_chain", [False, True])
def test_one_answer_with_eight_readers_is_filled_once_among_four_instances(is_chain: bool) -> None:
    workflow = read_by_eight(is_chain=is_chain)
    num_others = workflow.prompt_tokens - 8 * 640
    assert run("stretto", workflow, num_instances=4).filled_tokens <= num_others + 1.1 * 640


@pytest.mark.parametrize("name", ["automatic", "parrot", "stretto"])
def test_calls_over_one_text_share_it_unless_they_differ_near_its_beginning(name: str) -> None:
    for case in CASES:
        workflows = [arrival.workflow for arrival in case.arrivals(0.0)]
        filled = run(name, *workflows, num_instances=4).filled_tokens
        assert (filled < 5000) == case.can_share, case.name


def test_recorded_calls_are_read_and_measured(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="recorded calls"):
        load_calls(tmp_path)
    folder = tmp_path / "multi_agent_coding"
    folder.mkdir()
    rows = [
        {"round": number, "system": "role", "user": "x" * 400 + end, "completion_tokens": 3}
        for number, end in ((0, "a"), (1, "bbbb"))
    ]
    with gzip.open(folder / "metagpt_pytorch_calls.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, rows)))
    calls = load_calls(tmp_path)
    assert calls == [
        RecordedCall(0, "role" + "x" * 400 + "a", 3),
        RecordedCall(1, "role" + "x" * 400 + "bbbb", 3),
    ]
    assert infinite_share(calls) == 101 / 205
    assert [arrival.at_s for arrival in in_rounds(calls)] == [0.0, 300.0]


def test_unknown_contestants_and_missing_policies_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no contestant 'nobody'"):
        contestant("nobody")
    changed = {**CONTESTANTS, "odd": replace(CONTESTANTS["stretto"], name="odd", placement="odd")}
    monkeypatch.setattr(contestants, "CONTESTANTS", changed)
    assert not is_there("odd")
    with pytest.raises(ConfigError, match="no placement policy 'odd'"):
        contestant("odd")


def test_all_scenes_name_contestants_machines_and_loads_that_exist() -> None:
    for scene in (*full_scenes(), *quick_scenes()):
        assert set(scene.contestants) <= set(CONTESTANTS)
        assert scene.machine in MACHINES
        kinds = {arrival.workflow.kind for arrival in make_load(scene.load, 0, scene.settings)}
        assert set(scene.kinds) == kinds


def test_the_parts_of_a_call_add_up_and_graphs_make_one_trip() -> None:
    by_call, as_graph = run("throughput", chain_of_three()), run("stretto", chain_of_three())
    for outcome, num_trips in ((by_call, 3), (as_graph, 1)):
        (measured,) = outcome.kinds.values()
        assert 0.2 * num_trips <= measured.trips_s <= 0.3 * num_trips
        assert measured.trips_s + measured.engine_s == pytest.approx(latency_s(outcome)), "nothing waits"


def test_the_shares_of_parts_are_those_of_the_latency() -> None:
    scene = replace(toy(), figure=PARTS)
    kind = {"mean_s": 10.0, "trips_s": 2.0, "engine_s": 5.0}
    rows = list(tables.parts_rows([Ran(scene, {"latency": [{"kinds": {"chain": kind}}]}), ran(toy(), {})]))
    assert rows[0].values == pytest.approx({"trips": 0.2, "waits": 0.3, "engine": 0.5})
    assert [row.origin for row in rows] == ["simulated", "quoted"]


def toy(name: str = "output 5") -> Scene:
    settings = {"app": "chain", "num": 1, "num_output": 5}
    names = ("latency", "automatic", "stretto")
    return Scene("11a chain", name, "one_by_one", settings, "A100, 13B", 1, names, ("chain",))


def test_a_report_has_all_tables_and_finished_runs_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = BenchmarkOptions(cells=tmp_path)
    size = ParrotSize((toy(),), 2, is_full=True, num_teams=0)
    report = measure(size, options)
    found = report.table("Figure 11a chain, chain")
    assert list(found) == ["output 5, latency", "output 5, automatic", "output 5, stretto"]
    (speed_up,) = report.table(tables.SPEED_UPS).values()
    ratio = found["output 5, latency"].values["mean_s"] / found["output 5, stretto"].values["mean_s"]  # type: ignore[operator]
    assert speed_up.values["stretto"] == pytest.approx(ratio, rel=0.02)
    assert speed_up.values["paper"] == 1.38
    assert any(goal.goal == 1.38 for goal in report.goals)
    monkeypatch.setattr(runs, "simulate", None)
    assert len(run_scenes(size.scenes, 2, options)[0].results["stretto"]) == 2


def ran(scene: Scene, means_s: dict[str, float], per_token_s: float = 0.05) -> Ran:
    def result(mean_s: float) -> dict[str, object]:
        kind = {"mean_s": mean_s, "per_token_s": per_token_s * mean_s, "latencies_s": [mean_s, 2 * mean_s]}
        return {"kinds": {scene.kinds[0]: kind}}

    return Ran(scene, {name: [result(mean_s)] for name, mean_s in means_s.items()})


def test_losses_and_places_behind_others_are_told() -> None:
    behind = ran(toy(), {"latency": 3.0, "automatic": 1.0, "stretto": 1.5})
    assert tables.losses([behind]) == ["11a chain, output 5, chain: automatic is better, 1.50 times"]
    (goal,) = tables.order_goals([behind])
    assert (goal.value, goal.met) == (1, False)
    assert behind.num_slower("stretto", "automatic", "chain") == 2
    ahead = ran(toy(), {"latency": 3.0, "automatic": 1.5, "stretto": 1.5})
    assert tables.losses([ahead]) == []
    assert tables.order_goals([ahead])[0].met


def test_a_rate_is_sustained_if_all_smaller_ones_are() -> None:
    scenes = [scene for scene in full_scenes() if scene.load == "gpts"][:3]
    runs_of = [
        ran(scene, {"throughput": slow, "stretto": fast})
        for scene, slow, fast in zip(scenes, (1.0, 3.0, 1.0), (1.0, 1.5, 2.5), strict=True)
    ]
    rows, goals = tables.rate_rows(runs_of)
    assert [row.values["rate_per_s"] for row in rows] == [0.25, 0.5]
    assert [goal.value for goal in goals] == [2.0]
