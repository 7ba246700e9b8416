"""Nodes that are called for each chunk at once, and which answers become part of which prompts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto.costs.presets import load_output_lengths
from stretto.graph.one_call import PromptMessage
from stretto.model.errors import ConfigError
from stretto.model.replica import Replica
from stretto.model.tasks import LLMTask
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.execute import execute
from stretto.planner.feed import feed, taken
from stretto.planner.machine import machine_of
from stretto.planner.plan import Plan, PlannedReplica, Stage
from stretto.planner.plan_files import read_application
from stretto.planner.problem import Problem
from stretto.planner.running.calls import CallBook
from stretto.planner.running.planned_calls import CallAnswer, PlannedCall
from stretto.planner.running.request_store import stored
from stretto.planner.running.run import PlanJob, RunOutcome, run_job
from stretto.planner.running.run_request import RunRequest

MODEL = "mpt-7b-chat"
NODES = (
    ModelNode("extract", MODEL, 20, map=True),
    ModelNode("check", MODEL, 20, inputs=("extract",), map=True),
    ModelNode("story", MODEL, 20, inputs=("check",), chain=True),
    ModelNode("vote", MODEL, 20, inputs=("story",), calls=3),
    ModelNode("final", MODEL, 20, inputs=("vote", "extract", "story")),
)


def calls_of(
    node: ModelNode, num_chunks: list[int], left: float, draw: random.Random
) -> tuple[list[int], list[int]]:
    """Return the requests and numbers of the calls that are left of a node; of a chain, the last ones."""
    pairs = []
    for request, chunks in enumerate(num_chunks):
        numbers = range(node.num_calls(chunks))
        chosen = [at for at in numbers if draw.random() < left]
        if node.chain and chosen:
            chosen = list(numbers[chosen[0] :])
        pairs += [(request, at) for at in chosen]
    return [request for request, _ in pairs], [at for _, at in pairs]


@pytest.mark.parametrize("seed", range(40))
def test_a_feed_is_what_each_call_takes(seed: int) -> None:
    draw = random.Random(seed)
    source, taker = (
        ModelNode(name, MODEL, 9, chain=kind == 1, map=kind == 2, calls=1 if kind else draw.randint(1, 3))
        for name, kind in (("a", draw.randrange(3)), ("b", draw.randrange(3)))
    )
    num_chunks = [draw.randint(1, 4) for _ in range(5)]
    given, taking = (calls_of(node, num_chunks, 0.7, draw) for node in (source, taker))
    values = [draw.randint(1, 99) for _ in given[0]]
    by_call = dict(zip(zip(*given, strict=True), values, strict=True))
    wanted = [
        [
            by_call[request, at]
            for at in taken(source, taker, number, source.num_calls(num_chunks[request]))
            if (request, at) in by_call
        ]
        for request, number in zip(*taking, strict=True)
    ]
    arrays = [
        (np.array(requests, np.int64), np.array(numbers, np.int64)) for requests, numbers in (given, taking)
    ]
    found = feed(source, arrays[0], taker, arrays[1])
    assert found.totals(np.array(values, np.int64)).tolist() == [sum(one) for one in wanted]
    assert found.latest(np.array(values, float), 5.0).tolist() == [max([5, *one]) for one in wanted]


def needed(app: Application, call: PlannedCall, num_chunks: int) -> Iterator[PlannedCall]:
    """Yield the calls whose answers a call needs."""
    node = app.node(call.node)
    if node.chain and call.number:
        yield PlannedCall(call.request, call.node, call.number - 1)
    for name in node.inputs:
        source = app.node(name)
        for at in taken(source, node, call.number, source.num_calls(num_chunks)):
            yield PlannedCall(call.request, name, at)


@pytest.mark.parametrize("seed", range(20))
def test_each_call_is_made_once_and_as_soon_as_its_answers_are_there(seed: int) -> None:
    draw = random.Random(seed)
    app = Application("app", NODES)
    num_chunks = [draw.randint(1, 5) for _ in range(3)]
    requests = [
        RunRequest(AppRequest(str(at), 1, (1,) * num), (PromptMessage(None, "x"),), ("c",) * num)
        for at, num in enumerate(num_chunks)
    ]
    book = CallBook(app, stored(requests))
    all_calls = [
        PlannedCall(at, node.name, number)
        for at, num in enumerate(num_chunks)
        for node in NODES
        for number in range(node.num_calls(num))
    ]
    kept = {call for call in all_calls if call.node == "extract" and draw.random() < 0.4}
    assert not list(book.resume((call, CallAnswer("", 1, 1)) for call in kept))
    answered, made = set(kept), set(kept)
    open_calls = [call for begun in book.ready() for call in begun.ready]
    assert len(open_calls) == len(set(open_calls) - kept)
    while open_calls:
        made.update(open_calls)
        able = {
            call for call in all_calls if answered.issuperset(needed(app, call, num_chunks[call.request]))
        }
        assert made == able
        call = open_calls.pop(draw.randrange(len(open_calls)))
        answered.add(call)
        progress = book.note(call, CallAnswer("", 1, 1))
        assert not made & set(progress.ready)
        open_calls += progress.ready
    assert answered == set(all_calls)
    assert not book.num_requests_left
    assert not any(book.num_left.values())


def test_the_prompts_of_a_map_and_of_its_reduction(tmp_path: Path) -> None:
    prompts: dict[str, str] = {}

    def note(task: LLMTask) -> None:
        prompts[task.prompt[0].text.split()[0]] = task.prompt[0].text

    nodes = [
        ModelNode("draft", MODEL, 5, map=True, prompt="map {chunk} for {prompt}"),
        ModelNode("sum", MODEL, 5, inputs=("draft",), prompt="sum {draft}"),
    ]
    request = RunRequest(AppRequest("r", 1, (1, 1)), (PromptMessage(None, "asker"),), ("one", "two"))
    out, failed, journal = (tmp_path / name for name in ("out", "failed", "journal"))
    plan = Plan("by hand", (Stage((PlannedReplica(MODEL, (0,)), PlannedReplica(MODEL, (1,)))),))
    fake = Replica(FakeLLM, FakeLLMConfig(fail_on=note))
    job = PlanJob(
        Application("app", nodes),
        stored([request]),
        "fake",
        lambda book: plan,
        lambda _: fake,
        out,
        failed,
        journal,
    )
    assert run_job(job, lambda num_ended, num_left: None) == RunOutcome(0, 1, 0)
    written = (tmp_path / "out").read_text("utf-8")
    first, second = json.loads(written)["response"]["body"]["answers"]["draft"]
    assert prompts["map"] in ("map one for asker", "map two for asker")
    assert prompts["sum"] == f"sum {first}\n\n{second}"


def test_the_chunks_of_one_document_use_all_replicas() -> None:
    app = Application(
        "app", [ModelNode("draft", MODEL, 4, map=True), ModelNode("sum", MODEL, 100, inputs=("draft",))]
    )
    problem = Problem(
        app, [AppRequest("r", 0, (1600,) * 400)], machine_of("8xA100-80G"), load_output_lengths()
    )

    def carried_out(num: int) -> tuple[int, float]:
        stage = Stage(tuple(PlannedReplica(MODEL, (at,)) for at in range(num)))
        done = execute(problem, Plan("by hand", (stage,)), problem.draw(0))
        return sum(span.busy_s > 0 for span in done.spans), done.makespan_s

    (one, alone_s), (four, together_s) = carried_out(1), carried_out(4)
    assert (one, four) == (1, 4)
    assert together_s < alone_s


def test_what_maps_cannot_be(tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    for fields, said in (
        ("chain: true, map: true", "chain and a map"),
        ("map: true, calls: 2", "calls must be 1"),
    ):
        file.write_text(f"nodes: [{{name: a, model: {MODEL}, max_tokens: 5, {fields}}}]")
        with pytest.raises(ConfigError, match=said):
            read_application(file)
