"""What a planned replica becomes: the command line of its server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stretto.costs.presets import load_output_lengths
from stretto.costs.shape import StepShape
from stretto.emulate.llm_plan import check_llm
from stretto.emulate.wanted import WantedServer
from stretto.engines.server_process.programs import command_line
from stretto.model.replica import Replica
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.machine import machine_of
from stretto.planner.plan import PlannedReplica
from stretto.planner.problem import Problem
from stretto.planner.running.replicas import emulated_replicas, vllm_replicas

OWN_MODEL = {
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
MODEL = "/models/vicuna-13b-v1.5"
APP = Application("app", [ModelNode("chat", MODEL, 256)])


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(APP, [AppRequest("1", 20)], machine_of("8xA100-80G"), load_output_lengths())


def words(replica: Replica) -> list[str]:
    config: Any = replica.instance_config()
    return command_line(config, 8000)


def test_a_vllm_server_has_the_devices_of_its_plan(problem: Problem) -> None:
    replica = vllm_replicas(APP, problem, None)(PlannedReplica(MODEL, (2, 3)))
    assert (replica.devices, replica.tp) == (("cuda:2", "cuda:3"), 2)
    assert words(replica) == [
        *("vllm", "serve", "/models/vicuna-13b-v1.5", "--host", "127.0.0.1", "--port", "8000"),
        *("--tensor-parallel-size", "2", "--max-num-seqs", "256", "--gpu-memory-utilization", "0.9"),
    ]


def test_without_a_machine_a_vllm_server_has_no_devices_of_its_own() -> None:
    replica = vllm_replicas(APP, None, Path("/opt/vllm/bin/python"))(PlannedReplica(MODEL, (0,)))
    assert replica.devices == ()
    python, option, program, *others = words(replica)
    assert (python, option) == ("/opt/vllm/bin/python", "-c")
    assert "vllm.entrypoints.openai.api_server" in program
    assert others == [
        *("serve", "/models/vicuna-13b-v1.5", "--host", "127.0.0.1", "--port", "8000"),
        *("--tensor-parallel-size", "1", "--max-num-seqs", "256"),
    ]


def test_an_emulated_server_has_the_costs_that_are_planned_with(tmp_path: Path) -> None:
    """Those of a machine without a preset, and of a model that only its directory describes."""
    folder = tmp_path / "own model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(OWN_MODEL), "utf-8")
    app = Application("app", [ModelNode("chat", str(folder), 256)])
    problem = Problem(app, [AppRequest("1", 20)], machine_of("1xH200"), load_output_lengths())
    found = words(emulated_replicas(problem, 2.0, tmp_path)(PlannedReplica(str(folder), (0,))))
    device, model = (found[found.index(option) + 1] for option in ("--device", "--model"))
    server = check_llm(WantedServer(devices=(0,), model=model, max_batch_tokens=8192), device)
    step = StepShape(2, 900, 500, 200_000, 8, 4000, 700)
    assert server.simulated.cost.step_s(step) == problem.costs[str(folder)][1].step.step_s(step)
    assert server.loading_s == problem.costs[str(folder)][1].loading_s


def test_an_emulated_server_draws_the_lengths_that_are_planned_with(problem: Problem, tmp_path: Path) -> None:
    found = words(emulated_replicas(problem, 2.0, tmp_path)(PlannedReplica(MODEL, (0,))))
    file = Path(found[found.index("--output-lengths") + 1])
    lengths = problem.workload.beliefs["chat"].lengths
    assert json.loads(file.read_text("utf-8")) == {
        str(tokens): weight for tokens, weight in zip(lengths.lengths, lengths.weights, strict=True)
    }


def test_a_server_has_as_many_calls_at_once_as_somewhat_more_than_fit(tmp_path: Path) -> None:
    """The first answers to end are the shortest: by their lengths, one server would get the calls of two."""
    app = Application("app", [ModelNode("chat", "vicuna-13b-v1.5", 300)])
    asked = [AppRequest(f"{at}", 1700, answers={"chat": 300}) for at in range(200)]
    problem = Problem(app, asked, machine_of("8xA100-80G"), load_output_lengths())
    replica = emulated_replicas(problem, 1.0, tmp_path)(PlannedReplica("vicuna-13b-v1.5", (0,)))
    assert replica.kv_tokens is not None
    assert replica.num_slots == pytest.approx(1.2 * replica.kv_tokens / 2000, abs=1)


def test_a_server_whose_calls_are_too_rare_for_a_draw_has_no_limit_of_its_own(tmp_path: Path) -> None:
    app = Application("app", [ModelNode("chat", "vicuna-13b-v1.5", 300)])
    problem = Problem(app, [AppRequest("1", 20)], machine_of("8xA100-80G"), load_output_lengths())
    drawn = problem.draw(0)["chat"]
    rare = problem.knowing({"chat": replace(drawn, prompts=drawn.prompts[:0], outputs=drawn.outputs[:0])})
    planned = PlannedReplica("vicuna-13b-v1.5", (0,))
    assert emulated_replicas(rare, 1.0, tmp_path)(planned).num_slots == 512
