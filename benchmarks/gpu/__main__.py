"""Is the in-process LLM engine right and fast on this machine's GPU? One command, under nine minutes:

    python -m benchmarks.gpu [--json FILE] [--seconds 520] [--interpret]

The command needs no network and no data: weights are random. FILE is written after every result, so that a
run that is stopped keeps its results. Without a GPU nothing is measured; `--interpret` then checks the
kernels on small shapes in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import (
    Goal,
    Report,
    Row,
    commit,
    machine,
    print_report,
    spread,
    versions,
    write_json,
)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument(
        "--seconds", type=float, default=520, help="time after which no measurement is started, in seconds"
    )
    parser.add_argument(
        "--interpret", action="store_true", help="without a GPU, check the kernels on the CPU"
    )
    options = parser.parse_args()
    stop_s = time.monotonic() + options.seconds
    import torch

    has_gpu = torch.cuda.is_available()
    results = ResultsFile(options.json, {"seconds": options.seconds, "device": "cuda" if has_gpu else "cpu"})
    if not has_gpu:
        results.note("not run: no CUDA device")
        if options.interpret:
            os.environ["TRITON_INTERPRET"] = "1"
            results.note("the kernels were checked in Triton's interpreter, on the CPU; nothing was timed")
            results.run("kernels", _interpreted(stop_s))
    else:
        _run_all(results, stop_s)
    results.end()


class ResultsFile:
    """Collects rows, and writes them to the file after each one."""

    def __init__(self, path: Path | None, config: dict[str, object]) -> None:
        self._path, self._config = path, config
        self._rows: list[Row] = []
        self._notes: list[str] = []
        self._has_failed = False
        self._about = (commit(), machine(), versions())

    def note(self, text: str) -> None:
        """Add a note to the report."""
        print(text, flush=True)
        self._notes.append(text)
        self._write()

    def run(self, name: str, section: Iterator[Row]) -> None:
        """Add all rows of a section; if it fails, keep the rows before."""
        try:
            for row in section:
                print(f"{row.table}: {row.name}: {dict(row.values)} {row.note}", flush=True)
                self._rows.append(row)
                self._write()
        except Exception as error:  # the other sections are worth having
            traceback.print_exc()
            self._has_failed = True
            self.note(f"{name} failed: {type(error).__name__}: {error}"[:500])

    def end(self) -> None:
        """Print the report, and exit: with 1 if something failed or was wrong."""
        from rich.console import Console

        report = self._report()
        print_report(report, Console(width=160))
        is_wrong = any(row.values.get("right") is False or row.values.get("wrong") for row in self._rows)
        sys.exit(1 if self._has_failed or is_wrong else 0)

    def _report(self) -> Report:
        reached: tuple[Goal, ...] = ()
        if self._rows:
            from benchmarks.gpu.goals import goals

            reached = goals(self._rows)
        return Report("gpu", 0, self._config, tuple(self._rows), reached, tuple(self._notes), *self._about)

    def _write(self) -> None:
        if self._path is not None:
            write_json(self._report(), self._path)


def _interpreted(stop_s: float) -> Iterator[Row]:
    import torch

    from benchmarks.gpu.checks import SMALL_CASES, check_kernels
    from benchmarks.gpu.measure import Place

    place = Place(torch.device("cpu"), stop_s, print)
    yield from check_kernels(place, SMALL_CASES, (torch.float32, torch.float16))


def _run_all(results: ResultsFile, stop_s: float) -> None:
    import torch

    from benchmarks.gpu import attention, checks, command_line, model
    from benchmarks.gpu.measure import Place, copy_bytes_per_s, hardware

    device = torch.device("cuda", torch.cuda.current_device())
    place = Place(device, stop_s, lambda text: print(text, flush=True))
    bandwidth: list[float] = []

    def about() -> Iterator[Row]:
        yield Row("hardware", "gpu", hardware(device))
        free, _ = torch.cuda.mem_get_info(device)
        bandwidth.extend(copy_bytes_per_s(device, min(2**32, free // 4)))
        speeds = spread([speed / 1e9 for speed in bandwidth], "gb_per_s")
        yield Row("hardware", "copy, read and written", speeds)

    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    results.run("hardware", about())
    results.run("kernels", checks.check_kernels(place, checks.CASES, dtypes[:2]))
    results.run("kernels", checks.check_kernels(place, checks.CASES[:2], dtypes[2:]))
    results.run("chunks", checks.check_chunks(place, dtypes))
    results.run("attention", attention.measure_attention(place, attention.SIZES))
    torch.cuda.empty_cache()
    if bandwidth:
        sizes = model.sizes_for(device)
        results.run("model", model.measure_model(place, sizes, statistics.median(bandwidth)))
    torch.cuda.empty_cache()
    results.run("command line", command_line.check_answers("cuda", place.stop_s))
    results.run("families", checks.check_families(place, checks.ALL_FAMILIES, 20, 600, 12))
    results.run("cuts", attention.measure_cuts(place, attention.SIZES, 32, 6016))
    if not place.has_time():
        results.note("time was up: what is missing was left out")


if __name__ == "__main__":
    main()
