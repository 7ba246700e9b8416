"""Tests of emulated servers are left out where the packages of the extra `emulate` are not installed."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob: list[str] = []
if any(find_spec(package) is None for package in ("uvloop", "httptools")):
    collect_ignore_glob.append("test_*.py")
