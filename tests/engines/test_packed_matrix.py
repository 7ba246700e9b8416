"""Weights are packed where the processor can, and are used as they are where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.common.mini_model import MINI
from stretto.engines.packed_matrix import PackedLinear, can_pack, pack_linears, works
from stretto.engines.transformer.weights import Linear

packing = pytest.mark.skipif(
    not can_pack(torch.ones(1, 1, dtype=torch.bfloat16)),
    reason="this processor, or this torch, packs no bfloat16 matrices (x86: AVX-512 or AVX-NE-CONVERT)",
)
LIMITS = ("SSE41", "AVX2", "AVX2_VNNI")
"""Instruction sets of oneDNN without AVX-512, as its environment variable names them. The variable changes
nothing on processors other than x86."""


def cannot(matrix: Tensor) -> bool:
    return False


class OwnLinear(nn.Linear):
    """A layer that another module may read the weights of."""


def model() -> nn.Sequential:
    inner = nn.Sequential(OwnLinear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    return nn.Sequential(nn.Linear(4, 4), inner).bfloat16().append(nn.Linear(2, 2))


def kinds(layers: nn.Module) -> list[str]:
    return [type(module).__name__ for module in layers.modules() if not list(module.children())]


@packing
@pytest.mark.parametrize("num_rows", [1, 7, 256, 300])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_weights_give_the_same_within_rounding(num_rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(48, 80, bias=bias, dtype=torch.bfloat16)
    rows = torch.randn(1, num_rows, 48, dtype=torch.bfloat16)
    with torch.inference_mode():
        expected = plain(rows)
        for packed in (PackedLinear(plain), Linear(plain.weight, plain.bias)):
            torch.testing.assert_close(packed(rows), expected, atol=0.02, rtol=0.02)


@packing
def test_plain_bfloat16_layers_are_packed_and_no_others() -> None:
    layers = model()
    pack_linears(layers)
    assert kinds(layers) == ["PackedLinear", "OwnLinear", "ReLU", "PackedLinear", "Linear"]


def test_nothing_is_packed_where_the_processor_cannot() -> None:
    layers = model()
    pack_linears(layers, cannot)
    assert kinds(layers) == ["Linear", "OwnLinear", "ReLU", "Linear", "Linear"]
    matrix, bias, rows = (torch.randn(*shape, dtype=torch.bfloat16) for shape in ((8, 4), (8,), (3, 4)))
    assert torch.equal(Linear(matrix, bias, cannot)(rows), F.linear(rows, matrix, bias))


@pytest.mark.parametrize(
    "matrix",
    [
        torch.ones(4, 4),
        torch.ones(4, 4, dtype=torch.float16),
        torch.ones(4, 4, dtype=torch.bfloat16, device="meta"),
    ],
)
def test_only_bfloat16_on_the_cpu_is_packed(matrix: Tensor) -> None:
    assert not can_pack(matrix)


def test_packing_works_only_if_both_operations_do() -> None:
    def refuse(*args: object) -> NoReturn:
        raise RuntimeError(
            "bf16 path needs the cpu support avx_ne_convert or avx512bw, avx512vl and avx512dq"
        )

    def lack(*args: object) -> NoReturn:
        raise NotImplementedError("Could not run 'mkldnn::_reorder_linear_weight' with the 'CPU' backend")

    def agree(matrix: Tensor, *args: object) -> Tensor:
        return matrix

    for pack, multiply, expected in (
        (agree, agree, True),
        (refuse, agree, False),
        (agree, refuse, False),
        (lack, agree, False),
    ):
        operations = SimpleNamespace(_reorder_linear_weight=pack, _linear_pointwise=multiply)
        assert works(operations) == expected
    assert not works(SimpleNamespace(_reorder_linear_weight=agree)), "an older torch"
    assert not works(SimpleNamespace()), "a torch without oneDNN"


WHOLE = """
import torch
from torch import nn
from stretto.engines.packed_matrix import pack_linears
from stretto.engines.transformer.weights import Linear
matrix = torch.eye(32, dtype=torch.bfloat16)
layers = nn.Sequential(nn.Linear(32, 32, dtype=torch.bfloat16))
pack_linears(layers)
assert torch.equal(Linear(matrix)(matrix), matrix)
assert layers(matrix).shape == (32, 32)
"""


def test_the_answer_of_the_processor_is_asked_for() -> None:
    """oneDNN refuses in this process as it does on a processor with AVX2 and without AVX-512."""
    subprocess.run([sys.executable, "-c", WHOLE], check=True, env=limited("AVX2"), timeout=800)


@pytest.mark.long
@pytest.mark.parametrize("limit", LIMITS)
def test_bfloat16_answers_questions_on_each_processor(limit: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The Larch Mill makes blue paper. It stands at the river Aven.", "utf-8")
    stretto = (sys.executable, "-c", "from stretto.cli.main import main; main()")
    asked = ("ask", "What does the Larch Mill make?", "--docs", tmp_path, "--llm", MINI)
    command = (*stretto, *asked, "--dtype", "bfloat16")
    done = subprocess.run(command, capture_output=True, text=True, env=limited(limit), timeout=800)
    assert done.returncode == 0, done.stderr
    assert "paper" in done.stdout


def limited(isa: str) -> dict[str, str]:
    """Return the environment of a process in which oneDNN uses no instructions beyond a set."""
    return {**os.environ, "ONEDNN_MAX_CPU_ISA": isa, "ATEN_CPU_CAPABILITY": "avx2"}
