"""The chain summaries that SamuLLM's authors ran and measured on A100-80G, as requests of an application.

Chunks of documents are known by their median and their largest number only. Their logarithms are taken to be
normal; the width of this distribution, the *skew*, is to be fitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stretto.costs.output_lengths import LengthsBySource, OutputLengths
from stretto.costs.steps_file import read_rows
from stretto.model.errors import ConfigError, DocumentError
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.machine import PlanMachine, machine_of

RUNS = Path("samullm", "e2e_measured_chain_summary.csv")
SUMMARY = "summary"
_COLUMNS = ("gpus", "summarizer", "evaluator", "n_eval", "max_out", "n_docs", "method", "pred_s", "real_s")
_MACHINES: Mapping[int, str] = {4: "4xA100-80G", 8: "8xA100-80G"}
_MEDIAN_CHUNKS = 3
_MOST_CHUNKS: Mapping[int, int] = {100: 60, 300: 201}
"""Largest number of chunks of a document, by number of documents (section 5.3)."""
_CHUNK_TOKENS = 2048
_TEMPLATE_TOKENS = 100
_EVALUATION_TOKENS = 300


@dataclass(frozen=True, slots=True)
class Setting:
    """What was run: documents that one model summarises chunk by chunk, and another one judges."""

    num_devices: int
    summariser: str
    evaluator: str
    num_documents: int
    num_evaluations: int
    max_tokens: int

    @property
    def group(self) -> str:
        """Words for all settings that differ in the number of evaluations alone."""
        return f"{self.summariser}, {self.num_documents} documents, {self.num_devices} GPUs"

    @property
    def machine(self) -> PlanMachine:
        """The machine on which it was run."""
        return machine_of(_MACHINES[self.num_devices])


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One measured run.

    Attributes:
        is_max: whether its plan was that of Max: all GPUs to one model after the other.
        authors_s: seconds that the authors had predicted.
        real_s: seconds that it took, loading included.
    """

    setting: Setting
    is_max: bool
    authors_s: float
    real_s: float


def load_runs(data: Path) -> list[RecordedRun]:
    """Read all measured runs, in the order of the file.

    Raises:
        ConfigError: the file is not there.
        DocumentError: a row is wrong; the message names the file, the row and the reason.
    """
    path = data / RUNS
    if not path.exists():
        raise ConfigError(f"bench predictions needs --data DIR, a folder with {RUNS}")
    runs = []
    for line, row in read_rows(path, _COLUMNS):
        try:
            setting = Setting(
                int(row["gpus"]),
                row["summarizer"],
                row["evaluator"],
                int(row["n_docs"]),
                int(row["n_eval"]),
                int(row["max_out"]),
            )
            if setting.num_devices not in _MACHINES or setting.num_documents not in _MOST_CHUNKS:
                raise ValueError(f"{setting.num_devices} GPUs and {setting.num_documents} documents")
            runs.append(
                RecordedRun(setting, row["method"] == "naive", float(row["pred_s"]), float(row["real_s"]))
            )
        except ValueError as error:
            raise DocumentError(f"{path}, row {line}: {error}") from error
    return runs


def chain_summary(setting: Setting, skew: float) -> tuple[Application, list[AppRequest]]:
    """Return the application of a setting, and documents whose numbers of chunks have this skew."""
    num, most = setting.num_documents, _MOST_CHUNKS[setting.num_documents]
    random = np.random.default_rng([num, 3])
    chunks = np.clip(np.round(_MEDIAN_CHUNKS * np.exp(random.normal(0, skew, num))), 1, most).astype(int)
    chunks[0] = most
    requests = [AppRequest(str(at), 0, (_CHUNK_TOKENS,) * int(count)) for at, count in enumerate(chunks)]
    summary = ModelNode(
        SUMMARY, setting.summariser, setting.max_tokens, _TEMPLATE_TOKENS, chain=True, template=SUMMARY
    )
    judge = ModelNode(
        "evaluator",
        setting.evaluator,
        setting.max_tokens,
        _EVALUATION_TOKENS,
        (SUMMARY,),
        setting.num_evaluations,
    )
    return Application("chain summary", [summary, judge]), requests


def summary_lengths(chats: LengthsBySource, setting: Setting, factor: float) -> LengthsBySource:
    """Return distributions of lengths in which summaries are `factor` times as long as answers of chats."""
    known = {(model, ""): chats.of(model) for model in (setting.summariser, setting.evaluator)}
    before = chats.of(setting.summariser)
    weights: dict[int, float] = {}
    for length, weight in zip(before.lengths, before.weights, strict=True):
        scaled = max(1, round(length * factor))
        weights[scaled] = weights.get(scaled, 0.0) + weight
    known[setting.summariser, SUMMARY] = OutputLengths(tuple(weights), tuple(weights.values()))
    return LengthsBySource(known)
