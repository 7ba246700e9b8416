"""Texts between colons are printed as they are: rich would take ":x:" for the name of a picture."""

from __future__ import annotations

import re

import pytest
from rich.console import Console
from support.command_line import CommandLine
from support.pages import CLONE

from stretto.cli.ask.answers import PrintedAnswer, Printer


def test_an_error_names_the_file_as_it_was_given(stretto: CommandLine) -> None:
    assert "--app none.py:x: there is no file none.py" in stretto.refuses("serve", "--app", "none.py:x")


def test_an_answer_is_printed_as_it_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    answer = PrintedAnswer("Where is :x:?", "In a.py:x: and b:on:c.", ())
    Printer(Console(stderr=True, emoji=False), as_json=False, is_small_model=False).print(answer)
    assert capsys.readouterr().out == "Where is :x:?\nIn a.py:x: and b:on:c.\n"


def test_every_console_leaves_names_between_colons_alone() -> None:
    for file in (CLONE / "stretto").rglob("*.py"):
        for made in re.findall(r"\bConsole\(.*?\)", file.read_text("utf-8")):
            assert "emoji=False" in made, file
