"""The cores of this machine as devices of a plan, and what is measured of models there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.common.mini_model import MINI
from stretto.costs.output_lengths import LengthsBySource, output_lengths
from stretto.costs.shape import StepShape
from stretto.costs.step_terms import NUMBERS as STEP_NUMBERS
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.model.errors import ConfigError
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.core_costs import CoreCost, core_cost_of, measure_on_cores
from stretto.planner.cores import core_models, cores_machine, usable_cores
from stretto.planner.plan import PlannedReplica
from stretto.planner.problem import Problem
from stretto.planner.running.replicas import core_replicas, profile_of

NUMBERS = dict.fromkeys(STEP_NUMBERS, 0.0) | {"preparation": 0.002, "preparation_sequence": 0.0005, "kv": 2.0}


def app_of(*models: str) -> Application:
    return Application("app", [ModelNode(f"node{at}", model, 64) for at, model in enumerate(models)])


def problem_of(app: Application, num_cores: int = 2) -> Problem:
    models = core_models(app)
    costs = {name: CoreCost(model.sizes, NUMBERS, 3.0) for name, model in models.items()}
    lengths = LengthsBySource({(name, ""): output_lengths({32: 1.0}) for name in models})
    return Problem(app, [AppRequest("1", 20)], cores_machine(costs, num_cores), lengths)


def test_a_planned_replica_is_a_process_with_a_thread_on_its_core() -> None:
    app = app_of(str(MINI), str(MINI))
    problem = problem_of(app)
    make = core_replicas(problem, core_models(app))
    replica = make(PlannedReplica(str(MINI), (0,)))
    assert (replica.runs_in, replica.threads) == ("process", 1)
    assert replica.devices == (f"cpu:{usable_cores()[0]}",)
    assert replica.executable is TransformerLLM
    assert replica.loading_s == 3.0
    scheduler = problem.costs[str(MINI)][1].scheduler
    config = replica.config
    assert isinstance(config, TransformerConfig)
    assert config.path == MINI
    assert (config.max_running, config.policy) == (scheduler.max_running, scheduler.policy)
    sizes = core_models(app)[str(MINI)].sizes
    assert config.kv_bytes == replica.kv_tokens * sizes.kv_bytes_per_token  # type: ignore[operator]
    assert not problem.estimates


def test_a_replica_has_the_costs_of_the_plan() -> None:
    cost = problem_of(app_of(str(MINI))).costs[str(MINI)][1]
    profile = profile_of(cost, speed=2.0)
    alone_s, beside_s = (cost.step.step_s(StepShape(0, 0, 0, 0, n, 512 * n, 512)) / 2 for n in (1, 32))
    assert profile.decode_s(1) == pytest.approx(alone_s)
    assert profile.decode_s(32) == pytest.approx(beside_s)
    prefill_s = cost.step.step_s(StepShape(1, 512, 512, 512 * 513 // 2, 0, 0, 0)) / 2
    assert profile.batch_s(512) == pytest.approx(prefill_s, rel=0.01)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("stand-in", "node 'node0': model 'stand-in' is no checkpoint"),
        ("no/such/folder", "node 'node0': model 'no/such/folder' is no checkpoint"),
    ],
)
def test_models_that_cannot_run_on_cores_are_refused(model: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        core_models(app_of(model))
    assert message in refusal.value.message


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(ConfigError, match="'gpt2' is not supported"):
        core_models(app_of(str(tmp_path)))


@pytest.mark.long
def test_steps_and_starts_are_measured_in_processes() -> None:
    (model,) = core_models(app_of(str(MINI))).values()
    cost = measure_on_cores(model, usable_cores()[:1], max_s=0.5)
    assert cost.start_s > 0
    assert any(number > 0 for number in cost.numbers.values())
    assert core_cost_of(json.loads(json.dumps(cost.as_json()))) == cost
