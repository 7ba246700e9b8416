import json
from pathlib import Path

import pytest

from checks.pass_equality import CheckedAnswer, Tally, main
from stretto.model.values import Chunk, Hit


def asked(
    answer: str, hits: list[tuple[int, float]], logit_gap: float = 1.0, search_gap: float = 1.0
) -> CheckedAnswer:
    sources = tuple(Hit(Chunk("a", index, str(index)), score) for index, score in hits)
    return CheckedAnswer(answer, sources, logit_gap, search_gap)


@pytest.mark.parametrize(
    ("base", "other", "outcome"),
    [
        (asked("x", [(1, 0.5)]), asked("x", [(1, 0.5)]), "equal"),
        (asked("x", [(1, 0.5)]), asked("x", [(1, 0.50001)]), "equal"),
        (asked("x", [(1, 0.5)]), asked("y", [(1, 0.5)]), "unexcused"),
        (asked("x", [(1, 0.5)], 5e-5), asked("y", [(1, 0.5)]), "excused"),
        (asked("x", [(1, 0.5)]), asked("x", [(2, 0.4)]), "unexcused"),
        (asked("x", [(1, 0.5)]), asked("y", [(2, 0.50001)]), "excused"),
        (asked("x", [(1, 0.5), (2, 0.5)]), asked("x", [(2, 0.5), (1, 0.5)]), "excused"),
        (asked("x", [(1, 0.5)]), asked("x", [(2, 0.4)], search_gap=5e-5), "excused"),
        (asked("x", [(1, 0.5)], 5e-5), asked("x", [(2, 0.4)], 5e-5), "unexcused"),
        (asked("x", [(1, 0.5)]), asked("x", []), "unexcused"),
    ],
)
def test_only_near_ties_excuse_a_difference(base: CheckedAnswer, other: CheckedAnswer, outcome: str) -> None:
    tally = Tally()
    tally.add("case", base, other)
    assert (tally.excused, len(tally.unexcused)) == {
        "equal": (0, 0),
        "excused": (1, 0),
        "unexcused": (0, 1),
    }[outcome]


def write_squad(folder: Path) -> None:
    paragraphs = [
        ["The stretto is a passage where voices overlap.", "Bach closed fugues with it, often twice."],
        ["The river runs from the mountains to the sea.", "Old bridges cross it in every village."],
        ["A scheduler starts what is ready.", "The longest chain of steps limits the whole."],
    ]
    questions = ["What is a stretto?", "Where does the river run?", "What limits the whole?"]
    (folder / "squad_xquad_en").mkdir()
    with (folder / "squad_xquad_en" / "documents.jsonl").open("w") as file:
        for i, texts in enumerate(paragraphs):
            file.write(json.dumps({"doc_id": f"d{i}", "title": f"T{i}", "paragraphs": texts}) + "\n")
    with (folder / "squad_xquad_en" / "questions.jsonl").open("w") as file:
        for i, text in enumerate(questions):
            file.write(json.dumps({"id": str(i), "doc_id": f"d{i}", "question": text}) + "\n")


@pytest.mark.long
def test_the_command_finds_real_engines_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sentence_transformers")
    write_squad(tmp_path)
    assert main(["--data", str(tmp_path), "--questions", "2"]) == 0
    assert "2 questions over squad_xquad_en" in capsys.readouterr().out


def test_the_command_says_what_data_it_wants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path)]) == 2
    assert "squad_xquad_en" in capsys.readouterr().out
