"""A run, written to a file and run again in simulation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.command_line import CommandLine
from support.machines import compiled

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from benchmarks.common.virtual_engines import Lengths, inputs, profiles_of, virtual_engines
from stretto.apps import APPS
from stretto.apps.plan_cache import PlanCache
from stretto.graph.passes.pipeline import PASSES
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError, UserError
from stretto.model.profile import Profile
from stretto.model.replica import Engine, Replica
from stretto.model.tasks import Decode, LLMTask
from stretto.sched.messages import Event, Open, Submit
from stretto.sched.observer import Observer
from stretto.sim.driver import VirtualDriver
from stretto.sim.recorded_costs import fit_llm_spans
from stretto.sim.recorded_outputs import RecordedOutputs
from stretto.sim.replay import ReplayChanges, _model_of, replay, replay_engines
from stretto.trace.recorded_run import RecordedReplica, RecordedSpan
from stretto.trace.run_file import RunRecorder
from stretto.trace.run_reading import read_run

ENGINES = virtual_engines(Lengths(answer_tokens=30))


def record(
    path: Path, *, passes: tuple[str, ...] = tuple(PASSES), before: bool = True, num: int = 4
) -> VirtualDriver:
    """Record queries of both apps in virtual time, by profiles alone, as a real run would be recorded."""
    plan_cache = PlanCache(profiles_of(ENGINES))
    templates = {name: make() for name, make in APPS.items()}
    graphs = [template.lower({}) for template in templates.values()] if before else []
    recorder = RunRecorder(path, ENGINES, before_passes=graphs)
    driver = VirtualDriver(ENGINES, observers=[recorder])
    for number in range(num):
        app = ("advanced", "naive")[number % 2]
        driver.submit(
            f"q{number}",
            plan_cache.plan(templates[app], {}, passes),
            inputs(12, number),
            at_s=0.8 * number,
            passes=passes,
        )
    assert all(reply.error is None for reply in driver.run().values())
    recorder.close()
    assert not driver.observers.dropped
    return driver


def test_a_replay_takes_as_long_as_the_run(tmp_path: Path) -> None:
    record(tmp_path / "run.jsonl")
    replayed = replay(read_run(tmp_path / "run.jsonl"))
    assert [one.query for one in replayed] == ["q0", "q1", "q2", "q3"]
    for one in replayed:
        assert one.measured_s is not None
        assert one.simulated_s == pytest.approx(one.measured_s, rel=0.15)


def test_whole_answers_tell_what_prompts_cost_without_their_tokens() -> None:
    """The one piece of a whole answer comes at its end."""
    true = Profile(0.02, 0.001, per_output_s=0.01)
    spans = []
    for num_units in (50, 100, 200, 400):
        for is_streamed in (False, False, True):
            prompt_s = true.batch_s(num_units)
            end_s = prompt_s + 30 * true.per_output_s
            first_s = prompt_s + true.per_output_s if is_streamed else end_s
            span = RecordedSpan(
                "llm", 0, "answer", "decode", 1, num_units, 0, 0.0, 0.0, end_s, 0, 30, first_s, [120]
            )
            spans.append((0.0, span))
    fitted = fit_llm_spans(spans)
    assert fitted is not None
    for num_units in (50, 400):
        assert fitted.batch_s(num_units) == pytest.approx(true.batch_s(num_units), abs=0.02)
    assert fitted.per_output_s == pytest.approx(true.per_output_s)


def test_an_item_of_a_step_is_answered_alike_whenever_it_is_tried(tmp_path: Path) -> None:
    record(tmp_path / "run.jsonl")
    repeats = RecordedOutputs(read_run(tmp_path / "run.jsonl"), "llm")

    def said(task: int, step: str, item: int = 0) -> object:
        return repeats(LLMTask(task, "q1", step, (), Decode(), item=item), Decode())

    for step in ("leaf1", "not recorded"):
        assert said(1, step) == said(2, step)
        assert said(1, step) != said(1, step, item=1)


def test_what_if_changes_the_times(tmp_path: Path) -> None:
    record(tmp_path / "run.jsonl", num=16)
    run = read_run(tmp_path / "run.jsonl")

    def mean_s(change: ReplayChanges) -> float:
        latencies = [one.simulated_s for one in replay(run, change)]
        return sum(latency for latency in latencies if latency is not None) / len(latencies)

    as_recorded_s = mean_s(ReplayChanges())
    assert mean_s(ReplayChanges(instances={"llm": 1})) > 1.02 * as_recorded_s
    assert mean_s(ReplayChanges(passes="none")) > 1.02 * as_recorded_s
    assert mean_s(ReplayChanges(policy="throughput")) != as_recorded_s
    assert mean_s(ReplayChanges(passes="all")) == as_recorded_s


def test_the_file_has_sizes_and_no_texts(tmp_path: Path) -> None:
    driver = record(tmp_path / "run.jsonl", num=1)
    text = (tmp_path / "run.jsonl").read_text()
    query = json.loads(text.splitlines()[-1])
    given = inputs(12, 0)
    assert query["inputs"]["question"]["chars"] == len(str(given["question"]))
    assert str(given["question"]) not in text
    outputs = driver.replies["q0"].outputs
    assert outputs is not None
    assert str(outputs["answer"])[:12] not in text
    assert {span["op"] for span in query["spans"]} == {
        "chunk",
        "embed",
        "ingest",
        "search",
        "rerank",
        "prefill",
        "decode",
    }


def test_without_the_graph_from_before_the_passes_they_stay_as_they_were(tmp_path: Path) -> None:
    record(tmp_path / "run.jsonl", before=False)
    run = read_run(tmp_path / "run.jsonl")
    assert all(one.simulated_s is not None for one in replay(run))
    with pytest.raises(UserError, match="without its graph from before the passes"):
        replay(run, ReplayChanges(passes="none"))


class Submitted(Observer):
    """An observer that keeps the queries as they arrive."""

    def __init__(self) -> None:
        self.queries: list[Submit] = []

    def on_event(self, event: Event, now_s: float) -> None:
        if isinstance(event, Submit):
            self.queries.append(event)


SLOW = Profile(base_s=0.5, per_unit_s=0.001, per_output_s=0.05)
FAST = Profile(base_s=0.1, per_unit_s=0.0002, per_output_s=0.01)
ANSWER = compiled(
    'graph s(%q: text)\n%k = prefill([c"Say ", %q]) : kv @llm\n%a = decode(%k) : text @llm\nreturn %a'
)


def record_unlike(path: Path, changes: Callable[[VirtualDriver], None] = lambda run: None) -> list[Submit]:
    """Record queries of an engine whose replicas differ; return the queries."""
    fake = Replica(FakeLLM, FakeLLMConfig(), runs_in="loop")
    replicas = (
        replace(fake, profile=SLOW, num_slots=1, kv_tokens=1000),
        replace(fake, profile=FAST, num_slots=3, tp=2),
    )
    llm = Deployment(Engine("llm", "llm", placement="least_loaded"), replicas)
    recorder = RunRecorder(path, [llm])
    run = VirtualDriver([llm], observers=[recorder])
    queries = [
        Submit("q0", ANSWER, {"q": "one"}, None, (), "acme", "latency"),
        Submit("q1", ANSWER, {"q": "two"}, 100.0, (), "other"),
        Submit("q2", ANSWER, {"q": "three"}),
    ]
    for number, query in enumerate(queries):
        run.send(query, float(number))
    changes(run)
    run.run()
    recorder.close()
    return queries


def test_a_replay_has_the_recorded_placement_and_replicas(tmp_path: Path) -> None:
    record_unlike(tmp_path / "run.jsonl")
    run = read_run(tmp_path / "run.jsonl")
    assert run.not_repeated == ()
    (llm,) = replay_engines(run, ReplayChanges())
    assert llm.engine.placement == "least_loaded"
    slow, fast = llm.replicas
    assert (slow.num_slots, slow.kv_tokens, slow.tp) == (1, 1000, 1)
    assert (fast.num_slots, fast.kv_tokens, fast.tp) == (3, None, 2)
    assert run.engines[0].replicas == (
        RecordedReplica(SLOW, 1, 1000, 1),
        RecordedReplica(FAST, 3, None, 2),
    )
    assert {span.instance for query in run.queries for span in query.spans} == {0, 1}
    for replica, profile in ((slow, SLOW), (fast, FAST)):
        assert replica.profile.batch_s(3) == pytest.approx(profile.batch_s(3), rel=0.3), "fitted to its own"
    of = _model_of(llm, run)
    assert [(of(r).scheduler.max_running, of(r).scheduler.num_blocks) for r in llm.replicas] == [
        (1, 63),
        (3, 1 << 14),
    ]


def test_a_replay_has_the_recorded_tenants_objectives_and_deadlines(tmp_path: Path) -> None:
    wanted = record_unlike(tmp_path / "run.jsonl")
    seen = Submitted()
    replayed = replay(read_run(tmp_path / "run.jsonl"), observers=[seen])
    assert all(one.reason is None for one in replayed)
    assert [(q.tenant, q.objective, q.deadline_s) for q in seen.queries] == [
        (q.tenant, q.objective, q.deadline_s) for q in wanted
    ]


def test_a_file_of_an_earlier_version_has_equal_replicas(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for engine in lines[0]["engines"]:
        del engine["placement"], engine["replicas"]
    for line in lines[1:]:
        for key in ("tenant", "objective", "deadline_s"):
            line.pop(key, None)
    old = tmp_path / "old.jsonl"
    old.write_text("\n".join(map(json.dumps, lines)))
    assert read_run(old) == read_run(path)


@pytest.mark.parametrize(
    ("changes", "left_out"),
    [
        (lambda run: run.send(Open("s"), 0.5), "sessions"),
        (lambda run: run.drain("llm", 0, 5.0), "instances that came or went"),
        (lambda run: run.lose("llm", 0, 5.0), "instances that came or went"),
        (lambda run: run.add("llm", Replica(FakeLLM, FakeLLMConfig()), 5.0), "instances that came or went"),
        (
            lambda run: (run.send(Open("s"), 0.5), run.drain("llm", 0, 5.0), run.drain("llm", 1, 6.0)),
            "sessions and instances that came or went",
        ),
    ],
)
def test_what_is_not_repeated_is_said_in_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: Callable[[VirtualDriver], None],
    left_out: str,
) -> None:
    stretto = CommandLine(monkeypatch, capsys)
    file = tmp_path / "run.jsonl"
    record_unlike(file)
    assert stretto("replay", file).err == ""
    record_unlike(file, changes)
    done = stretto("replay", file, "--json")
    assert done.err == f"the run had {left_out}, which the simulation leaves out\n"
    assert json.loads(done.out)["queries"] == 3


def test_a_policy_that_is_gone_is_replayed_as_the_nearest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.jsonl"
    record(file, num=2)
    head, _, rest = file.read_text().partition("\n")
    row = json.loads(head)
    row["engines"][0] |= {"policy": "oldest_query", "placement": "kv_cost"}
    file.write_text(json.dumps(row) + "\n" + rest)
    run = read_run(file)
    assert (run.engines[0].policy, run.engines[0].placement) == ("programs_first", "stretto")
    done = CommandLine(monkeypatch, capsys)("replay", file, "--json")
    assert "policies that are gone" in done.err


def test_what_cannot_be_changed_is_said(tmp_path: Path) -> None:
    record(tmp_path / "run.jsonl", num=1)
    run = read_run(tmp_path / "run.jsonl")
    with pytest.raises(ConfigError, match="no engine 'gpu' in the record; there are chunking"):
        replay(run, ReplayChanges(instances={"gpu": 1}))
    with pytest.raises(ConfigError, match="no policy 'best'"):
        replay(run, ReplayChanges(policy="best"))
    with pytest.raises(ConfigError, match="no pass 'faster'"):
        replay(run, ReplayChanges(passes="faster"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: [], "line 1: the engines are missing"),
        (lambda lines: ["{}", *lines[1:]], "line 1: expected a stretto-run of version 1"),
        (
            lambda lines: [lines[0].replace('"version": 1', '"version": 9'), *lines[1:]],
            "expected a stretto-run",
        ),
        (lambda lines: [lines[0], "{", *lines[2:]], "line 2: JSONDecodeError"),
        (
            lambda lines: [lines[0], lines[1].replace("graph advanced_rag(", "grape("), *lines[2:]],
            "line 2: not a graph",
        ),
        (lambda lines: [lines[0], *lines[2:]], "line 2: query 'q0' uses graph 0, which is not in the file"),
        (lambda lines: lines[:2], "no query has ended"),
        (
            lambda lines: [*lines[:2], lines[2].replace('"latency_s": ', '"latency_s": -')],
            "line 3: latency_s must be a time from 0 to .* s, got -",
        ),
        (
            lambda lines: [*lines[:2], lines[2].replace('"spans"', '"spam"')],
            "line 3: unknown key 'spam'; did you mean spans.*; known keys: query, graph",
        ),
        (lambda lines: [*lines, lines[2]], "line 4: query 'q0' is in the file twice"),
        (
            lambda lines: [lines[0].replace('"instances": 2', '"instances": 2.5'), *lines[1:]],
            r"line 1: engines\[[0-9]\].instances must be a whole number .*, got 2.5",
        ),
        (
            lambda lines: [lines[0].replace('"replicas": [{', '"replicas": [{}, {', 1), *lines[1:]],
            r"line 1: engines\[0\].replicas\[0\]: the key 'profile' is missing",
        ),
        (
            lambda lines: [lines[0].replace('"tp": 1', '"tp": 0'), *lines[1:]],
            r"line 1: engines\[[0-9]\].replicas\[0\].tp must be a whole number from 1 .*, got 0",
        ),
        (
            lambda lines: [lines[0].replace("least_seconds", "most_seconds"), *lines[1:]],
            "line 1: there is no placement 'most_seconds'; did you mean least_seconds.; there are",
        ),
        (
            lambda lines: [*lines, '{"not_repeated": "jokes"}'],
            "line 4: not_repeated must be one of fleet, policies, sessions, got 'jokes'",
        ),
        (
            lambda lines: [*lines[:2], lines[2].replace('"throughput"', '"beauty"')],
            "line 3: objective must be one of latency, offline, throughput, got 'beauty'",
        ),
        (
            lambda lines: [lines[0].replace('"name": "llm"', '"name": "gpu"'), *lines[1:]],
            "line 2: there is no engine 'llm'",
        ),
        (
            lambda lines: [*lines[:2], lines[2].replace('"chars": ', '"chars": 9999999999')],
            "line 3: input .*: chars must be a whole number .*, got 9999999999[0-9]*",
        ),
        (
            lambda lines: [*lines[:2], lines[2].replace('"arrival_s": 0.0', '"arrival_s": NaN')],
            "line 3: arrival_s must be a time .*, got nan",
        ),
        (
            lambda lines: [*lines[:2], re.sub('"end_s": [0-9.]+', '"end_s": 1e6', lines[2])],
            "line 3: step .* contradicts itself",
        ),
        (
            lambda lines: [*lines[:2], lines[2].replace('"prune_order"', '"prune"')],
            "line 3: there is no pass 'prune'; did you mean prune_order.; there are prune_order",
        ),
    ],
)
def test_a_file_that_is_no_run_is_refused(tmp_path: Path, change: object, reason: str) -> None:
    path = tmp_path / "run.jsonl"
    record(path, num=1)
    path.write_text("\n".join(change(path.read_text().splitlines())))  # type: ignore[operator]
    with pytest.raises(UserError, match=reason) as caught:
        read_run(path)
    assert str(path) in str(caught.value)


def test_the_command_compares_and_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stretto = CommandLine(monkeypatch, capsys)
    file = tmp_path / "run.jsonl"
    record(file)
    done = stretto("replay", file, "--instances", "llm=1", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["queries"] == 4
    assert list(result["latency"]) == ["measured", "simulated as recorded", "simulated with the changes"]
    assert result["mean_error"] < 0.15
    assert "simulated as recorded" in stretto("replay", file).out
    assert "engine=number" in stretto.refuses("replay", file, "--instances", "llm=none")
    assert "engine=number" in stretto.refuses("replay", file, "--instances", "llm=1000000000")
    assert "twice" in stretto.refuses("replay", file, "--instances", "llm=1", "--instances", "llm=2")
    assert "cannot be read" in stretto.refuses("replay", tmp_path / "nothing")


def test_a_query_that_fails_in_simulation_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.jsonl"
    record(file, num=1)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[-1]["inputs"] = {}
    file.write_text("\n".join(map(json.dumps, lines)))
    assert "1 queries failed in simulation" in CommandLine(monkeypatch, capsys)("replay", file).out


def test_blank_lines_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    record(file, num=1)
    run = read_run(file)
    file.write_text("\ufeff" + file.read_text() + "\n\n", "utf-8")
    assert read_run(file).queries == run.queries
