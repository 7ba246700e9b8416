"""Tells whether an LLM is small, from the size of its weights on this machine."""

from __future__ import annotations

from collections.abc import Sequence
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


def are_small_llms(wheres: Sequence[str]) -> bool:
    """Return whether every LLM of the option `--llm` is small. Without any, it is the default one."""
    return all(map(is_small_llm, wheres or (DEFAULT_LLM,)))
