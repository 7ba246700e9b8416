"""Shells complete names of commands and options, and `python -m stretto` is the command."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

from typer.main import get_command

import stretto
from stretto.cli.commands import app

_MAIN = "import sys; sys.argv[0] = 'stretto'; from stretto.cli.main import main; main()"


def completed(words: str, number: int) -> list[str]:
    """Return what bash offers for the word of this number."""
    asked = {"_STRETTO_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)}
    command = [sys.executable, "-c", _MAIN]
    ended = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True)
    assert ended.stderr == ""
    return ended.stdout.split()


def test_commands_are_completed() -> None:
    assert completed("stretto ", 1) == list(get_command(app).commands)  # type: ignore[attr-defined]
    assert completed("stretto em", 1) == ["emulate"]


def test_options_of_a_command_are_completed() -> None:
    assert completed("stretto ask --que", 2) == ["--questions"]
    assert completed("stretto no-command --que", 2) == []


def test_the_script_for_a_shell_is_shown() -> None:
    # The command asks which shell started it. A test's own parent may be none.
    command = shlex.join([sys.executable, "-c", _MAIN, "--show-completion"])
    ended = subprocess.run(["bash", "-c", f"{command}; exit $?"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "_STRETTO_COMPLETE=complete_bash" in ended.stdout


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "stretto", "--version"]
    assert subprocess.check_output(command, text=True) == f"{stretto.__version__}\n"
