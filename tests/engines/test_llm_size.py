"""Whether an LLM is small, by the size of its weights."""

from __future__ import annotations

from pathlib import Path

from stretto.engines.llm_size import has_small_llm, is_small_llm
from stretto.engines.llms import DEFAULT_LLM


def weights(path: Path, num_bytes: int) -> Path:
    """A sparse file of that size."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.truncate(num_bytes)
    return path


def test_a_folder_counts_all_its_weights(tmp_path: Path) -> None:
    small = weights(tmp_path / "small" / "model.safetensors", 300_000_000).parent
    (small / "config.json").write_text("{}")
    assert is_small_llm(str(small))
    for part in range(4):
        weights(tmp_path / "large" / f"model-{part}.safetensors", 300_000_000)
    assert not is_small_llm(str(tmp_path / "large"))


def test_a_single_file_is_an_llm_too(tmp_path: Path) -> None:
    assert is_small_llm(str(weights(tmp_path / "small.gguf", 98_000_000)))
    assert not is_small_llm(str(weights(tmp_path / "large.gguf", 4_000_000_000)))


def test_servers_and_what_is_not_there_are_not_small(tmp_path: Path) -> None:
    for where in ("http://127.0.0.1:8000", "stand-in", str(tmp_path / "nothing"), str(tmp_path)):
        assert not is_small_llm(where)


def test_all_llms_must_be_small(tmp_path: Path) -> None:
    small = str(weights(tmp_path / "small.gguf", 98_000_000))
    assert has_small_llm((), (small, small))
    assert not has_small_llm((), (small, "http://127.0.0.1:8000"))


def test_the_default_llm_is_small() -> None:
    assert is_small_llm(DEFAULT_LLM)
    assert has_small_llm((), ())


def test_a_file_without_an_llm_leaves_the_default_one_small() -> None:
    assert has_small_llm(["transforms"], ())
    assert not has_small_llm(["transforms", "llm"], ())
    assert not has_small_llm(["transforms"], ("http://127.0.0.1:8000",))
