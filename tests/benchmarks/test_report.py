import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.registry import BENCHMARKS, run
from benchmarks.report import Goal, Report, Row, print_report, show, spread, write_json
from stretto.model.errors import ConfigError
from stretto.trace.summary import quantile

REPORT = Report(
    "overhead",
    7,
    {"rounds": 2},
    (
        Row("times", "ours", {"median_us": 12.5, "runs": 20}),
        Row("times", "theirs", {"median_us": 1500.0}, "quoted", "from elsewhere [sic]"),
    ),
    (Goal("µs", 12.5, 25, "lower"), Goal("per second", 10, 20, "higher")),
    ("something was left out",),
)


def test_a_goal_is_met_from_the_side_that_is_better() -> None:
    assert [goal.met for goal in REPORT.goals] == [True, False]
    assert Goal("", 25, 25, "lower").met
    assert Goal("", 25, 25, "higher").met


def test_json_holds_all_that_the_report_says(tmp_path: Path) -> None:
    write_json(REPORT, tmp_path / "report.json")
    read = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert read == json.loads(json.dumps(REPORT.as_dict()))
    assert set(read) == {
        *("name", "commit", "machine", "versions", "config", "seed", "rows", "goals", "notes"),
    }
    assert read["goals"][0] == {"name": "µs", "value": 12.5, "goal": 25, "better": "lower", "met": True}
    assert read["rows"][1]["origin"] == "quoted"
    assert read["machine"]["cores"] >= 1
    assert "stretto" in read["versions"]


def test_tables_show_rows_goals_and_notes() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    print_report(REPORT, console)
    text = console.export_text()
    for part in ("times", "theirs", "quoted", "1,500", "[sic]", "≤ 25", "something was left out"):
        assert part in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_table_is_cut_however_narrow_the_terminal_or_pipe(width: int) -> None:
    values = {f"median_of_{i}_measured_us": 101.0 + i for i in range(12)}
    name = "a scheme with a long name, all passes, Poisson load of 0.5 queries/s"
    goals = (Goal("a goal with a long name, 16 queries in flight, slowest order", 12.5, 25, "lower"),)
    rows = (Row("wide", name, values), Row("wide", "b", values))
    file = io.StringIO()
    print_report(replace(REPORT, rows=rows, goals=goals), Console(width=width, file=file))
    text = file.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines()[:-1])) <= width
    for value in values.values():
        assert text.count(show(value)) == 2
    for word in (*name.split(), *goals[0].name.split()):
        assert word in text
    assert "wide (measured)" in text


def test_quantiles_are_values_that_were_measured() -> None:
    values = [3.0, 1.0, 2.0, 10.0]
    assert (quantile(values, 0.0), quantile(values, 0.5), quantile(values, 0.9)) == (1.0, 2.0, 10.0)
    assert spread(values, "s") == {"median_s": 2.5, "p10_s": 1.0, "p90_s": 10.0}


def test_numbers_are_shown_with_the_digits_that_matter() -> None:
    assert [show(v) for v in (None, True, 12345, 1234.5, 12.345, 0.012345, "x")] == [
        *("", "yes", "12,345", "1,234", "12.35", "0.0123", "x"),
    ]


def test_an_unknown_benchmark_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="overhead, answers, passes"):
        run("nothing")
    assert all(name == benchmark.name for name, benchmark in BENCHMARKS.items())


def test_a_plot_shows_the_tables_its_benchmark_names(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plotting import plot

    table, column = BENCHMARKS["overhead"].charts[0]
    rows = (Row(table, "ours", {column: 12.5}), Row(table, "theirs", {column: 150.0}, "quoted"))
    plot(Report("overhead", 0, {}, rows, ()), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_a_plot_leaves_out_tables_that_the_report_lacks() -> None:
    from benchmarks.plotting import charts_of

    table, column = "faults of one of the LLM servers", "mean_s"
    report = Report("fleet", 0, {}, (Row(table, "no fault, ours", {column: 1.0}),), ())
    assert charts_of(report) == {table: [column]}
