"""Tells whether an LLM is small, from the size of its weights on this machine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from stretto.engines.llms import DEFAULT_LLM

_MOST_BYTES = 1_000_000_000
_WEIGHTS = (".safetensors", ".gguf", ".bin")


def is_small_llm(where: str) -> bool:
    """Return whether `where` is the default LLM, or a file or a folder with weights of less than 1 GB.

    A server at a URL may be of any size, so it is not small.
    """
    if where == DEFAULT_LLM:
        return True
    path = Path(where)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    sizes = [file.stat().st_size for file in files if file.suffix in _WEIGHTS and file.is_file()]
    return bool(sizes) and sum(sizes) < _MOST_BYTES


def has_small_llm(described: Collection[str], llms: Sequence[str]) -> bool:
    """Return whether the LLM has so few parameters that ready-made apps need other settings for it.

    An engine "llm" of an engines file may be of any size, so it is not small.

    Args:
        described: names of the engines of the file.
        llms: what the option `--llm` names; with none, it is the default model.
    """
    return "llm" not in described and all(map(is_small_llm, llms or (DEFAULT_LLM,)))
