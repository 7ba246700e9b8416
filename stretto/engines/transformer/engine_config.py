"""The configuration of the in-process LLM engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stretto.engines.transformer.config import read_config
from stretto.model.extras import imports_of


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """The configuration of a `TransformerLLM`: its checkpoint, its device, and the limits of its steps.

    Attributes:
        path: folder of a checkpoint in Hugging Face layout, or a GGUF file; of the Llama, Mistral, Qwen2 or
            Qwen3 kind.
        device: `cpu`, `cuda`, `cuda:1` and the like, or `auto`: a GPU if there is one.
        num_threads: threads of torch in the whole process; None leaves torch's choice.
        kv_bytes: memory for keys and values; taken as it is used, on the CPU.
        block_tokens: tokens of a KV block.
        max_batch_tokens: tokens computed in one step.
        policy: what a step computes: `chunked` decodes every sequence and fills the rest with chunks of
            prompts; `prefill_first` takes whole prompts as long as there are any.
        shares_attention: whether decodes attend to a shared prefix together.
        keeps_released: whether prefixes that only an ended query used stay in the cache until
            their memory is needed; None keeps them if the engine's placement policy follows prefixes.
        with_kv_events: whether to record what the prefix cache stores and evicts, for `take_kv_events`.
        level_s: width of a level, in the unit of ranks (seconds, or e-folds of work where programs go first):
            waiting tasks whose ranks differ by less may start in the order of how much of their prompt is
            cached.
        clock: function that returns the time in seconds; tasks without a rank are ordered by arrival.
    """

    path: str | Path
    dtype: str = "float32"
    device: str = "cpu"
    num_threads: int | None = 1
    max_running: int = 16
    max_batch_tokens: int = 512
    kv_bytes: int = 512 * 2**20
    block_tokens: int = 32
    policy: str = "chunked"
    level_s: float = 1.0
    shares_attention: bool = True
    keeps_released: bool | None = None
    with_kv_events: bool = False
    clock: Callable[[], float] = time.monotonic

    @property
    def output_key(self) -> tuple[str, str, str]:
        """Key that is equal for engines with equal answers, up to rounding: the checkpoint and the dtype.

        A task that was interrupted may go on at an instance with an equal key.
        """
        return "checkpoint", str(Path(self.path).resolve()), self.dtype

    def device_bytes(self, kind: str, total: int) -> int:
        """Return the bytes that an instance takes of a device's memory: of main memory if `kind` is "cpu".

        `kind` is "cuda" or "cpu"; `total`, the bytes that the device has, makes no difference.

        Raises:
            ConfigError: the checkpoint or the dtype cannot be used.
        """
        with imports_of("local", f"the checkpoint {self.path}"):
            from stretto.engines.transformer.memory import instance_bytes
            from stretto.engines.transformer.runner import dtype_of
        model = read_config(Path(self.path))
        return instance_bytes(
            model, kind, dtype_of(self.dtype), self.kv_bytes, self.max_batch_tokens, self.max_running
        )
