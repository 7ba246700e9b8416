"""The twin of a machine: shared cores, fitted costs, and what is said of the agreement."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.machines import compiled

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from benchmarks.common.simulated_answers import as_max_tokens
from benchmarks.twin.alone import alone, choose_evenly, measure_batches, slowdown
from benchmarks.twin.compare import Cell, TwinRun, agreement_rows, goals, ranking_rows, rankings
from benchmarks.twin.costs import BatchFit, RequestStepCost, Sharing, fit_batches, fit_requests
from benchmarks.twin.shared_cores import SharedCoresDriver, own_vectors, remembering
from stretto.costs.shape import StepShape
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, Done, LLMTask, Task, Usage
from stretto.model.values import Document, Section, Segment
from stretto.sim.llm_instance import SimulatedModel
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import filler_output

pytest_plugins = ("support.llm_fixtures",)

BOTH = (
    "graph g(%xs: list[text], %q: text)\n%v = embed(each %xs) : list[vector] @e\n"
    '%k = prefill([c"Answer: ", %q]) : kv @llm\n%a = decode(%k) {max_tokens=10} : text @llm\nreturn %v, %a'
)
ONE = "graph g(%xs: list[text])\n%v = embed(each %xs) : list[vector] @{0}\nreturn %v"


def batch_engine(name: str = "e") -> Deployment:
    return deploy(name, FakeBatch, FakeBatchConfig(), profile=Profile(0.0, 0.5, 4), timeout_s=None)


def driver(sharing: Sharing, *engines: Deployment, **models: SimulatedModel) -> SharedCoresDriver:
    return SharedCoresDriver(engines, sharing, models=models, batch_costs={})


def ends_s(run: SharedCoresDriver) -> dict[str, float]:
    replies = run.run()
    assert all(reply.error is None for reply in replies.values())
    return {name: query.end_s or 0.0 for name, query in run.recorder.queries.items()}


def test_one_busy_process_is_as_fast_as_alone() -> None:
    run = driver(Sharing(1.5, 1.5, 1.5, 2), batch_engine())
    run.submit("1", compiled(ONE.format("e")), {"xs": ["a", "b"]}, at_s=1.0)
    assert ends_s(run)["1"] == pytest.approx(2.0)


def test_two_are_slowed_down_while_both_are_busy() -> None:
    """Two seconds of work and one: after 1.5 s the shorter has ended, and of the longer 1 s is left."""
    run = driver(Sharing(1.5, 1.5, 1.5, 2), batch_engine(), batch_engine("f"))
    run.submit("long", compiled(ONE.format("e")), {"xs": list("abcd")})
    run.submit("short", compiled(ONE.format("f")), {"xs": ["a", "b"]})
    ended = ends_s(run)
    assert ended["short"] == pytest.approx(1.5, abs=0.01)
    assert ended["long"] == pytest.approx(2.5, abs=0.01)


def test_more_processes_than_cores_take_turns() -> None:
    names = ["e", "f", "g"]
    run = driver(Sharing(1.0, 1.0, 1.0, 2), *map(batch_engine, names))
    for name in names:
        run.submit(name, compiled(ONE.format(name)), {"xs": ["a", "b"]})
    assert ends_s(run) == pytest.approx(dict.fromkeys(names, 1.5), abs=0.01)


def llm_model(seconds_of_step: float) -> SimulatedModel:
    cost = ProfileCost(Profile(seconds_of_step, 0.0, 4, seconds_of_step))
    return SimulatedModel(SchedulerConfig(64), cost, filler_output(as_max_tokens))


def test_steps_of_an_llm_are_slowed_down_by_a_batch_that_runs_beside_them() -> None:
    """Eleven steps of 0.1 s, ten of which are beside a batch of one second, which they slow down as well."""
    llm = deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm", timeout_s=None, keeps_state=True)
    plan = compiled(BOTH)
    alone = driver(Sharing(2.0, 2.0, 2.0, 2), batch_engine(), llm, llm=llm_model(0.1))
    alone.submit("1", plan, {"xs": [], "q": "why?"})
    together = driver(Sharing(2.0, 2.0, 2.0, 2), batch_engine(), llm, llm=llm_model(0.1))
    together.submit("1", plan, {"xs": ["a", "b"], "q": "why?"})
    alone_s = ends_s(alone)["1"]
    assert alone.steps_s["llm"] == pytest.approx(alone_s)
    assert ends_s(together)["1"] == pytest.approx(2 * alone_s, rel=0.15)
    assert together.steps_s["llm"] > 1.8 * alone_s


def test_an_llm_may_suffer_less_than_its_neighbour() -> None:
    """One second of a batch takes two; of the 2 s of steps beside it, 20 of 0.1 s each, none takes longer."""
    llm = deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm", timeout_s=None, keeps_state=True)
    run = driver(Sharing(1.0, 1.0, 2.0, 2), batch_engine(), llm, llm=llm_model(0.1))
    run.submit("1", compiled(BOTH.replace("max_tokens=10", "max_tokens=40")), {"xs": ["a", "b"], "q": "why?"})
    ends_s(run)
    embedding = next(span for span in run.recorder.spans if span.engine == "e")
    assert embedding.end_s == pytest.approx(2.0, abs=0.01)
    assert run.steps_s["llm"] == pytest.approx(ends_s(run)["1"])


class Counting(FakeBatch):
    """An engine that counts how often it is asked."""

    asked = 0

    def run(self, tasks: Sequence[Task]) -> list[object]:
        Counting.asked += len(tasks)
        return super().run(tasks)


def task(op: str, texts: Sequence[str], query: str = "q") -> Task:
    return Task(0, query, op, op, {"texts": list(texts)}, {}, len(texts), ("texts",))


def test_two_llms_have_a_slowdown_of_their_own() -> None:
    sharing = Sharing(1.7, 1.2, 1.1, 2)
    assert sharing(True, 1, 0) == sharing(False, 0, 1) == 1.0
    assert sharing(True, 1, 1) == 1.7
    assert sharing(True, 2, 0) == 1.2
    assert sharing(False, 1, 1) == 1.1
    assert sharing(True, 2, 1) == pytest.approx(1.7 * 1.5)


def test_answers_are_the_real_ones_and_computed_once() -> None:
    Counting.asked = 0
    real = deploy("e", Counting, FakeBatchConfig(), runs_in="process")
    vectors = deploy("vectors", own_vectors, None, keeps_state=True, runs_in="process")
    simulated, kept = remembering([real, vectors])
    assert kept.replicas[0].executable is own_vectors
    tasks = [task("embed", ["a", "b"]), task("embed", ["c"])]
    (replica,) = simulated.replicas
    first, second = (replica.executable(replica.config) for _ in range(2))
    assert first.run(tasks) == second.run(tasks) == FakeBatch(FakeBatchConfig()).run(tasks)
    assert Counting.asked == 2
    first.close()


def test_the_fit_of_batches_finds_what_items_and_characters_cost() -> None:
    true = BatchFit(0.01, {"embed": 0.002, "search": 0.05}, {"embed": 0.0001, "search": 0.0})
    sizes = [(1, 10), (1, 300), (4, 50), (16, 20), (8, 200)]
    batches = [[task("embed", ["x" * length] * count)] for count, length in sizes]
    batches += [[task("search", ["x"] * count), *batches[0]] for count in (1, 3)]
    fit = fit_batches([(tasks, true.seconds(tasks)) for tasks in batches])
    for tasks in batches:
        assert fit.seconds(tasks) == pytest.approx(true.seconds(tasks), rel=1e-3)
    assert fit.seconds([task("embed", ["x" * 100] * 2)]) == pytest.approx(0.01 + 0.004 + 0.02, rel=1e-2)


def test_nothing_in_a_fit_is_negative() -> None:
    tasks = [[task("embed", ["x"] * count)] for count in (1, 2, 3)]
    fit = fit_batches(list(zip(tasks, (0.3, 0.2, 0.1), strict=True)))
    assert min(fit.base_s, *fit.per_item_s.values(), *fit.per_char_s.values()) >= 0


def test_requests_cost_more_than_their_steps() -> None:
    class Steps:
        def step_s(self, shape: StepShape) -> float:
            return 0.001 * shape.prefill_tokens + 0.002 * shape.num_decodes

        def steps_s(self, shape: StepShape, num_repeats: int) -> float:
            return num_repeats * self.step_s(shape)

    def seconds(prompt: int, output: int) -> float:
        return 0.001 * prompt + 0.002 * (output - 1) + 0.004 + 0.0005 * (output - 1)

    sizes = [(10, 1), (600, 8), (80, 30), (40, 16)]
    cost = fit_requests(Steps(), [(seconds(*size), Usage(size[0], 0, size[1])) for size in sizes], 512)
    assert isinstance(cost, RequestStepCost)
    assert (cost.per_request_s, cost.per_token_s) == pytest.approx((0.004, 0.0005))
    assert cost.step_s(StepShape(1, 10, 10, 55)) == pytest.approx(0.014)
    assert cost.steps_s(StepShape(num_decodes=2, context_tokens=9, max_context_tokens=5), 3) == pytest.approx(
        3 * 2 * 0.0025
    )


class Clockwork:
    """An engine that takes as many seconds as it had requests before, and notes its requests."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def batch_s(self, tasks: Sequence[Task]) -> float:
        self.asked.append(tasks[0].query)
        return float(len(self.asked))

    def forget(self, queries: Iterable[str]) -> None:
        self.asked += [("forget", query) for query in sorted(queries)]


def test_batches_that_build_on_each_other_are_measured_in_their_order() -> None:
    batches = [[task("ingest", ["x"], "a")], [task("search", ["x"], "b")]]
    kept, plain = Clockwork(), Clockwork()
    measured = measure_batches(kept, batches, rounds=2, keeps_state=True)
    ends = [("forget", "a"), ("forget", "b")]
    assert kept.asked == ["a", *ends, "a", "b", *ends, "a", "b", *ends]
    assert [tasks for tasks, _ in measured] == batches
    measure_batches(plain, batches, rounds=2, keeps_state=False)
    assert plain.asked == ["a", "a", "b", "a", "b"]


@pytest.mark.parametrize("max_s", [0.0, float("inf")])
def test_rounds_end_when_time_is_up(max_s: float) -> None:
    instance = Clockwork()
    measure_batches(instance, [[task("embed", ["x"])]], rounds=3, keeps_state=False, max_s=max_s)
    assert len(instance.asked) == (2 if max_s == 0 else 4)


def test_engines_that_are_measured_go_with_an_interruption() -> None:
    def interrupted() -> None:
        engines = [deploy(name, FakeBatch, FakeBatchConfig()) for name in ("e", "f")]
        with alone(engines) as instances:
            assert instances["f"].batch_s([task("embed", ["x"])]) > 0
            assert len(multiprocessing.active_children()) == 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert multiprocessing.active_children() == []


def test_the_smallest_and_the_largest_batch_are_chosen() -> None:
    batches = [[task("embed", ["x"] * count)] for count in (7, 1, 4, 9, 2)]
    chosen = choose_evenly(batches, 3)
    assert [tasks[0].num_items for tasks in chosen] == [1, 4, 9]
    assert choose_evenly(batches, 9) == sorted(batches, key=lambda tasks: tasks[0].num_items or 0)


def cell(scheme: str, runs: Sequence[Sequence[float]], simulated: Sequence[float], answer: str = "a") -> Cell:
    measured = tuple(TwinRun(tuple(run), ("a",) * len(run)) for run in runs)
    return Cell("naive", "alone", scheme, measured, TwinRun(tuple(simulated), (answer,) * len(simulated)))


def test_errors_are_against_the_mean_of_the_runs_and_beside_their_spread() -> None:
    one = cell("p", [(1.0, 2.0), (1.2, 1.8)], (1.2, 2.1))
    assert one.mean_error == pytest.approx(0.1)
    assert one.mean_spread == pytest.approx(0.0)
    assert one.p99_s == 2.0
    assert one.p99_error == pytest.approx(0.05)
    assert one.p99_spread == pytest.approx(0.2 / 1.9)
    assert one.query_errors() == pytest.approx([1 / 11, 2 / 19])
    assert one.query_spreads() == pytest.approx([0.2 / 1.1, 0.2 / 1.9])
    values = agreement_rows([one])[0].values
    assert values["error_percent"] == pytest.approx(10.0)
    expected = [10, 5, 100 * (1 / 11 + 2 / 19) / 2, 200 / 19, 0, 0, 0]
    assert [goal.value for goal in goals([one])] == pytest.approx(expected)


def test_the_99th_percentile_is_of_all_runs_together() -> None:
    runs = [[1.0] * 49 + [9.0], [1.0] * 50, [1.0] * 50]
    assert cell("p", runs[:1], [1.0]).p99_s == 9.0
    assert cell("p", runs, [1.0]).p99_s == 1.0


def test_schemes_are_ranked_only_where_they_differ_by_more_than_the_spread() -> None:
    base = cell("a", [(1.0,), (1.1,)], (1.0,))
    near = cell("b", [(1.05,), (1.1,)], (2.0,))
    slower = cell("c", [(2.0,), (2.1,)], (3.0,))
    wrong = cell("d", [(2.0,), (2.1,)], (0.5,))
    verdicts = {
        one.second.scheme: one.verdict for one in rankings([base, near, slower, wrong]) if one.first is base
    }
    assert verdicts == {"b": "within the spread", "c": "same", "d": "different"}
    other_app = Cell("search", "alone", "c", slower.measured, slower.simulated)
    assert rankings([base, other_app]) == []
    assert [row.values["ranking"] for row in ranking_rows([base, slower])] == ["same"]


@pytest.mark.parametrize(
    ("seconds", "simulated", "num_comparable", "percent", "are_met"),
    [
        ((1.05, 1.1), 9.0, 0, 0, False),  # reality ranks nothing: that proves nothing
        ((2.0, 2.1), 1.5, 1, 100, True),
        ((2.0, 2.1), 0.9, 1, 0, False),
    ],
)
def test_the_goal_of_rankings_needs_some(
    seconds: tuple[float, float], simulated: float, num_comparable: int, percent: float, are_met: bool
) -> None:
    base = cell("a", [(1.0,), (1.1,)], (1.0,))
    of_rankings = goals([base, cell("b", [(one,) for one in seconds], (simulated,))])[4:6]
    assert [goal.value for goal in of_rankings] == [num_comparable, percent]
    assert all(goal.met for goal in of_rankings) == are_met


def test_other_answers_are_counted() -> None:
    assert goals([cell("a", [(1.0, 1.0)], (1.0, 1.0), answer="b")])[6].value == 2


def test_the_slowdown_is_of_the_part_that_is_shared() -> None:
    """A job of 4 s has 3 s that take 6 s beside another job, and a last one that takes 1 s."""
    assert slowdown(4.0, 7.0, 6.0) == pytest.approx(2.0)
    assert slowdown(4.0, 6.0, 6.0) == pytest.approx(1.5)
    assert slowdown(4.0, 3.9, 3.0) == 1.0


@pytest.mark.parametrize("items", [None, "json_list"])
def test_the_scripted_llm_writes_what_the_simulation_writes(tiny_checkpoint: Path, items: str | None) -> None:
    pytest.importorskip("torch")
    from benchmarks.common.scripted_transformer import Script, ScriptedTransformer
    from stretto.engines.prompt_tokens import PromptTokenizer
    from stretto.engines.transformer.engine_config import TransformerConfig
    from stretto.planner.measure_steps import StepLoad, measure_steps

    config = TransformerConfig(tiny_checkpoint)
    prompt = (
        Segment("Answer. "),
        Segment("The river runs to the sea. The mill stands still.", "context"),
        Segment("Where does the river run to?", "question"),
    )
    decode = Decode(max_tokens=64, items=items)
    tasks = [LLMTask(number, f"q{number}", "answer", prompt, decode) for number in range(2)]
    script = Script(PromptTokenizer(tiny_checkpoint))
    said = script.output(tasks[0], decode)
    llm = ScriptedTransformer(config)
    for one in tasks:
        llm.admit(one, ())
    ended = []
    while llm.has_work():
        ended += [event for event in llm.step() if isinstance(event, Done)]
    assert [event.value for event in ended] == [said.value] * 2
    assert all(event.usage.num_output_tokens == said.num_tokens for event in ended)
    assert all(event.usage.num_prompt_tokens == len(script.prompt(prompt)) for event in ended)
    if isinstance(said.value, list):
        assert len(said.item_ends) == len(said.value) > 1
        assert said.item_ends[-1] <= said.num_tokens
    steps = measure_steps(ScriptedTransformer(config), StepLoad(tasks, (1, 2), 60.0))
    assert max(step.shape.num_decodes for step in steps) == 2
    assert sum(step.shape.num_decodes for step in steps) == 4 * (said.num_tokens - 1)


DOCUMENTS = [
    Document(name, (Section(f"The river {name} runs to the sea. " * 20, f"On the {name}"),), name)
    for name in ("Elbe", "Rhine", "Danube")
]


def test_a_machine_is_simulated_under_schemes_that_differ() -> None:
    """The app without an embedding, so that no model is loaded."""
    for package in ("torch", "transformers", "bm25s"):
        pytest.importorskip(package)
    from benchmarks.common.scripted_apps import fresh_questions
    from benchmarks.teola.schemes import OURS
    from benchmarks.twin.costs import MachineCosts
    from benchmarks.twin.machine import ALONE, TOGETHER, TwinMachine

    machine = TwinMachine(DOCUMENTS, ("search",), (OURS, "LlamaDist-PO"), 8)
    batches, requests = machine.rehearse(fresh_questions(DOCUMENTS, 2, "rehearsal"))
    assert set(batches) == {"web"}
    assert len({task.id for task in requests}) == len(requests)
    assert any(task.decode is None for task in requests)  # what only our passes do
    steps = RequestStepCost(ProfileCost(Profile(0.01, 0.001, 4, 0.005)), 0.0, 0.0)
    costs = MachineCosts({"web": BatchFit(0.02, {}, {})}, steps, Sharing(1.0, 1.0, 1.0, 2))
    alone, together = machine.workloads({"search": 3}, 0.7, costs, 0)
    assert (alone.name, together.name) == (ALONE, TOGETHER)
    assert len(set(alone.questions)) == 3
    assert together.at_s is not None
    assert together.at_s[0] == 0.0 < together.at_s[1] < together.at_s[2]
    ours, theirs = (machine.simulate(alone, scheme, costs) for scheme in (OURS, "LlamaDist-PO"))
    assert ours == machine.simulate(alone, OURS, costs)
    assert ours.answers == theirs.answers
    assert ours.mean_s < theirs.mean_s


class FakeMachine:
    """One engine and one app, at once."""

    schemes = ("a", "b")

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def real(self, scheme: str) -> list[Deployment]:
        return [deploy("e", FakeBatch, FakeBatchConfig(), policy="topology_aware")]

    def plan(self, app: str, scheme: str) -> Any:
        self.asked.append((app, scheme))
        return compiled(
            "graph g(%xs: list[text])\n%answer = embed(each %xs) : list[vector] @e\nreturn %answer"
        )

    def inputs(self, app: str, question: str) -> dict[str, object]:
        return {"xs": [question]}


@pytest.mark.parametrize(("max_s", "num_repeats"), [(float("inf"), 4), (0.0, 2)])
def test_runs_are_repeated_while_there_is_time_and_twice_at_least(max_s: float, num_repeats: int) -> None:
    from benchmarks.twin.machine import TwinWorkload
    from benchmarks.twin.runs import run_all

    machine = FakeMachine()
    workloads = [
        TwinWorkload("app", "alone", ("x", "y"), None),
        TwinWorkload("app", "together", ("x", "y"), (0.0, 0.001)),
    ]
    said: list[str] = []
    found = asyncio.run(run_all(machine, workloads, 4, max_s, said.append))  # type: ignore[arg-type]
    assert set(found) == {("app", workload.name, scheme) for workload in workloads for scheme in "ab"}
    assert {len(runs) for runs in found.values()} == {num_repeats}
    (answers,) = {tuple(map(str, run.answers)) for runs in found.values() for run in runs}
    assert len(set(answers)) == 2
    order = [scheme for _, scheme in machine.asked[2:]]  # the first two warm up
    assert order[:8] == ["a", "b", "a", "b", "b", "a", "b", "a"]
    assert any(f"of {4} repeats fit" in line for line in said) == (num_repeats < 4)
