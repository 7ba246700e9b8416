"""Agents whose contexts outgrow the KV memory of a real engine: what the order and the room bring there.

    python -m benchmarks.gpu.agents --data DIR [--json FILE]

DIR has the recorded sessions of a coding agent (`sessions.jsonl.gz`). A closed loop of sessions runs on the
in-process engine in real time, with random weights: once as requests arrive, and once with what is the
default, by turns. Texts are words, so that a block of a prompt has as many tokens as in virtual time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch

from benchmarks.gpu.__main__ import ResultsFile
from benchmarks.gpu.measure import hardware
from benchmarks.gpu.model import LLAMA_7B, random_weights, write_checkpoint
from benchmarks.programs.room.load import Load
from benchmarks.programs.room.real_time import run_on_runtime
from benchmarks.programs.room.sessions import Session, recorded_sessions
from benchmarks.report import Row
from stretto.engines.executables import PROFILES
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.model.deployment import Deployment, deploy

TABLE = "agents beyond KV memory, closed loop on a real engine"
ROOMY = "in order of arrival, three times the memory"
ARMS: Mapping[str, dict[str, Any]] = {
    "in order of arrival": {"policy": "per_invocation", "holds_programs": False},
    "default": {},
    ROOMY: {"policy": "per_invocation", "holds_programs": False},
}
_BLOCK_CHARS = 16
LONG = {**LLAMA_7B, "max_position_embeddings": 16_384}
TINY = {**LONG, "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128}
TINY |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}


def words(text: str) -> str:
    """Return four words for each block of a prompt."""
    blocks = (text[start : start + _BLOCK_CHARS] for start in range(0, len(text), _BLOCK_CHARS))
    return " ".join(_block_words(block) for block in blocks)


def _block_words(block: str) -> str:
    draw = Random(block)
    return " ".join(f"w{draw.randrange(2, 512)}" for _ in range(4))


def deployment(folder: Path, kv_tokens: int, device: str, dtype: str, arm: str) -> Deployment:
    """Return the declaration of the engine, with a chosen size of its KV memory."""
    raw = json.loads((folder / "config.json").read_text())
    size = 4 if dtype == "float32" else 2
    kv_tokens *= 3 if arm == ROOMY else 1
    config = TransformerConfig(
        folder,
        dtype=dtype,
        device=device,
        num_threads=1 if device == "cpu" else None,
        max_running=16,
        max_batch_tokens=2048,
        kv_bytes=kv_tokens * 2 * raw["num_hidden_layers"] * raw["hidden_size"] * size,
        keeps_released=True,
    )
    return deploy(
        "llm",
        TransformerLLM,
        config,
        contract="llm",
        runs_in="thread",
        max_running=16,
        max_batch=kv_tokens,
        kv_tokens=kv_tokens,
        profile=PROFILES["llm"],
        **ARMS[arm],
    )


def measure(given: argparse.Namespace, sessions: Sequence[Session], results: ResultsFile) -> None:
    """Run each number of sessions in each arm, and write a row after each run."""
    with tempfile.TemporaryDirectory() as name, random_weights():
        folder = Path(name)
        write_checkpoint(folder, TINY if given.tiny else LONG)
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            for number in given.sessions:
                for arm in ARMS:
                    load = Load(num_clients=number, warm_s=given.warm_s, end_s=given.warm_s + given.run_s)
                    start_s = time.monotonic()
                    one = deployment(folder, given.kv_tokens, given.device, given.dtype, arm)
                    measured = asyncio.run(run_on_runtime([one], load, sessions, seed, words))
                    values = {key: round(value, 3) for key, value in measured.row().items()}
                    values["whole_s"] = round(time.monotonic() - start_s, 1)
                    results.run(TABLE, iter([Row(TABLE, f"{number} sessions, seed {seed}, {arm}", values)]))
                    gc.collect()
                    if torch.cuda.is_available():
                        torch.cuda.empty_cache()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.agents")
    parser.add_argument("--data", type=Path, required=True, help="folder with sessions.jsonl.gz")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sessions", type=int, nargs="+", default=[16, 32, 48])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=10)
    parser.add_argument("--kv-tokens", type=int, default=98_304)
    parser.add_argument("--warm-s", type=float, default=15.0)
    parser.add_argument("--run-s", type=float, default=45.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try the command")
    given = parser.parse_args()
    results = ResultsFile(given.json, {key: str(value) for key, value in vars(given).items()})
    if torch.cuda.is_available():
        results.run("hardware", iter([Row("hardware", "gpu", hardware(torch.device("cuda", 0)))]))
    measure(given, recorded_sessions(given.data)[1::2], results)
    results.end()


if __name__ == "__main__":
    main()
