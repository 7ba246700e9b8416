from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from support.step_costs import shapes

from benchmarks.costs.step_sample import sample_steps
from stretto.costs.fit import MeasuredStep
from stretto.costs.shape import StepShape
from stretto.costs.steps_file import SIZES, read_steps
from stretto.model.errors import DocumentError

HEADER = ",".join([*SIZES, "seconds"])
PARTS = HEADER + ",forward_s,preparation_s,sampling_s,host_s"
DECODE = "0,0,0,0,2,110,100,"


def written(folder: Path, *lines: str) -> Path:
    path = folder / "steps.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_reads_steps_with_and_without_parts(tmp_path: Path) -> None:
    shape = StepShape(num_decodes=2, context_tokens=110, max_context_tokens=100)
    assert read_steps(written(tmp_path, HEADER, DECODE + "0.5")) == [MeasuredStep(shape, 0.5)]
    found = read_steps(written(tmp_path, PARTS, DECODE + "0.5,0.2,0.1,0.1,0.1"))
    assert found[0].parts == {"forward": 0.2, "preparation": 0.1, "sampling": 0.1, "host": 0.1}
    path = tmp_path / "steps.csv.gz"
    path.write_bytes(gzip.compress((tmp_path / "steps.csv").read_bytes()))
    assert read_steps(path) == found


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["num_decodes,seconds", "1,2"], r"there is no column num_prefills, .*max_context_tokens"),
        (
            [HEADER, DECODE + "0.5", DECODE + "-0.5"],
            "row 3: seconds must be finite and not negative, got -0.5",
        ),
        ([HEADER, DECODE + "nan"], "row 2: seconds must be finite and not negative, got nan"),
        ([HEADER, DECODE + "0"], "row 2: seconds is 0"),
        ([HEADER, DECODE + "fast"], "row 2: could not convert"),
        ([HEADER, DECODE], "row 2: could not convert"),
        ([HEADER, "1,2"], "row 2: "),
        ([PARTS, DECODE + "0.5,0.4,0.4,0.1,0.1"], r"row 2: the parts add up to 1 s, and the step took 0.5 s"),
        (
            [PARTS, DECODE + "0.5,0.7,-0.4,0.1,0.1"],
            "row 2: preparation must be finite and not negative, got -0.4",
        ),
        ([PARTS, DECODE + "0.5,0.5,,,"], "row 2: some parts are missing: there are only forward"),
        ([HEADER, "0,0,0,0,2,110,50,1"], "row 2: 2 decodes of at most 50 tokens cannot have 110"),
        ([HEADER, "3,2,1,2,0,0,0,1"], "row 2: 3 prefills of at most 1 tokens cannot have 2"),
        ([HEADER, "0,0,0,-1,2,110,100,1"], "row 2: a size is negative"),
        ([HEADER, "0,0,0,0,0,0,0,1"], "row 2: the step has neither prefills nor decodes"),
        ([HEADER], "the file has no steps"),
        ([HEADER, DECODE + "1e-320"], "row 2: seconds is 9.9.*e-321, which is impossible for a step"),
        ([HEADER, DECODE + "1e300"], r"row 2: seconds is 1e\+300, which is impossible for a step"),
        ([HEADER, DECODE + "0.5,7"], "row 2: the number of cells is not that of columns"),
        ([HEADER + ",seconds", DECODE + "0.5,0.5"], "there are two columns seconds"),
        ([HEADER, "1,9,9,3,0,0,0,1"], "row 2: prefills of 9 tokens cannot have 3 pairs"),
        ([HEADER, "0,0,0,3,2,110,100,1"], "row 2: prefills of 0 tokens cannot have 3 pairs"),
        ([HEADER, f"1,{10**16},{10**16},{10**17},0,0,0,1"], "row 2: a size is too large for one step"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_row(tmp_path: Path, lines: list[str], reason: str) -> None:
    with pytest.raises(DocumentError, match=r"steps\.csv.*" + reason):
        read_steps(written(tmp_path, *lines))


def test_a_byte_order_mark_changes_nothing(tmp_path: Path) -> None:
    assert len(read_steps(written(tmp_path, "\ufeff" + HEADER, DECODE + "0.5"))) == 1


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"none\.csv"):
        read_steps(tmp_path / "none.csv")
    path = tmp_path / "steps.csv.gz"
    path.write_bytes(b"not compressed")
    with pytest.raises(DocumentError, match=r"steps\.csv\.gz"):
        read_steps(path)


def test_a_sample_is_small_repeatable_and_of_all_kinds() -> None:
    steps = [MeasuredStep(shape, 1.0) for shape in shapes()]
    for share in (0.01, 0.02, 0.1, 1.0):
        assert len(sample_steps(steps, share)) <= share * len(steps)
    chosen = sample_steps(steps, 0.05, seed=3)
    assert chosen == sample_steps(steps, 0.05, seed=3) != sample_steps(steps, 0.05, seed=4)
    found = [steps[index].shape for index in chosen]
    assert {bool(shape.num_prefills) for shape in found} == {True, False}
    decodes = [shape.num_decodes for shape in found if shape.num_decodes]
    assert min(decodes) <= 4
    assert max(decodes) > 300
