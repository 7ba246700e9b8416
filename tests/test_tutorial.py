"""The five steps of the tutorial work by copy and paste.

They run with the small checkpoint of the tests, whose words make no sense. So what an LLM writes is not
compared, but what comes from documents and from scripts is. The long tests run them with the default model,
where it was fetched, as well: that takes a minute.
"""

from __future__ import annotations

import os
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import CommandLine
from support.local_models import models_loaded_once
from support.pages import DOCS, commands, write_files
from support.services import served

from benchmarks.common.mini_model import MINI
from stretto.engines import local_engines, transforms_engine
from stretto.engines.models.store import FETCHED_MODELS
from stretto.service.apps.deployed_app import load_apps

STEPS = ("ask", "app", "program", "agent", "serve")
AT_EMULATED_SERVER = "http://127.0.0.1:8001"
AT_SERVICE = "http://127.0.0.1:8700"


def page(step: str) -> Path:
    return DOCS / "tutorial" / f"{step}.md"


@pytest.fixture(params=["small", pytest.param("default", marks=pytest.mark.long)])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files of all steps, in which the models of this machine are at hand."""
    default = FETCHED_MODELS["smollm2"]
    if request.param == "default" and not default.is_here:
        pytest.skip("the default model was not fetched")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for step in STEPS:
        write_files(page(step), tmp_path)
    with models_loaded_once(default.name if request.param == "default" else str(MINI)):
        yield tmp_path
    for name in [name for name in sys.modules if name == "my_app"]:
        del sys.modules[name]


def printed_by(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a script of the tutorial in this process; return what it prints."""
    python, script = shlex.split(command)
    assert python == "python"
    capsys.readouterr()
    runpy.run_path(script, run_name="__main__")
    return capsys.readouterr().out


def test_ask(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stretto = CommandLine(monkeypatch, capsys)
    for command, shown in commands(page("ask")):
        name, *arguments = shlex.split(command)
        assert name == "stretto"
        ended = stretto(*arguments)
        assert ended.code == 0, ended.err
        sources = [line for line in (shown or "").splitlines() if line.startswith("  ")]
        assert sources
        assert [line for line in ended.out.splitlines() if line.startswith("  ")] == sources


@pytest.mark.parametrize("step", ["app", "program"])
def test_scripts(step: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if step == "program":
        pytest.importorskip("llguidance")
    found = list(commands(page(step)))
    assert len(found) >= 2
    for command, shown in found:
        assert shown is not None
        assert len(printed_by(command, capsys).splitlines()) >= len(shown.splitlines())


def test_agent(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("uvloop")
    from support.emulated import emulating, fleet_of

    (start, _), (run, shown) = commands(page("agent"))
    assert start.split()[:2] == ["stretto", "emulate"]
    script = Path(run.split()[-1])
    with emulating(fleet_of(replies=Path("replies.json"))) as (url,):
        assert AT_EMULATED_SERVER in script.read_text()
        script.write_text(script.read_text().replace(AT_EMULATED_SERVER, url))
        assert printed_by(run, capsys) == shown


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_serve(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (start, _), *asked = commands(page("serve"))
    *_, app, port, number = shlex.split(start)
    assert (port, number) == ("--port", AT_SERVICE.rpartition(":")[2])
    with served([*local_engines(), transforms_engine()], apps=load_apps([app])) as (_, url):
        for command, shown in asked:
            assert shown
            if command.startswith("python"):
                script = Path(command.split()[-1])
                script.write_text(script.read_text().replace(AT_SERVICE, url))
                assert printed_by(command, capsys)
                continue
            ended = subprocess.run(
                ["bash", "-c", command.replace(AT_SERVICE, url)],
                capture_output=True,
                text=True,
                timeout=600,
                env={**os.environ, "no_proxy": "*"},
            )
            assert ended.stdout.startswith(shown.partition("…")[0]), ended.stderr
            assert "error" not in ended.stdout
