"""Tests of the router are left out where packages of the extras `route` and `emulate` are not installed."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob: list[str] = []
if any(find_spec(package) is None for package in ("uvloop", "httptools", "httpx")):
    collect_ignore_glob.append("test_*.py")
