"""The page on deployed apps: its commands run, and its table of limits is that of the code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from support.services import served

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from stretto.model.deployment import deploy
from stretto.schema.fields import build
from stretto.service.apps.deployed_app import load_apps
from stretto.service.apps.limits import AppLimits

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deployed_apps.md").read_text("utf-8")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_commands_run() -> None:
    names = ("chunking", "embedding", "reranking", "vectors", "web")
    batches = [deploy(name, FakeBatch, FakeBatchConfig(), keeps_state=True) for name in names]
    llms = [deploy(name, FakeLLM, FakeLLMConfig(), contract="llm") for name in ("llm", "llm_small")]
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    with served([*batches, *llms], apps=load_apps(["naive", "advanced", "search"])) as (_, url):
        for block in blocks:
            ended = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", block.replace("http://127.0.0.1:8700", url)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=200,
                env={**os.environ, "no_proxy": "*"},
            )
            assert ended.returncode == 0, ended.stderr
            assert '"error"' not in ended.stdout, ended.stdout
            if "queries" in block:
                assert ended.stdout.count('"outputs"') >= 3


def test_the_app_of_the_page_is_servable(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_apps.py").write_text(code)
    (app,) = load_apps([f"{tmp_path / 'my_apps.py'}:translate"]).values()
    assert app.texts == ("translation",)
    assert {name for name, _ in app.template.inputs} == {"text", "language"}


def test_the_limits_of_the_page_are_the_defaults() -> None:
    (table,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert build(AppLimits, tomllib.loads(table)["service"]["apps"]) == AppLimits()
