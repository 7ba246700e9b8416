"""A process has its devices before it imports torch. These processes are real."""

from __future__ import annotations

import multiprocessing
import os
import stat
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from stretto.model.errors import ConfigError
from stretto.runtime.devices import LazyPickle, claim, detect_devices


def serve(connection: Connection, devices: tuple[str, ...], threads: int | None, lazy: LazyPickle) -> None:
    """Claim, then open what was pickled, in a process of its own. At last, claim one thread for its torch."""
    was_imported = "torch" in sys.modules
    try:
        claim(devices, threads)
        report: Callable[[], dict[str, object]] = lazy.open()
        found = report()
        claim((), 1)
        connection.send((was_imported, {**found, "threads told later": report()["threads"]}))
    except ConfigError as error:
        connection.send((was_imported, error))


def in_a_process(
    devices: tuple[str, ...], threads: int | None
) -> tuple[bool, dict[str, object] | ConfigError]:
    from support.claimed import report

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, devices, threads, LazyPickle(report)))
    process.start()
    try:
        assert ours.poll(800)
        answer: tuple[bool, dict[str, object] | ConfigError] = ours.recv()
        return answer
    finally:
        process.join()


def test_a_process_has_cores_and_threads_before_it_imports_torch() -> None:
    core = max(os.sched_getaffinity(0))
    was_imported, found = in_a_process((f"cpu:{core}",), None)
    assert not was_imported
    assert found == {"threads": 1, "cores": [core], "visible": "", "threads told later": 1}


def test_threads_and_accelerators_are_told_apart() -> None:
    before = dict(os.environ)
    was_imported, found = in_a_process(("cuda:3", "cuda:1"), 2)
    assert not was_imported
    assert found == {
        "threads": 2,
        "cores": sorted(os.sched_getaffinity(0)),
        "visible": "3,1",
        "threads told later": 1,
    }
    assert dict(os.environ) == before


def test_a_core_that_is_not_there_is_refused() -> None:
    _, found = in_a_process(("cpu:9999",), None)
    assert isinstance(found, ConfigError)
    assert "cores [9999] cannot be taken; usable cores: " in str(found)


def test_the_machine_is_what_the_system_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, 81920'\necho '1, 24576'\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    machine = detect_devices()
    assert machine.devices == (
        "cuda:0",
        "cuda:1",
        *(f"cpu:{core}" for core in sorted(os.sched_getaffinity(0))),
    )
    assert machine.memory["cuda:1"] == 24576 * 2**20
    assert machine.memory["cpu"] > 2**20


def test_a_machine_without_accelerators_has_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert all(device.startswith("cpu:") for device in detect_devices().devices)
