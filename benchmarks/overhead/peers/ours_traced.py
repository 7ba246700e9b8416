"""Stretto with tracing on."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from benchmarks.overhead.peers import RunOnce, ours
from stretto.trace.recorder import Recorder


def open_runner() -> AbstractAsyncContextManager[RunOnce]:
    """Start a runtime with one engine, and a recorder that keeps every span."""
    return ours.open_runner(Recorder())
