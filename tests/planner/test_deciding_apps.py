"""Apps whose answers decide: planned by draws, and run as when they are asked query by query."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.pages import DOCS, python_of

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto import DEFAULT, Component, Input, Runtime, Template
from stretto import programs as P  # noqa: N812
from stretto.apps.components.builder import Builder
from stretto.components import Condition, FirstPresent, LLMCall, ToolCall
from stretto.costs.presets import load_output_lengths
from stretto.graph.graph import Arg, Graph, Ref
from stretto.graph.ops import Port
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.model.replica import Engine, Replica
from stretto.model.tasks import Decode
from stretto.model.values import ABSENT
from stretto.planner.application import AppRequest
from stretto.planner.bound import lower_bound_s
from stretto.planner.deciding.answer_beliefs import AnswerBelief, of_form
from stretto.planner.deciding.app import LENGTH, DecidingApp
from stretto.planner.deciding.app_file import query_request
from stretto.planner.deciding.nodes import DrawnApplication, first_nodes, in_short
from stretto.planner.execute import execute
from stretto.planner.given_machine import given_machine
from stretto.planner.plan import Plan, PlannedReplica, Stage
from stretto.planner.plan_files import read_application
from stretto.planner.planners.table import PLANNERS
from stretto.planner.problem import Problem
from stretto.planner.run_times import RunTimes
from stretto.planner.running.model_queues import ModelQueues
from stretto.planner.running.offline_job import run_beside
from stretto.planner.running.plan_executor import Abandon, Add, DrainReplica, PlanExecutor
from stretto.planner.running.planned_calls import CallAnswer, CallEnded, PlannedCall, Progress
from stretto.planner.running.query_book import QueryBook
from stretto.planner.running.replanner import Replanner
from stretto.planner.running.replicas import local_plan
from stretto.planner.running.request_store import stored
from stretto.planner.running.run import PlanJob, RunOutcome, run_job
from stretto.planner.running.run_request import RunRequest
from stretto.planner.running.unplanned_run import OfflineJob
from stretto.programs.decided import DecidedProgram, program_of
from stretto.programs.traced import TracedProgram

QUESTION = Input("question", "text")
MODELS = {"small": "vicuna-13b-v1.5", "large": "Llama-2-70b-chat-hf"}
ROUNDS = 4


def refine() -> Template:
    """Refine a draft until it is good enough, at most `ROUNDS` times."""
    drafts = [LLMCall(name="draft", engine="small", prompt="{q}", q=QUESTION, max_tokens=60)]
    others: list[Component] = []
    for number in range(1, ROUNDS + 1):
        verdict = LLMCall(
            name=f"verdict{number}",
            engine="large",
            prompt="Good? {draft}",
            draft=drafts[-1]["text"],
            max_tokens=4,
        )
        good = Condition(name=f"good{number}", value=verdict["text"], equals="yes")
        again = {"q": QUESTION, "draft": drafts[-1]["text"], "when": good["no"]}
        drafts.append(
            LLMCall(name=f"refined{number}", engine="small", prompt="{q} {draft}", max_tokens=60, **again)
        )
        others += [verdict, good]
    options: dict[str, Any] = {draft.name: draft["text"] for draft in reversed(drafts)}
    best = FirstPresent(**options)
    return Template("refine", [*drafts, *others, best], {"answer": best["value"]})


def add_round(build: Builder, draft: Ref) -> Ref:
    longer = build.complete("longer", "{d} and?", {"d": draft}, engine="small", decode={"max_tokens": 9})
    other = build.complete("other", "{d} or?", {"d": longer}, engine="large", decode={"max_tokens": 8})
    settings = {"body": "until_even", "result": "text", "access": "none"}
    return build.add("answer", "expand", (Arg("draft", other),), config=settings)


def until_even(inputs: Mapping[str, object]) -> Graph:
    """Go on until the draft has an even number of words, of four characters each."""
    ports = (("draft", "text"),)
    if len(str(inputs["draft"])) // 4 % 2 == 0:
        return Graph("done", ports, (), (), (("answer", Ref("draft")),))
    build = Builder()
    build.reserve("draft")
    answer = add_round(build, Ref("draft"))
    return Graph("round", ports, tuple(build.primitives), (), (("answer", answer),))


class Growing(Component):
    """Asks until an answer decides that it is enough."""

    ports = (Port("question", "text"),)
    outs = {"answer": "text"}  # noqa: RUF012

    def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
        return {"answer": add_round(build, build.value("question"))}


def growing() -> Template:
    grown = Growing(question=QUESTION)
    parts = LLMCall(
        name="parts", engine="small", prompt="{q} {a}", q=QUESTION, a=grown["answer"], as_list=True
    )
    each = LLMCall(name="each", engine="large", prompt="{p}", p=parts["text"], each="p", max_tokens=5)
    vocabulary = DEFAULT.with_expansion("until_even", until_even)
    return Template("growing", [grown, parts, each], {"all": each["text"], "a": grown["answer"]}, vocabulary)


def app(template: Template, **answers: AnswerBelief | str) -> DecidingApp:
    return DecidingApp(template, MODELS, answers)


def yes(share: float) -> AnswerBelief:
    return AnswerBelief({text: one for text, one in (("yes", share), ("no", 1 - share)) if one}, "declared")


def problem(source: DecidingApp, num: int = 40, draws: int = 3) -> Problem:
    requests = [AppRequest(f"r{at}", 0, inputs={"question": f"Why {at}? " * 9}) for at in range(num)]
    machine = given_machine("4xA100-80G")
    return Problem(first_nodes(source), requests, machine, load_output_lengths(), num_draws=draws)


@pytest.mark.parametrize(("share", "least", "most"), [(1.0, 0, 0), (0.0, 40, 40), (0.5, 10, 30)])
def test_draws_have_no_call_whose_condition_is_false(share: float, least: int, most: int) -> None:
    some = problem(app(refine(), **{"verdict*": yes(share)}))
    for drawn in some.possible_draws:
        asked = {name: set(one.calls.requests.tolist()) for name, one in drawn.items()}
        for number in range(1, ROUNDS + 1):
            refined = asked.get(f"refined{number}", set())
            assert refined <= asked.get(f"verdict{number}", set())
            assert asked.get(f"verdict{number + 1}", set()) == (refined if number < ROUNDS else set())
        assert least <= len(asked.get("refined1", ())) <= most
        assert len(asked["draft"]) == len(asked["verdict1"]) == 40


def test_answers_of_a_step_that_no_draw_has_may_be_declared() -> None:
    some = problem(app(refine(), verdict1=yes(1.0), verdict4=yes(0.5)), 2)
    assert some.names == ["draft", "verdict1"]


def test_a_model_that_the_last_plan_lacks_comes_back_where_calls_of_it_wait() -> None:
    nodes = first_nodes(app(refine()))
    small, large = (Stage((PlannedReplica(model, (0,)),)) for model in MODELS.values())
    left = {node.name: int(node.name == "draft") for node in nodes.nodes}
    executor = PlanExecutor(nodes, Plan("first", (large,)), left, lambda: True)
    (added,) = (one for one in executor.switch(Plan("second", (small,))) if isinstance(one, Add))
    assert added.placed.model == MODELS["small"]
    ready = {node.name: int(node.name == "verdict1") for node in nodes.nodes}
    assert executor.stalled([MODELS["large"]], ready) == [DrainReplica(added.placed, "finish")]
    (again,) = executor.gone(added.placed)
    assert isinstance(again, Add)
    assert again.placed.model == MODELS["large"]


def test_calls_of_a_model_that_no_plan_has_fail() -> None:
    nodes = first_nodes(app(refine()))
    ready = dict.fromkeys((node.name for node in nodes.nodes), 0) | {"draft": 1}
    executor = PlanExecutor(nodes, Plan("none", ()), dict(ready), lambda: True)
    assert executor.advance() == []
    (given_up,) = executor.stalled([MODELS["small"]], ready)
    assert given_up == Abandon(MODELS["small"], "no plan has replicas of it")


def test_the_bound_is_below_what_a_plan_takes_with_the_same_draws() -> None:
    some = problem(app(refine(), **{"verdict*": yes(0.4)}), 20)
    plan = PLANNERS["stretto"](RunTimes(some))
    for drawn in some.possible_draws:
        done = execute(some, plan, drawn)
        assert 0 < lower_bound_s(some, drawn) <= done.makespan_s


@pytest.mark.parametrize("planner", PLANNERS)
def test_planners_take_steps_that_have_calls_in_some_draws_alone(planner: str) -> None:
    some = problem(app(refine(), **{"verdict*": yes(0.6)}), 3, 4)
    plan = PLANNERS[planner](RunTimes(some))
    assert {one.model for stage in plan.stages for one in stage.replicas} == set(MODELS.values())


def test_the_length_of_a_drawn_answer_decides_in_a_loop_that_grows() -> None:
    some = problem(app(growing(), other=LENGTH, parts=AnswerBelief({"2": 1.0}, "declared")), 20)
    assert {"longer", "parts", "each"} <= set(some.names)
    assert [len(one["each"].outputs) for one in some.draws] == [40, 40, 40]


@pytest.mark.parametrize(
    ("answers", "problem_of"),
    [
        ({}, "the answers of 'other' decide what step 'answer' becomes"),
        ({"other": LENGTH, "judge": yes(0.5)}, "answers are declared of 'judge'; the steps of the app are"),
        *(
            ({"other": LENGTH, "parts": AnswerBelief({width: 1.0}, "declared")}, "so each must be a number")
            for width in ("many", "-3", "3000000000")
        ),
        (
            {"other": AnswerBelief({"text": 1.0}, "declared")},
            "the loop around step '(longer|other)' has no end",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(answers: dict[str, AnswerBelief], problem_of: str) -> None:
    with pytest.raises(ConfigError, match=problem_of):
        problem(app(growing(), **answers), 2)


def test_an_app_that_needs_another_engine_is_refused() -> None:
    called = ToolCall(name="tool", function="f", engine="cpu", a=QUESTION)
    with pytest.raises(ConfigError, match="step 'tool' runs on the engine 'cpu', which is no LLM"):
        app(Template("tools", called, {"out": called["result"]}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("template: app.yaml", "template must be FILE.py:NAME"),
        ("template: none.py:app", "there is no file"),
        (
            "{template: app.py:app, answers: {verdict: often}}",
            "answers of 'verdict' must be 'length', or map",
        ),
        ("{template: app.py:app, answers: {verdict: {no: -1}}}", "the weight of False must be a number"),
        ("{template: app.py:app, learn_from: [none]}", "learn_from: .*none: No such file"),
        ("{template: app.py:app, rounds: 3}", "rounds"),
    ],
)
def test_a_wrong_file_of_an_app_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "app.py").write_text("from planner.test_deciding_apps import refine\napp = refine\n")
    (tmp_path / "app.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_application(tmp_path / "app.yaml")


def test_runs_teach_what_their_answers_decide(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from planner.test_deciding_apps import refine\napp = refine\n")
    (tmp_path / "app.yaml").write_text("{template: app.py:app, learn_from: [out.journal]}")
    source = app(refine())
    run_job(job(tmp_path, source), lambda num_ended, num_left: None)
    read = read_application(tmp_path / "app.yaml")
    assert read.source.learned["verdict1"].total() == len(QUERIES)  # type: ignore[attr-defined]
    assert source.learned["verdict1"] == read.source.learned["verdict1"]  # type: ignore[attr-defined]


QUERIES = [RunRequest(AppRequest(f"r{at}", 0, inputs={"question": f"why {at}"}), ()) for at in range(6)]


def job(folder: Path, source: DecidingApp, nodes: DrawnApplication | None = None) -> PlanJob:
    nodes = nodes or first_nodes(source)
    fake = Replica(FakeLLM, FakeLLMConfig())
    out, failed, journal = (folder / name for name in ("out", "failed", "out.journal"))
    plan, queries = local_plan(nodes, 8), QUERIES
    if isinstance(source.template, TracedProgram | DecidedProgram):
        values = [source.template.values(one.planned.inputs or {}) for one in QUERIES]
        pairs = zip(QUERIES, values, strict=True)
        queries = [replace(one, planned=replace(one.planned, inputs=given)) for one, given in pairs]
    return PlanJob(
        nodes, stored(queries), "fake", lambda book: plan, lambda planned: fake, out, failed, journal
    )


def outputs(folder: Path) -> dict[str, object]:
    lines = map(json.loads, (folder / "out").read_text("utf-8").splitlines())
    return {line["custom_id"]: line["response"]["body"]["outputs"] for line in lines}


@P.SemanticFunction(engine="small", max_tokens=60)
def first_draft(question: P.SemanticVariable) -> None:
    """Answer {{question}} briefly. {{output:text}}"""


@P.SemanticFunction(engine="large", max_tokens=4)
def judged(style: str, text: P.SemanticVariable) -> None:
    """Is this {{style}}? {{text}} {{output:verdict}}"""


@P.SemanticFunction(engine="small", max_tokens=30)
def revised(text: P.SemanticVariable, question: P.SemanticVariable) -> None:
    """Do better: {{question}} {{text}} {{output:better}}"""


def program(question: P.SemanticVariable, style: str = "short") -> dict[str, P.SemanticVariable]:
    """Answer, and revise the answer where the judge says so."""
    tone = P.SemanticVariable("kind")
    draft = first_draft(question)
    first_draft("nothing that anybody needs")
    good = P.condition(judged(P.join(style, tone), draft), equals="yes")
    return {"answer": P.first_present(revised(draft, question, when=good.no), draft), "draft": draft}


def decides(question: str, style: str = "short") -> dict[str, object]:
    """Revise an answer until its judge says a word that Python looks for, at most four times."""
    draft, aside = first_draft(question), first_draft("what else?")
    num_rounds = 0
    while num_rounds < ROUNDS and sum(map(ord, judged(style, draft).get())) % 3:
        draft = revised(draft, question)
        num_rounds += 1
    return {"answer": draft, "aside": aside, "rounds": num_rounds}


@cache
def asked(template: str) -> dict[str, object]:
    """Answer the queries of an app one by one, without a plan."""
    made = TEMPLATES[template]()
    engines = [
        Deployment(Engine(name, contract="llm", keeps_state=True), (Replica(FakeLLM, FakeLLMConfig()),))
        for name in MODELS
    ]
    found: dict[str, object] = {}
    with Runtime(engines, vocabulary=made.vocabulary) as runtime:
        for query in QUERIES:
            assert query.planned.inputs
            if isinstance(made, TracedProgram | DecidedProgram):
                function: Any = decides if isinstance(made, DecidedProgram) else program
                with P.Client(runtime):
                    variables = function(query.planned.inputs["question"])
                    found[query.id] = {
                        name: one.get() if isinstance(one, P.SemanticVariable) else one
                        for name, one in variables.items()
                    }
                continue
            values = runtime.run_sync(made, query.planned.inputs)
            found[query.id] = {name: None if one is ABSENT else one for name, one in values.items()}
    return found


def skips() -> Template:
    """Ask nothing where the question decides that."""
    known = Condition(name="known", value=QUESTION, equals="why 3")
    draft = LLMCall(name="draft", engine="small", prompt="{q}", q=QUESTION, when=known["no"], max_tokens=60)
    best = FirstPresent(draft=draft["text"], question=QUESTION)
    return Template("skips", [known, draft, best], {"answer": best["value"]})


TEMPLATES: dict[str, Callable[[], Template]] = {
    "refine": refine,
    "growing": growing,
    "skips": skips,
    "program": lambda: TracedProgram(program),
    "decides": lambda: DecidedProgram(decides),
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_run_answers_as_the_app_does_query_by_query(template: str, tmp_path: Path) -> None:
    source = app(TEMPLATES[template](), other=LENGTH)
    shown: list[tuple[int, int]] = []
    outcome = run_job(job(tmp_path, source), lambda *counts: shown.append(counts))
    assert outcome == RunOutcome(0, len(QUERIES), 0)
    assert outputs(tmp_path) == asked(template)
    assert (shown[0], shown[-1]) == ((0, len(QUERIES)), (len(QUERIES), 0))
    assert {sum(counts) for counts in shown} == {len(QUERIES)}


def test_a_plan_names_each_step_once() -> None:
    assert in_short(["draft", "better", "verdict", "better #2", "better #3"]) == "draft, better ×3, verdict"


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_run_that_was_killed_asks_nothing_twice(template: str, tmp_path: Path) -> None:
    run_job(job(tmp_path, app(TEMPLATES[template](), other=LENGTH)), lambda num_ended, num_left: None)
    whole = (tmp_path / "out.journal").read_bytes().splitlines(keepends=True)
    for num in {1, len(whole) // 3, len(whole) // 2, len(whole) - 1, len(whole)}:
        (tmp_path / "out.journal").write_bytes(b"".join(whole[:num]) + b'["torn')
        source = app(TEMPLATES[template](), other=LENGTH)
        outcome = run_job(job(tmp_path, source), lambda num_ended, num_left: None)
        assert outcome == RunOutcome(num - 1, len(QUERIES), 0)
        assert outputs(tmp_path) == asked(template)
        lines = (tmp_path / "out.journal").read_bytes().removesuffix(b'["torn').splitlines(keepends=True)
        assert sorted(lines) == sorted(whole)


def test_a_run_beside_queries_ends_where_no_query_makes_a_call(tmp_path: Path) -> None:
    wanted = job(tmp_path, app(skips()))
    engines = [
        Deployment(Engine(name, contract="llm"), (Replica(FakeLLM, FakeLLMConfig()),))
        for name in wanted.app.models
    ]
    skipped = [replace(QUERIES[at], planned=replace(QUERIES[3].planned, id=f"r{at}")) for at in range(2)]
    files = wanted.answers, wanted.failures, wanted.journal

    async def beside() -> RunOutcome:
        async with Runtime(engines) as runtime:
            return await run_beside(OfflineJob(wanted.app, stored(skipped), *files), runtime)

    assert asyncio.run(beside()) == RunOutcome(0, 2, 0)


def test_a_run_goes_on_where_nothing_that_is_left_needs_a_call(tmp_path: Path) -> None:
    source, machine = app(skips()), given_machine("4xA100-80G")
    planned = Replanner(first_nodes(source), machine, load_output_lengths(), PLANNERS["stretto"])
    for num_resumed in (0, len(QUERIES) - 1):
        outcome = run_job(replace(job(tmp_path, source), plan=planned), lambda num_ended, num_left: None)
        assert outcome == RunOutcome(num_resumed, len(QUERIES), 0)
        assert outputs(tmp_path) == asked("skips")


def test_a_query_that_makes_no_call_has_its_answer_without_a_plan_too() -> None:
    nodes, shown = first_nodes(app(skips())), list[Progress]()

    def begun(progress: Progress) -> Sequence[PlannedCall]:
        shown.append(progress)
        return progress.ready

    queues = ModelQueues(nodes, QueryBook(nodes, stored(QUERIES)), begun)
    while (call := queues.take(MODELS["small"])) is not None:
        assert call.request != 3
    assert [one.ended.id for one in shown if one.ended] == ["r3"]
    assert len(shown) == len(QUERIES)


def test_a_query_whose_loop_does_not_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.planner.running.query_book.MOST_ROUNDS", 40)
    nodes = first_nodes(app(growing(), other=LENGTH))
    book = QueryBook(nodes, stored([RunRequest(AppRequest("r", 0, inputs={"question": "odd?"}), ())]))
    todo, ended = list[PlannedCall](), list[CallEnded]()
    for progress in book.ready():
        todo += progress.ready
    for call in todo:  # grows meanwhile
        progress = book.note(call, CallAnswer("odd?"))
        todo += progress.ready
        ended += [progress.ended] if progress.ended else []
    assert len(todo) == 2 * 40
    assert [str(one.error) for one in ended] == [
        "the loop around step 'longer' has had 40 rounds: it has no end"
    ]
    assert book.num_requests_left == 0
    assert not any(book.num_ready.values())
    assert not any(book.num_left.values())


def test_a_loop_longer_than_all_draws_ends_where_its_models_take_turns_on_a_device(tmp_path: Path) -> None:
    source = app(growing(), other=AnswerBelief({"two text": 1.0}, "declared"))
    drawn = problem(source, 6).app
    assert isinstance(drawn, DrawnApplication)
    assert "other #2" not in [node.name for node in drawn.nodes]
    plan = Plan("turns", tuple(Stage((PlannedReplica(model, (0,)),)) for model in MODELS.values()))
    wanted = replace(job(tmp_path, source, drawn), plan=lambda book: plan)
    run_job(wanted, lambda num_ended, num_left: None)
    assert (tmp_path / "out.journal").read_text().count('"other"') > len(QUERIES)
    assert outputs(tmp_path) == asked("growing")


def waits(question: P.SemanticVariable) -> Any:
    return first_draft(first_draft(question).get())


def tells_nothing(question: P.SemanticVariable) -> str:
    first_draft(question)
    return "done"


def tells_its_input(question: P.SemanticVariable) -> dict[str, P.SemanticVariable]:
    return {"asked": question, "answer": first_draft(question)}


async def awaits(question: P.SemanticVariable) -> object:
    return await first_draft(question)


def runs_python(question: P.SemanticVariable) -> Any:
    return P.NativeFunction(len)(first_draft(question))


@pytest.mark.parametrize(
    ("function", "problem_of"),
    [
        (waits, "waits: it waits for 'text', so its Python decides"),
        (tells_nothing, "tells_nothing must return variables .* got 'done'"),
        (lambda question: {1: first_draft(question)}, "must return variables"),
        (
            lambda question: revised(question, P.SemanticVariable(name="hint")),
            "nothing gives .*'hint' a value",
        ),
        (tells_its_input, "no call makes what it returns as 'asked'"),
        (runs_python, "len is a Python function on values"),
        (lambda *questions: None, "a program has parameters with names"),
        (awaits, "awaits is asynchronous"),
        (lambda question: 1 / 0, "<lambda> raised ZeroDivisionError"),
    ],
)
def test_a_program_that_decides_itself_is_refused(function: Callable[..., object], problem_of: str) -> None:
    with pytest.raises(ConfigError, match=problem_of):
        TracedProgram(function)


UNLIKE = map(str, count())


def nothing() -> P.SemanticVariable:
    return P.SemanticVariable(name="nothing")


def decided(**answers: AnswerBelief | str) -> DecidingApp:
    return app(DecidedProgram(decides), **answers)


@pytest.mark.parametrize(("verdict", "num_rounds"), [("c", 0), ("a", ROUNDS)])
def test_draws_run_the_python_of_a_program(verdict: str, num_rounds: int) -> None:
    """A draw of the letter c ends the loop at once, and one of the letter a never."""
    belief = AnswerBelief({verdict: 1.0}, "declared")
    some = problem(decided(**{"judged*": belief}), 4, 1)
    names = dict.fromkeys(name for name in some.names if name.startswith("revised"))
    assert len(names) == num_rounds
    for number in range(2, num_rounds + 1):
        waits = some.app.node(f"revised.better #{number}").inputs
        assert f"judged.verdict #{number}" in waits
        assert not any(name.startswith("first_draft.2") for name in waits)


def test_answers_of_runs_are_enough_where_python_decides() -> None:
    with pytest.raises(ConfigError, match=r"its Python waits for the answer of step 'judged\.verdict'"):
        problem(decided(), 2, 1)
    source = decided()
    source.learned["judged.verdict"] = Counter({"c": 3, "a": 3})
    assert (
        problem(source, 2, 1).deciding["judged.verdict"].words == "'c' 50%, 'a' 50% (learned, with 6 answers)"
    )


@pytest.mark.parametrize(
    ("function", "problem_of"),
    [
        (lambda question: [].pop() if first_draft(question).get() else "", "raised IndexError"),
        (lambda question: first_draft(next(UNLIKE)).get(), "asks for something else when it is run again"),
        (
            lambda question: first_draft(question).get() + nothing().get(),
            "nothing gives .* 'nothing' a value",
        ),
        (lambda question: [first_draft(question).get(), nothing()], "nothing gives .* 'nothing' a value"),
    ],
)
def test_what_a_program_does_wrong_is_named_with_the_request(
    function: Callable[..., object], problem_of: str
) -> None:
    with pytest.raises(ConfigError, match=f"request 'r0' fails with drawn answers: .*{problem_of}"):
        problem(app(DecidedProgram(function), **{"*": LENGTH}), 1, 1)


def catches(question: P.SemanticVariable) -> object:
    draft = first_draft(question)
    try:
        text = draft.get()
    except Exception:
        text = "none"
    return revised(text, question)


def catches_and_raises(question: P.SemanticVariable) -> object:
    draft = first_draft(question)
    try:
        text = draft.get()
    except Exception as error:
        raise ValueError("no draft") from error
    return revised(text, question)


def catches_all(question: P.SemanticVariable) -> object:
    draft = first_draft(question)
    try:
        text = draft.get()
    except:  # noqa: E722
        text = revised("none", question).get()
    finally:
        first_draft("what else?")
    return revised(text, question)


@pytest.mark.parametrize("function", [catches, catches_and_raises, catches_all])
def test_a_program_that_catches_errors_waits_for_its_answers(function: Callable[..., object]) -> None:
    made = program_of(function)
    assert isinstance(made, DecidedProgram)
    first = made.run({"question": "why?"}, {})
    assert (len(first.calls), first.waits_for) == (1, "text")
    again = made.run({"question": "why?"}, {"text": "so"})
    assert (again.calls[0].outputs, again.waits_for) == (first.calls[0].outputs, None)


def test_a_program_gets_its_inputs_again_as_they_were() -> None:
    def program(questions: list[str]) -> object:
        draft = first_draft("which?")
        draft.get()
        return len(draft.get()) and questions.pop()

    made, inputs = program_of(program), {"questions": ["one", "two"]}
    assert [made.run(inputs, {"text": "x"}).returned for _ in range(2)] == [{"output": "two"}] * 2  # type: ignore[union-attr]


def test_a_variable_may_be_returned_twice() -> None:
    def program(question: P.SemanticVariable) -> dict[str, P.SemanticVariable]:
        draft = first_draft(question)
        return {"first": draft, "last": draft}

    first, last = DecidingApp(TracedProgram(program)).egraph.outputs
    assert (first[0], last[0]) == ("first", "last")
    assert first[1:] == last[1:]


def test_a_request_of_a_program_brings_its_parameters(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from planner.test_deciding_apps import program\n")
    found = read_application(Path(f"{tmp_path}/app.py:program"))
    assert isinstance(found, DrawnApplication)
    request = query_request({"custom_id": "1", "prompt": "why?"}, found)
    assert sorted(map(str, (request.inputs or {}).values())) == ["kind", "short", "why?"]
    for inputs, message in ({}, "no input 'question'"), ({"question": "x", "style": "y"}, "no input 'style'"):
        with pytest.raises(ConfigError, match=message):
            query_request({"custom_id": "1", "inputs": inputs}, found)


def test_the_program_of_the_page_is_an_app(tmp_path: Path) -> None:
    """The snippet of `planner.md`; of its two parameters one has a default."""
    (tmp_path / "page.py").write_text(python_of(DOCS / "planner.md"))
    found = read_application(Path(f"{tmp_path}/page.py:answer"))
    assert isinstance(found, DrawnApplication)
    assert found.source.template.inputs == (("question", "any"),)
    steps = {step.name for step in found.source.egraph.graph.primitives}
    assert {"draft.answer", "judge.verdict", "revise.better"} <= steps


def test_a_program_without_parameters_is_told_that_inputs_are_parameters(tmp_path: Path) -> None:
    asks = "def asks(): return draft('why?')\n"
    (tmp_path / "app.py").write_text(f"{python_of(DOCS / 'planner.md')}\n\n{asks}")
    with pytest.raises(ConfigError, match="a program to plan has a parameter for each input"):
        read_application(Path(f"{tmp_path}/app.py:asks"))


def test_a_function_whose_parameters_all_have_defaults_makes_a_template(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "from planner.test_deciding_apps import refine\ndef made(template=refine): return template()\n"
    )
    found = read_application(Path(f"{tmp_path}/app.py:made"))
    assert isinstance(found, DrawnApplication)
    assert found.source.name == refine().name


def test_choices_and_values_of_a_schema_are_believed_equally_often() -> None:
    listed = (Decode(choices=("no", "yes")), Decode(json_schema='{"enum": [1, "a"]}'))
    assert [belief and dict(belief.shares) for belief in map(of_form, listed)] == [
        {"no": 0.5, "yes": 0.5},
        {"1": 0.5, '"a"': 0.5},
    ]
    assert of_form(Decode(regex="a|b")) is None
