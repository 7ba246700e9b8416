"""Offline requests on a runtime that serves queries."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.machines import compiled

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import BadReply, CapacityError, ConfigError, EngineUnavailable
from stretto.model.replica import Replica
from stretto.model.tasks import LLMTask
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.running.batch_lines import read_batch_application
from stretto.planner.running.offline_job import run_beside
from stretto.planner.running.replicas import local_plan
from stretto.planner.running.request_store import stored
from stretto.planner.running.run import PlanJob, RunOutcome, run_job
from stretto.planner.running.run_request import RunRequest, SentLine
from stretto.planner.running.unplanned_run import OfflineJob
from stretto.runtime.runtime import Runtime
from stretto.sched.actions import Action, Admit
from stretto.sched.observer import Observer
from stretto.service.batches.lines_in_process import LinesInProcess, prompt_and_limit

REPLICA = Replica(
    FakeLLM,
    FakeLLMConfig(
        fail_on=lambda task: (
            CapacityError("no") if any("Ho" in str(one.text) for one in task.prompt) else None
        )
    ),
)
QUERY = compiled("graph q(%x: text)\n%kv = prefill([%x]) : kv @a\n%y = decode(%kv) : text @a\nreturn %y")


class Admitted(Observer):
    """The tasks in the order in which they were sent to an instance."""

    def __init__(self) -> None:
        self.tasks: list[LLMTask] = []

    def on_action(self, action: Action, now_s: float) -> None:
        if isinstance(action, Admit):
            self.tasks.append(action.task)


def job(folder: Path, count: int = 6, model: str = "a") -> OfflineJob:
    file = folder / "in.jsonl"
    bodies = [
        {"model": model, "max_tokens": 5, "messages": [{"role": "user", "content": f"question {at}"}]}
        for at in range(count)
    ]
    file.write_text(
        "".join(
            json.dumps({"custom_id": f"r{at}", "method": "POST", "url": "/v1/chat/completions", "body": body})
            + "\n"
            for at, body in enumerate(bodies)
        )
    )
    app, store = read_batch_application(file)
    return OfflineJob(app, store, *(folder / name for name in ("answers", "failed", "journal")))


def engine(fails: str = "") -> Deployment:
    def fail_on(task: LLMTask) -> BaseException | None:
        text = "".join(str(part.text) for part in task.prompt)
        return BadReply("no answer") if fails and fails in text else None

    return deploy("a", FakeLLM, FakeLLMConfig(fail_on=fail_on), contract="llm", max_running=1)


def lines(path: Path) -> dict[str, Any]:
    found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return {line["custom_id"]: line["response"] for line in found}


def test_a_batch_file_is_answered_and_gives_way_to_queries(tmp_path: Path) -> None:
    seen = Admitted()

    async def both() -> tuple[RunOutcome, list[object]]:
        async with Runtime([engine()], observers=[seen]) as runtime:
            offline = asyncio.create_task(run_beside(job(tmp_path), runtime))
            while not seen.tasks:  # all wait, and the first runs
                await asyncio.sleep(0)
            queries = [asyncio.create_task(runtime.run(QUERY, {"x": f"q{n}"})) for n in range(3)]
            return await offline, [*await asyncio.gather(*queries)]

    outcome, _ = asyncio.run(both())
    assert outcome == RunOutcome(0, 6, 0)
    assert sorted(lines(tmp_path / "answers")) == [f"r{at}" for at in range(6)]
    classes = [task.objective for task in seen.tasks if task.decode is not None]
    last = max(at for at, one in enumerate(classes) if one == "throughput")
    num_before = classes[:last].count("offline")
    assert num_before <= 2, "only what was sent before the queries came goes before them"


def test_lines_with_several_answers_are_handed_on(tmp_path: Path) -> None:
    """Each gets the body that OpenAI's API in this process answers with; what it cannot do is refused."""
    chat = {"model": "a", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    asked = {
        "two": ("/v1/chat/completions", {**chat, "n": 2, "seed": 1}),
        "prompts": ("/v1/completions", {"model": "a", "prompt": ["x", "y"], "max_tokens": 4}),
        "response": ("/v1/responses", {"model": "a", "input": "Hi", "max_output_tokens": 4}),
        "fails": ("/v1/chat/completions", {**chat, "n": 2, "messages": [{"role": "user", "content": "Ho"}]}),
        "echo": ("/v1/completions", {"model": "a", "prompt": "x", "echo": True, "max_tokens": 0}),
        "none": ("/v1/chat/completions", {**chat, "max_tokens": 0}),
        "logprobs": ("/v1/chat/completions", {**chat, "logprobs": True}),
        "vector": ("/v1/embeddings", {"model": "a", "input": "x"}),
    }
    file = tmp_path / "in.jsonl"
    file.write_text(
        "".join(
            json.dumps({"custom_id": id, "method": "POST", "url": url, "body": body}) + "\n"
            for id, (url, body) in asked.items()
        )
    )
    app, store = read_batch_application(file, door=prompt_and_limit)
    plan = local_plan(app, 1)
    answers, failed, journal = (tmp_path / name for name in ("answers", "failed", "journal"))
    wanted = PlanJob(
        app,
        store,
        "fake",
        lambda _: plan,
        lambda _: REPLICA,
        answers,
        failed,
        journal,
        lines_at=LinesInProcess,
    )
    outcome = run_job(wanted, lambda num_ended, num_left: None)
    assert outcome == RunOutcome(0, 3, 5)
    answered = {id: line["body"] for id, line in lines(wanted.answers).items()}
    assert [choice["index"] for choice in answered["two"]["choices"]] == [0, 1]
    texts = [choice["message"]["content"] for choice in answered["two"]["choices"]]
    assert texts[0] != texts[1]
    assert answered["two"]["usage"]["completion_tokens"] == sum(len(text.split()) for text in texts)
    assert [choice["index"] for choice in answered["prompts"]["choices"]] == [0, 1]
    assert answered["response"]["object"] == "response"
    failures = {line["custom_id"]: line for line in map(json.loads, wanted.failures.open(encoding="utf-8"))}
    assert failures["fails"]["response"]["status_code"] == 400
    assert "logprobs is not supported here" in failures["logprobs"]["error"]["message"]
    assert all("max_tokens must be at least 1" in failures[id]["error"]["message"] for id in ("none", "echo"))
    assert "not /v1/embeddings" in failures["vector"]["error"]["message"]

    async def beside() -> RunOutcome:
        async with Runtime([engine()]) as runtime:
            with closing(LinesInProcess(runtime, "offline")) as asking:
                again = OfflineJob(app, store, *(tmp_path / name for name in ("a", "f", "j")))
                return await run_beside(again, runtime, asking)

    assert asyncio.run(beside()) == RunOutcome(0, 4, 4)


@pytest.mark.parametrize("num_turns", [0, 2])
def test_the_end_of_a_line_that_is_cancelled_is_told_once(num_turns: int) -> None:
    """Also before anything of it has begun: a run that gives a model up would wait for it for ever."""
    chat = {"model": "a", "max_tokens": 500, "messages": [{"role": "user", "content": "Hi"}]}
    ends: list[object] = []

    async def main() -> None:
        async with Runtime([engine()]) as runtime:
            with closing(LinesInProcess(runtime)) as lines:
                cancel = lines.begin(SentLine("/v1/chat/completions", chat), ends.append)
                for _ in range(num_turns):
                    await asyncio.sleep(0)
                cancel()
                for _ in range(50):
                    await asyncio.sleep(0)

    asyncio.run(main())
    assert list(map(type, ends)) == [EngineUnavailable]


def test_the_same_job_goes_on_and_tries_failures_again(tmp_path: Path) -> None:
    async def run(fails: str = "") -> RunOutcome:
        async with Runtime([engine(fails)]) as runtime:
            return await run_beside(job(tmp_path), runtime)

    assert asyncio.run(run("question 3")) == RunOutcome(0, 5, 1)
    assert list(lines(tmp_path / "failed")) == ["r3"]
    assert asyncio.run(run()) == RunOutcome(5, 6, 0)
    assert sorted(lines(tmp_path / "answers")) == [f"r{at}" for at in range(6)]


def test_more_requests_than_queries_may_run_wait_for_room(tmp_path: Path) -> None:
    async def run() -> RunOutcome:
        async with Runtime([engine()], max_queries=2) as runtime:
            return await run_beside(job(tmp_path), runtime)

    assert asyncio.run(run()) == RunOutcome(0, 6, 0)


def test_an_application_beside_queries_passes_answers_on(tmp_path: Path) -> None:
    app = Application(
        "app", [ModelNode("draft", "a", 5, map=True), ModelNode("sum", "b", 5, inputs=("draft",))]
    )
    request = RunRequest(AppRequest("r", 0, (1, 1)), (), ("one", "two"))
    wanted = OfflineJob(
        app, stored([request]), *(tmp_path / name for name in ("answers", "failed", "journal"))
    )
    prompts: list[str] = []
    noting = FakeLLMConfig(
        fail_on=lambda task: prompts.append("".join(str(part.text) for part in task.prompt))
    )

    async def run() -> RunOutcome:
        second = deploy("b", FakeLLM, noting, contract="llm", max_running=1)
        async with Runtime([engine(), second]) as runtime:
            return await run_beside(wanted, runtime)

    assert asyncio.run(run()) == RunOutcome(0, 1, 0)
    (line,) = (json.loads(line) for line in wanted.answers.read_text("utf-8").splitlines())
    assert prompts[-1] == "\n\n".join(line["response"]["body"]["answers"]["draft"])


def test_a_model_that_is_no_engine_is_refused_before_anything_runs(tmp_path: Path) -> None:
    wanted = job(tmp_path, model="b")
    with pytest.raises(ConfigError, match="'b'; it must be one of the LLM engines: a"):
        wanted.check(["a"])
    assert not wanted.answers.exists()
