"""Measures the passes with real engines on this machine: MiniLM embeddings, a Llama of 28 million parameters.

The LLM runs the model for every token (`scripted_transformer.py`). All engines compute on the same few cores,
one thread each, which limits how much can overlap; the table of busy times shows how much.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common.checkpoint import Shape, build_checkpoint
from benchmarks.common.corpora import questions_about, some_documents
from benchmarks.report import Row, Value, num_cores
from stretto.apps import APPS
from stretto.model.deployment import Deployment
from stretto.model.values import Document
from stretto.runtime.runtime import Runtime
from stretto.trace.recorder import Recorder
from stretto.trace.summary import quantile, summarise

REAL = "end to end, one query, engines of this machine"
BUSY = "busy engines, engines of this machine"
MODES = ("none", "all")


@dataclass(frozen=True, slots=True)
class RealConfig:
    """Sizes of the measurement. `answer_tokens` is the largest length of an answer."""

    rounds: int = 8
    max_chars: int = 48_000
    answer_tokens: int = 40
    shape: Shape = Shape(hidden=512, intermediate=1536, layers=8)


@dataclass(slots=True)
class _Mode:
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    busy_s: dict[str, list[float]] = field(default_factory=dict)
    outputs: list[Mapping[str, object]] = field(default_factory=list)


def real_rows(
    config: RealConfig, data: Path | None, seed: int, say: Callable[[str], None]
) -> tuple[list[Row], list[str]]:
    """Measure rows; returns them, and notes on the measurement."""
    source, documents = some_documents(data, config.max_chars)
    texts = [section.text for document in documents for section in document.sections]
    with tempfile.TemporaryDirectory(prefix="stretto-bench-") as folder:
        say("real engines: building a checkpoint")
        checkpoint = build_checkpoint(Path(folder), texts, shape=config.shape, seed=seed)
        rows, num_chunks = asyncio.run(_run(config, checkpoint, documents, seed, say))
    note = (
        f"real engines: {len(documents)} documents from {source}, cut to {sum(map(len, texts)):,} characters,"
        f" {num_chunks} chunks; the LLM is a random model that writes the words of the stand-in"
    )
    return rows, [note]


def real_engines(checkpoint: Path) -> list[Deployment]:
    """Return the command line's engines, with an LLM whose words are scripted."""
    from benchmarks.common.scripted_transformer import ScriptedTransformer
    from stretto.engines.catalogue import local_engines
    from stretto.engines.llms import llm_engine
    from stretto.engines.transformer.engine_config import TransformerConfig

    config = TransformerConfig(checkpoint)
    llm = llm_engine(None).changed(executable=ScriptedTransformer, config=config)
    return local_engines(llm=llm, kept_texts=0)


async def _run(
    config: RealConfig, checkpoint: Path, documents: Sequence[Document], seed: int, say: Callable[[str], None]
) -> tuple[list[Row], int]:
    rows: list[Row] = []
    num_chunks = 0
    recorder = Recorder()
    async with Runtime(real_engines(checkpoint), observers=[recorder]) as runtime:
        for app in APPS:
            modes = {mode: _Mode() for mode in MODES}
            questions = questions_about(documents, config.rounds + 1, seed)
            for number, question in enumerate(questions):
                say(f"real engines: {app}, round {number} of {config.rounds}")
                for mode in MODES if number % 2 else reversed(MODES):
                    inputs = {"question": question, "files": documents}
                    await _query(runtime, recorder, app, config, inputs, mode, modes[mode])
                    if number == 0:
                        modes[mode] = _Mode()  # the first of each warms up
            num_chunks = _num_chunks(recorder) or num_chunks
            rows += _rows(app, modes)
    return rows, num_chunks


async def _query(
    runtime: Runtime,
    recorder: Recorder,
    app: str,
    config: RealConfig,
    inputs: Mapping[str, object],
    passes: str,
    mode: _Mode,
) -> None:
    """Run one query, alone on the machine, and add its times to `mode`."""
    recorder.spans.clear()
    recorder.queries.clear()
    configuration = {"synthesis": {"max_tokens": config.answer_tokens}}
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    outputs = await runtime.run(APPS[app](), inputs, configuration=configuration, passes=passes)
    mode.wall_s.append(time.perf_counter() - wall_s)
    mode.cpu_s.append(time.process_time() - cpu_s)
    mode.outputs.append(outputs)
    for engine in summarise(recorder).engines:
        mode.busy_s.setdefault(engine.engine, []).append(engine.busy_s)


def _num_chunks(recorder: Recorder) -> int:
    return sum(part.num_items for span in recorder.spans for part in span.parts if part.op == "ingest")


def _rows(app: str, modes: Mapping[str, _Mode]) -> list[Row]:
    none, all_ = modes["none"], modes["all"]
    ratios = [a / b for a, b in zip(none.wall_s, all_.wall_s, strict=True)]
    values: dict[str, Value] = {}
    for name, mode in modes.items():
        values[f"{name}_s"] = statistics.median(mode.wall_s)
        values[f"{name}_p10_p90"] = f"{quantile(mode.wall_s, 0.1):.2f}-{quantile(mode.wall_s, 0.9):.2f}"
    values["speed_up"] = statistics.median(ratios)
    values["speed_up_p10_p90"] = f"{quantile(ratios, 0.1):.2f}-{quantile(ratios, 0.9):.2f}"
    values["speed_up_of_fastest"] = min(none.wall_s) / min(all_.wall_s)
    answers = [(a["answer"], b["answer"]) for a, b in zip(none.outputs, all_.outputs, strict=True)]
    values["equal_answers"] = f"{sum(a == b for a, b in answers)} of {len(answers)}"
    busiest_s = max(statistics.median(times_s) for times_s in none.busy_s.values())
    least_s = max(busiest_s, statistics.median(none.cpu_s) / num_cores())
    values["at_most"] = statistics.median(none.wall_s) / least_s
    note = "at_most: bound by the busiest engine alone, and by all cores being busy all the time"
    rows = [Row(REAL, app, values, note=note)]
    for name, mode in modes.items():
        busy: dict[str, Value] = {
            f"{engine}_s": statistics.median(times_s) for engine, times_s in mode.busy_s.items()
        }
        cores_used = [cpu / wall for cpu, wall in zip(mode.cpu_s, mode.wall_s, strict=True)]
        busy |= {"cpu_s": statistics.median(mode.cpu_s), "cores_used": statistics.median(cores_used)}
        rows.append(Row(BUSY, f"{app}, passes {name}", busy))
    return rows
