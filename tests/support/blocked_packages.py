"""What an extra brings, and a process in which all else of this environment cannot be imported."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CLONE = Path(__file__).resolve().parents[2]
_PROJECT = tomllib.loads((CLONE / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = _PROJECT["optional-dependencies"]


def brought_by(extra: str | None) -> set[str]:
    """Return the names of all distributions that the package brings with an extra, or without any.

    Raises:
        PackageNotFoundError: one of them is not installed here.
    """
    found: set[str] = set()
    wanted = [*_PROJECT["dependencies"], *(EXTRAS[extra] if extra is not None else ())]
    while wanted:
        requirement = Requirement(wanted.pop())
        name = canonicalize_name(requirement.name)
        if name == "stretto":
            wanted += [line for other in requirement.extras for line in EXTRAS[other]]
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if name not in found:
            found.add(name)
            wanted += metadata.requires(name) or []
        for other in requirement.extras:
            wanted += [_unmarked(line) for line in metadata.requires(name) or [] if _is_of(line, other)]
    return found


def _is_of(line: str, extra: str) -> bool:
    marker = Requirement(line).marker
    return marker is not None and not marker.evaluate({"extra": ""}) and marker.evaluate({"extra": extra})


def _unmarked(line: str) -> str:
    return line.partition(";")[0]


def run_with(extra: str | None, code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run code in a process that can import only what the package brings with an extra."""
    brought = brought_by(extra)
    blocked = [
        module
        for module, owners in metadata.packages_distributions().items()
        if module != "stretto" and not brought & set(map(canonicalize_name, owners))
    ]
    return run_without(blocked, code, *arguments)


def run_without(blocked: Iterable[str], code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run code in a process that cannot import some packages."""
    code = f"import sys\nsys.modules.update(dict.fromkeys({sorted(blocked)!r}))\n{code}"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
