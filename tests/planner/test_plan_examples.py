"""The examples of planned applications: each can be planned, and the small one runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto.costs.presets import load_output_lengths
from stretto.model.replica import Replica
from stretto.planner.machine import machine_of
from stretto.planner.plan_files import read_application
from stretto.planner.planners.first import first_plan
from stretto.planner.problem import Problem
from stretto.planner.running.replicas import local_plan
from stretto.planner.running.requests import read_planned_requests, read_run_requests
from stretto.planner.running.run import PlanJob, RunOutcome, run_job

FOLDER = Path(__file__).parents[2] / "examples" / "plans"
DECIDING = ("refine", "router", "shorten")
REQUESTS = {"ensemble": "questions", "routing": "routed", "mixed": "mixed"} | dict.fromkeys(
    DECIDING, "questions"
)


def requests_for(name: str, folder: Path) -> Path:
    """Return the example's file of requests, or one with a document, as `requests_of.py` writes it."""
    if name in REQUESTS:
        return FOLDER / f"{REQUESTS[name]}.jsonl"
    file = folder / "documents.jsonl"
    file.write_text(json.dumps({"custom_id": "a.md", "chunks": ["One part.", "Another.", "The end."]}) + "\n")
    return file


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "small"))
def test_an_example_can_be_planned(name: str, tmp_path: Path) -> None:
    app = read_application(FOLDER / f"{name}.yaml")
    requests, _ = read_planned_requests(requests_for(name, tmp_path), app)
    problem = Problem(app, requests, machine_of("8xA100-80G"), load_output_lengths())
    assert {one.model for stage in first_plan(problem).stages for one in stage.replicas} == set(
        problem.models
    )


@pytest.mark.parametrize("name", ["map_reduce", "chain_summary", "ensemble", "routing", "small", *DECIDING])
def test_an_example_can_be_run(name: str, tmp_path: Path) -> None:
    app = read_application(FOLDER / f"{name}.yaml")
    requests = read_run_requests(requests_for(name, tmp_path), app)
    out, failed, journal = (tmp_path / file for file in ("out", "failed", "journal"))
    fake = Replica(FakeLLM, FakeLLMConfig())
    job = PlanJob(
        app, requests, "fake", lambda book: local_plan(app, 8), lambda _: fake, out, failed, journal
    )
    assert run_job(job, lambda num_ended, num_left: None) == RunOutcome(0, len(requests), 0)
    bodies = [json.loads(line)["response"]["body"] for line in (tmp_path / "out").open()]
    if name in DECIDING:
        assert all(body["outputs"]["answer"] for body in bodies)
    else:
        assert {node for body in bodies for node in body["answers"]} == {node.name for node in app.nodes}
