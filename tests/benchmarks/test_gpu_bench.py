"""The GPU's script at toy size, on the CPU if need be: it runs and counts right; its times mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from support.kernel_runs import DEVICE, HAS_GPU, skip_unless_kernels_run

from benchmarks.gpu import attention, checks, command_line, model
from benchmarks.gpu.goals import goals
from benchmarks.gpu.measure import Place, copy_bytes_per_s, hardware
from benchmarks.report import Row
from stretto.engines.transformer.paged_decodes import PagedDecodes

HERE = Place(DEVICE, time.monotonic() + 3600)


@pytest.mark.long
def test_without_a_gpu_it_says_so_and_succeeds(tmp_path: Path) -> None:
    if HAS_GPU:
        pytest.skip("there is a GPU")
    path = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "not run: no CUDA device" in done.stdout
    report = json.loads(path.read_text())
    assert report["notes"] == ["not run: no CUDA device"]
    assert report["rows"] == []


def test_kernels_are_checked() -> None:
    skip_unless_kernels_run()
    rows = list(checks.check_kernels(HERE, checks.SMALL_CASES, (torch.float32, torch.float16)))
    assert [row.values["right"] for row in rows] == [True] * 4


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_unless_kernels_run()
    right = PagedDecodes.attend
    monkeypatch.setattr(PagedDecodes, "attend", lambda *args: right(*args) * 1.001)
    (row, _) = checks.check_kernels(HERE, checks.SMALL_CASES, (torch.float32,))
    assert row.values["right"] is False


def test_attention_is_timed_together_and_not() -> None:
    skip_unless_kernels_run()
    sizes = attention.AttentionSizes(2, 16, (2,), (64,), 1, torch.float32)
    rows = list(attention.measure_attention(HERE, sizes))
    names = [row.name.partition(", ")[2] for row in rows]
    assert names == [attention.TOGETHER, attention.ONE_COPY, attention.COPIES, attention.TORCH]
    assert rows[0].values["times_together"] == 1
    cuts = list(attention.measure_cuts(HERE, sizes, 2, 64))
    assert sum(bool(row.values["in_use"]) for row in cuts) == 2


def test_attention_is_the_same_however_it_is_timed() -> None:
    skip_unless_kernels_run()
    sizes = attention.AttentionSizes(2, 16, (3,), (64,), 1, torch.float32)
    kv = attention._filled(HERE, sizes, 12)
    parts, q_BHD = attention._parts(kv, sizes, 3, 64)  # noqa: N806
    together, alone = (
        parts[name].attend(q_BHD, kv, 0, None) for name in (attention.TOGETHER, attention.ONE_COPY)
    )
    torch.testing.assert_close(together, alone)


def test_model_is_timed_step_by_step() -> None:
    config = {
        "vocab_size": 100,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    }
    sizes = model.ModelSizes(config, (1, 3), 16, 4, 200, (2,), "float32")
    rows = list(model.measure_model(HERE, sizes, 1e9))
    decoding = [row for row in rows if row.table == model.DECODING]
    assert [row.name for row in decoding] == ["1 at once", "3 at once"]
    # Weights and keys and values, 4 bytes each, at 1 GB/s: by hand.
    weights = 2 * (4 * 32 * 32 + 3 * 32 * 64) + 100 * 32
    tokens = 16 + 1 + model._WARM_STEPS + 4
    assert decoding[0].values["floor_ms"] == pytest.approx(4e-6 * (weights + 2 * 2 * 32 * tokens), abs=2e-3)
    sharing = [row for row in rows if row.table == model.SHARING]
    assert [row.name for row in sharing] == ["2 behind 200, together", "2 behind 200, each by itself"]


def test_families_are_compared_with_transformers() -> None:
    pytest.importorskip("transformers")
    row, *_ = checks.check_families(HERE, ("llama",), 3, 40, 4)
    assert (row.values["prompts"], row.values["tokens"], row.values["wrong"]) == (3, 12, 0)


def test_goals_are_judged_by_the_worst() -> None:
    rows = [
        Row(checks.KERNELS, "float32, a", {"max_error": 1e-6}),
        Row(checks.KERNELS, "float32, b", {"max_error": 2e-5}),
        Row(checks.KERNELS, "bfloat16, a", {"max_error": 1e-2}),
        Row(model.DECODING, "1 at once", {"share_of_bandwidth": 0.8}),
        Row(model.SHARING, "32 behind 6000, each by itself", {"ratio": 1.6}),
        Row(model.SHARING, "32 behind 6000, Parrot", {"ratio": 1.58}, "quoted"),
    ]
    found = [(goal.value, goal.met) for goal in goals(rows)]
    assert found == [(2e-5, False), (0.8, True), (1.6, True)]


def test_what_there_is_no_time_for_is_left_out() -> None:
    late = Place(HERE.device, time.monotonic() - 1)
    assert not list(checks.check_families(late, ("llama",), 3, 40, 4))


def test_hardware_and_bandwidth() -> None:
    assert hardware(HERE.device)["torch"] == torch.__version__
    assert min(copy_bytes_per_s(HERE.device, 2**20)) > 0


def test_the_command_line_is_asked_on_the_gpu_as_on_the_cpu() -> None:
    asked: list[tuple[str, ...]] = []

    def answer(arguments: Sequence[str]) -> dict[str, object]:
        asked.append(tuple(arguments))
        return {"answer": "never" if "bfloat16" in arguments else "seldom", "sources": ["pep-0008.rst"]}

    rows = list(command_line.check_answers("cuda", time.monotonic() + 60, answer))
    assert asked == [
        ("--device", device, "--dtype", dtype)
        for device, dtype in (("cpu", "float32"), ("cuda", "float32"), ("cuda", "bfloat16"))
    ]
    assert [(row.values.get("right"), row.values.get("same_answer")) for row in rows] == [
        (True, None),
        (None, False),
    ]


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="there is no dtype 'int4'"):
        command_line.ask(("--dtype", "int4"))


def test_a_command_that_takes_too_long_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"stretto ask --dtype float32 took more than 0\.01 s"):
        command_line.ask(("--dtype", "float32"), limit_s=0.01)
