"""Measures decode steps of a model with Llama-7B's shape and random weights, in the whole engine."""

from __future__ import annotations

import gc
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.gpu.measure import Place, event
from benchmarks.report import Row, spread
from stretto.engines.transformer import runner, weights
from stretto.engines.transformer.config import ModelConfig
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.engines.transformer.weights import Weights
from stretto.model.errors import InternalError
from stretto.model.tasks import Decode, LLMTask

DECODING = "decode steps of the model"
SHARING = "decode steps of the model, sequences behind a common prefix"
# By batch: ratio of the times per token with vLLM's paged attention and with Parrot's kernel (Parrot §8.3).
PARROT = {32: 1.58, 64: 1.84}
_WARM_STEPS = 6
_OWN_TOKENS = 64


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes that are measured. `config` has the varying values of a checkpoint's config.json."""

    config: Mapping[str, int]
    batches: Sequence[int]
    prompt_tokens: int
    steps: int
    prefix_tokens: int
    sharing_batches: Sequence[int]
    dtype: str = "bfloat16"


LLAMA_7B = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 8192,
}
# For GPUs with less than 48 GiB.
SMALL = {**LLAMA_7B, "hidden_size": 2048, "intermediate_size": 5504, "num_hidden_layers": 16}
SMALL |= {"num_attention_heads": 16, "num_key_value_heads": 16}


def sizes_for(device: torch.device) -> ModelSizes:
    """Choose Llama-7B if it fits with the keys and values of the largest batch, else a smaller model."""
    memory = torch.cuda.get_device_properties(device).total_memory
    return ModelSizes(
        LLAMA_7B if memory >= 45 * 2**30 else SMALL, (1, 8, 16, 32, 64), 512, 40, 6000, (32, 64)
    )


def measure_model(place: Place, sizes: ModelSizes, bytes_per_s: float) -> Iterator[Row]:
    """Measure tokens/s and steps by batch, then a shared prefix that is attended together and one by one."""
    with tempfile.TemporaryDirectory() as name, random_weights():
        llm = _engine(Path(name), sizes, place.device)
        try:
            yield from _decoding(place, llm, sizes, bytes_per_s)
            yield from _sharing(place, llm, sizes)
        finally:
            llm.close()
            del llm
            gc.collect()
            if place.is_gpu:
                torch.cuda.empty_cache()


def write_checkpoint(folder: Path, config: Mapping[str, int]) -> None:
    """Write a checkpoint of words without weights, for `random_weights`."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    raw = {"model_type": "llama", "rms_norm_eps": 1e-5, "hidden_act": "silu", **config}
    (folder / "config.json").write_text(json.dumps(raw))
    words = {f"w{number}": number for number in range(config["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')


def _engine(folder: Path, sizes: ModelSizes, device: torch.device) -> TransformerLLM:
    write_checkpoint(folder, sizes.config)
    most = max(
        max(sizes.batches) * (sizes.prompt_tokens + sizes.steps),
        sizes.prefix_tokens + max(sizes.sharing_batches) * 3 * _OWN_TOKENS,
    )
    # The first sequences decode while others are prefilled, and the last blocks are not full.
    most += 160 * max(*sizes.batches, *sizes.sharing_batches)
    hidden, layers = sizes.config["hidden_size"], sizes.config["num_hidden_layers"]
    kv_bytes = most * 2 * layers * hidden * (4 if sizes.dtype == "float32" else 2)
    return TransformerLLM(
        TransformerConfig(
            folder,
            dtype=sizes.dtype,
            device=str(device),
            num_threads=None,
            max_running=max(*sizes.batches, *sizes.sharing_batches),
            max_batch_tokens=8192,
            kv_bytes=kv_bytes,
        )
    )


@contextmanager
def random_weights() -> Iterator[None]:
    """Context in which the engine uses random weights instead of reading them."""

    def load(folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Weights:
        def get(name: str, *shape: int) -> Tensor:
            if name.endswith("norm.weight"):
                return torch.ones(shape, dtype=dtype, device=device)
            return torch.randn(shape, dtype=dtype, device=device).mul_(0.02)

        return weights.assemble_weights(config, get)

    with patch.object(runner, "load_weights", load):
        yield


def _decoding(place: Place, llm: TransformerLLM, sizes: ModelSizes, bytes_per_s: float) -> Iterator[Row]:
    weight_bytes = _weight_bytes(llm)
    for batch in sizes.batches:
        if not place.has_time(20):
            return
        place.say(f"model, {batch} sequences")
        prompts = _prompts(random.Random(batch), batch, sizes.prompt_tokens, sizes.config["vocab_size"])
        _start(llm, prompts, _WARM_STEPS + sizes.steps + 64)
        steps_ms, gpu_ms = _timed_steps(llm, sizes.steps, place.is_gpu)
        lengths = [len(sequence.tokens) for sequence in llm.scheduler.running]
        _end(llm, batch)
        floor_ms = 1000 * (weight_bytes + _token_bytes(llm) * sum(lengths)) / bytes_per_s
        values = {
            "tokens_per_s": round(1000 * batch / statistics.median(steps_ms), 1),
            **spread(steps_ms, "step_ms"),
            **(spread(gpu_ms, "gpu_ms") if gpu_ms else {}),
            "floor_ms": round(floor_ms, 3),
            "share_of_bandwidth": round(floor_ms / statistics.median(steps_ms), 3),
        }
        yield Row(DECODING, f"{batch} at once", values, note=f"{statistics.mean(lengths):.0f} tokens each")


def _sharing(place: Place, llm: TransformerLLM, sizes: ModelSizes) -> Iterator[Row]:
    """Measure both ways in turn, with the same sequences."""
    vocabulary = sizes.config["vocab_size"]
    for batch in sizes.sharing_batches:
        if not place.has_time(20):
            return
        place.say(f"model, {batch} sequences behind {sizes.prefix_tokens}")
        rng = random.Random(batch)
        (prefix,) = _prompts(rng, 1, sizes.prefix_tokens, vocabulary)
        llm.admit_tokens(LLMTask(-1, "bench", "", (), None), prefix)
        while llm.has_work():
            llm.step()
        prompts = [prefix + own for own in _prompts(rng, batch, _OWN_TOKENS, vocabulary)]
        _start(llm, prompts, 2 * _OWN_TOKENS)
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(2):
            for shares in times:
                llm.runner._shares_attention = shares
                llm.runner._last = None  # otherwise the runner would go on with the last step's inputs
                times[shares] += _timed_steps(llm, 8, place.is_gpu)[0]
        llm.runner._shares_attention = True
        _end(llm, batch)
        ratio = statistics.median(times[False]) / statistics.median(times[True])
        name = f"{batch} behind {sizes.prefix_tokens}"
        yield Row(SHARING, f"{name}, together", spread(times[True], "step_ms"))
        yield Row(
            SHARING, f"{name}, each by itself", {**spread(times[False], "step_ms"), "ratio": round(ratio, 3)}
        )
        if batch in PARROT:
            note = "vLLM's paged attention over Parrot's kernel, on their GPU and outputs"
            yield Row(SHARING, f"{name}, Parrot", {"ratio": PARROT[batch]}, "quoted", note)


def _prompts(rng: random.Random, count: int, length: int, vocabulary: int) -> list[list[int]]:
    return [rng.choices(range(2, vocabulary), k=length) for _ in range(count)]


def _start(llm: TransformerLLM, prompts: Sequence[list[int]], new_tokens: int) -> None:
    """Admit the prompts, and run steps until all of them decode."""
    decode = Decode(max_tokens=new_tokens, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        llm.admit_tokens(LLMTask(number, "bench", "", (), decode), prompt)
    while sum(sequence.is_decoding for sequence in llm.scheduler.running) < len(prompts):
        llm.step()
        if not llm.has_work():
            raise InternalError("sequences ended before all of them decoded")


def _end(llm: TransformerLLM, batch: int) -> None:
    for number in range(batch):
        llm.cancel(number)
    llm.release("bench")


def _timed_steps(llm: TransformerLLM, count: int, with_events: bool) -> tuple[list[float], list[float]]:
    """Times of `count` steps, after a few to warm up: by the clock, and of the model on the device."""
    steps_ms: list[float] = []
    gpu_ms: list[float] = []
    timed = _Timed(llm.runner.forward) if with_events else None
    with patch.object(llm.runner, "forward", timed or llm.runner.forward):
        for number in range(_WARM_STEPS + count):
            start_s = time.perf_counter()
            llm.step()
            if number >= _WARM_STEPS:
                steps_ms.append(1000 * (time.perf_counter() - start_s))
                if timed is not None:
                    gpu_ms.append(timed.last_ms())
    return steps_ms, gpu_ms


class _Timed:
    """A function, with the time of its work on the device."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._start, self._end = event(), event()

    def __call__(self, *args: Any) -> Any:
        self._start.record()
        result = self._function(*args)
        self._end.record()
        return result

    def last_ms(self) -> float:
        """Milliseconds of the last call, after its end."""
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end))


def _weight_bytes(llm: TransformerLLM) -> int:
    """Bytes of the weights that a step reads: all except the embedding."""
    config = llm.runner.config
    heads = (2 * config.heads + 2 * config.kv_heads) * config.head_dim
    layer = heads * config.hidden + 3 * config.hidden * config.intermediate
    return (config.layers * layer + config.vocabulary * config.hidden) * llm.runner.kv.dtype.itemsize


def _token_bytes(llm: TransformerLLM) -> int:
    config = llm.runner.config
    return 2 * config.layers * config.kv_heads * config.head_dim * llm.runner.kv.dtype.itemsize
