"""What commands write on stderr beside errors: lines about long work off a terminal, and how much of all."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress
from support.command_line import CommandLine

from stretto.cli.commands import _FUNCTIONS
from stretto.cli.progress import LINE_EVERY_S, bar, print_lines, spinner
from stretto.cli.verbosity import Verbosity, set_verbosity, shows_notes

QUESTION = "Where did the captain live?"


class Work:
    """Work in virtual time, which goes on while it is waited for, and ends after some waits."""

    def __init__(self, num_waits: int) -> None:
        self.now_s = 0.0
        self.num_waits = num_waits
        self.written = io.StringIO()
        self.errors = Console(file=self.written, width=40)
        self.progress = Progress(console=self.errors, disable=True, get_time=lambda: self.now_s)

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds
        self.num_waits -= 1
        return self.num_waits < 0

    def lines(self) -> list[str]:
        print_lines(self.progress, self.wait, self.errors)
        return self.written.getvalue().splitlines()


@pytest.fixture(autouse=True)
def usual_verbosity() -> Iterator[None]:
    yield
    set_verbosity(Verbosity())
    logging.getLogger("stretto").setLevel(logging.NOTSET)


def test_work_of_unknown_size_is_a_line_every_ten_seconds() -> None:
    work = Work(num_waits=2)
    work.progress.add_task("loading the models that the question needs, and no others", total=None)
    text = "loading the models that the question needs, and no others"
    assert work.lines() == [f"{text} (10 s)", f"{text} (20 s)"]
    assert LINE_EVERY_S == 10


def test_work_that_is_counted_says_how_much_is_done() -> None:
    work = Work(num_waits=1)
    task = work.progress.add_task("indexing [a].txt".replace("[", r"\["), total=40)
    work.progress.advance(task, 12)
    work.progress.advance(work.progress.add_task("done", total=1))
    assert work.lines() == ["indexing [a].txt: 12 of 40 (10 s)"]


def test_work_that_ends_soon_is_not_mentioned() -> None:
    work = Work(num_waits=0)
    work.progress.add_task("loading", total=None)
    assert work.lines() == []


@pytest.mark.parametrize("shown", [spinner, bar])
def test_the_end_of_the_work_ends_the_lines_at_once(shown: object) -> None:
    assert callable(shown)
    written = io.StringIO()
    with shown(Console(file=written)) as progress:
        progress.add_task("loading", total=None)
    assert written.getvalue() == ""


def test_quiet_leaves_warnings_and_answers(stretto: CommandLine, doc: Path) -> None:
    (doc.parent / "plan.odt").write_text("text")
    loud = stretto("ask", QUESTION, "--docs", doc.parent)
    quiet = stretto("ask", QUESTION, "--docs", doc.parent, "--quiet")
    assert quiet.out == loud.out
    assert "in all" in loud.err
    assert quiet.err.startswith("skipped ")
    assert quiet.err.count("\n") == 1


def test_the_time_in_all_counts_loading(stretto: CommandLine, doc: Path) -> None:
    ended = stretto("ask", QUESTION, "--docs", doc)
    (line,) = (line for line in ended.err.splitlines() if " s in all: " in line)
    whole, loading, answering = (float(part.split(" s")[0]) for part in line.replace(": ", ", ").split(", "))
    assert whole == pytest.approx(loading + answering, abs=0.02)
    assert loading > 0


def test_every_command_has_the_options(stretto: CommandLine) -> None:
    for command in _FUNCTIONS:
        text = stretto(command, "--help").out
        for option in ("--quiet", "--verbose", "--log-level", "--log-format"):
            assert option in text, command


def test_the_options_may_stand_before_the_command(stretto: CommandLine, doc: Path) -> None:
    ended = stretto("--quiet", "ask", QUESTION, "--docs", doc)
    assert ended.out
    assert " s in all" not in ended.err
    ended = stretto("--verbose", "models", "--quiet")
    assert "--quiet and --verbose contradict each other" in ended.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--quiet", "--verbose"), "--quiet and --verbose contradict each other"),
        (("--log-format", "xml"), "--log-format must be one of text, json, got 'xml'"),
        (("--log-level", "loud"), "--log-level must be one of debug, info, warning, error, got 'loud'"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    stretto: CommandLine, options: tuple[str, ...], message: str
) -> None:
    ended = stretto("models", *options)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


@pytest.mark.parametrize(
    ("given", "level"), [({"verbose": True}, logging.INFO), ({"log_level": "Debug"}, logging.DEBUG)]
)
def test_the_log_is_written_from_a_level_on(given: dict[str, object], level: int) -> None:
    set_verbosity(Verbosity(**given))  # type: ignore[arg-type]
    assert logging.getLogger("stretto.runtime.pump").getEffectiveLevel() == level
    assert shows_notes()
