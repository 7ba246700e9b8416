"""An op of one's own is one file: `support/own_batch_op.py` for a batch op, `own_llm_op.py` for one of LLMs.

Nothing else names them, and yet they run, are simulated, explained, measured and replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import pytest
import support.own_batch_op as batch_op
import support.own_llm_op as llm_op
from support.command_line import CommandLine
from support.runtime_engines import AtOnce
from support.virtual_loop import in_virtual_time

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto import Runtime, Template, deploy
from stretto.apps.plan_cache import PlanCache
from stretto.engines.profiling import profile_engine
from stretto.graph.op_table import OPS
from stretto.model.errors import BadReply, ConfigError
from stretto.model.profile import Profile
from stretto.model.tasks import Task
from stretto.sim.driver import VirtualDriver
from stretto.sim.synthetic_batches import SyntheticBatch, SyntheticConfig

BOTH = llm_op.vocabulary.with_op(batch_op.REDACT)
_PLANNING = llm_op.planning
_REDACTING = batch_op.Redaction(texts=_PLANNING["steps"], hints=("batchable",))
APP = Template("plan and redact", _PLANNING >> _REDACTING, {"steps": _REDACTING["texts"]}, BOTH)
INPUTS = {"goal": "keep the secret"}
LLM = deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm", profile=Profile(per_output_s=0.01))


def run_for_real(passes: str) -> Mapping[str, object]:
    async def main() -> Mapping[str, object]:
        llm = LLM.changed(runs_in="loop", executable=lambda config: AtOnce(FakeLLM(config)))
        async with Runtime([llm, batch_op.engine], vocabulary=BOTH) as runtime:
            return await runtime.run(APP, INPUTS, passes=passes)

    return in_virtual_time(main)()


def simulate(passes: str) -> tuple[Mapping[str, object] | None, float]:
    profiles = {engine.name: engine.profile for engine in (LLM, batch_op.engine)}
    plan = PlanCache(profiles, BOTH).plan(APP, {}, BOTH.select_passes(passes))
    driver = VirtualDriver([LLM, batch_op.engine], vocabulary=BOTH)
    driver.submit("q", plan, INPUTS)
    (reply,) = driver.run().values()
    return reply.outputs, driver.now_s


def test_they_run_and_are_simulated_with_the_same_result_in_every_mode() -> None:
    real, (simulated, _) = run_for_real("all"), simulate("all")
    assert real == simulated == run_for_real("none") == simulate("none")[0]
    steps = real["steps"]
    assert isinstance(steps, list)
    assert len(steps) == 3


def test_passes_rewrite_them_as_those_of_stretto() -> None:
    """Items leave the running `plan`, and are redacted one by one."""
    plan = PlanCache({}, BOTH).plan(APP, {}, ("pipeline_decode",))
    (redacted,) = [node for node in plan.nodes if node.op == "redact"]
    assert [arg.piece for arg in redacted.ins] == [1]
    (planned,) = [node for node in plan.nodes if node.op == "plan"]
    assert planned.decode is not None
    assert planned.fused_into is not None


def test_they_are_measured() -> None:
    measurements, profile = profile_engine(batch_op.engine, lambda measured: None, BOTH.ops)
    assert [one.units for one in measurements] == [1, 2, 4] * 2
    assert all(one.tokens for one in measurements)
    assert profile.base_s >= 0
    with pytest.raises(ConfigError, match=r"none of its ops \(redact\) has one"):
        profile_engine(batch_op.engine, lambda measured: None, OPS)


def test_a_replay_makes_up_an_answer() -> None:
    task = Task(0, "q", "redacted", "redact", {"texts": ["abc", "d"]}, {}, num_items=2, each=("texts",))
    assert SyntheticBatch(SyntheticConfig(ops=BOTH.ops)).run([task]) == [["xxx", "x"]]
    with pytest.raises(BadReply, match="no synthetic answer to redact"):
        SyntheticBatch(SyntheticConfig()).run([task])


@pytest.mark.parametrize(
    ("module", "row"), [(batch_op, ["redacted", "redacting", "texts"]), (llm_op, ["steps", "llm", "read"])]
)
def test_they_are_explained(
    module: ModuleType, row: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = CommandLine(monkeypatch, capsys)("explain", "--app", f"{module.__file__}:app")
    assert ended.code == 0, ended.err
    assert row in [line.split() for line in ended.out.splitlines()]
