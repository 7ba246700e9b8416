"""The training loop: AdamW with warm-up, plateau and decay. A stopped run resumes from its last
checkpoint."""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from tokenizers import Tokenizer
from torch import Tensor

from stretto.model.errors import ConfigError
from tools.training.batches import Batch, block_of_batches
from tools.training.corpus import Corpus
from tools.training.examples import MAX_CHUNK_WORDS, ExampleMaker
from tools.training.network import Network, NetworkConfig
from tools.training.tokenizer import PromptEncoder
from tools.training.wiring import rarities, token_vectors, wire, wired_parameters

STATE = "state.pt"
LOG = "log.jsonl"


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """Settings of a run of `blocks` blocks of examples. The seed decides the examples, even if a run is
    resumed.

    Attributes:
        peak_rate: learning rate between warm-up and decay, which takes the last `decay_share`.
        short_words, long_words: longest texts, in words, up to `long_from` of the run and from `long_by` on.
        held_share: share of the run in which the wired parameters are held fixed and all others are trained.
        wired_rate: factor on the learning rate of the wired parameters afterwards.
        save_every_s: seconds between checkpoints.
        bfloat16: whether to compute in bfloat16 (weights stay float32).
    """

    blocks: int = 1000
    seed: int = 0
    block_examples: int = 128
    batch_tokens: int = 2048
    peak_rate: float = 1.2e-3
    final_rate: float = 3e-5
    warmup_blocks: int = 8
    decay_share: float = 0.3
    weight_decay: float = 0.02
    short_words: int = 80
    long_words: int = 3 * MAX_CHUNK_WORDS
    long_from: float = 0.3
    long_by: float = 0.8
    save_every_s: float = 120.0
    bfloat16: bool = True
    compiles: bool = False
    held_share: float = 0.3
    wired_rate: float = 0.3


class Training:
    """A network, its optimizer, and the progress of the training. `step_block` changes them."""

    def __init__(
        self, corpus: Corpus, tokenizer: Tokenizer, sizes: NetworkConfig, config: TrainingConfig
    ) -> None:
        self.config = config
        self._maker = ExampleMaker(corpus)
        self._encoder = PromptEncoder(tokenizer)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        generator = torch.Generator().manual_seed(config.seed)
        network = Network(sizes)
        vectors = token_vectors(
            tokenizer, rarities(_counts(corpus, tokenizer), sizes.vocabulary), sizes.hidden, generator
        )
        wire(network, vectors, generator)
        self.network = network.to(self.device)
        self._forward: Callable[[Tensor, Tensor], Tensor] = (
            torch.compile(self.network, dynamic=True) if config.compiles else self.network
        )
        self._optimizer = torch.optim.AdamW(_groups(self.network, config), betas=(0.9, 0.98), fused=True)
        shares_work = torch.distributed.is_initialized()
        self._rank = torch.distributed.get_rank() if shares_work else 0
        self._workers = torch.distributed.get_world_size() if shares_work else 1
        self.block = 0
        self.tokens = 0
        self.seconds = 0.0

    def step_block(self) -> dict[str, float]:
        """Train on one block; returns the mean loss on answers, the learning rate, and the progress."""
        start = time.perf_counter()
        config = self.config
        batches = list(
            block_of_batches(
                self._maker,
                self._encoder,
                Random(f"{config.seed}/{self.block}"),
                num_examples=config.block_examples,
                batch_tokens=config.batch_tokens,
                max_words=longest_text(self.block, config),
            )
        )
        # Workers share a block: each takes as many batches as the others, and a last odd one is left out.
        num_shared = max(1, len(batches) // self._workers) * self._workers
        rate = learning_rate(self.block, config)
        for group in self._optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        self._hold(self.block < config.held_share * config.blocks)
        answer_loss, num_answers = 0.0, 0
        for batch in (batches * self._workers)[self._rank : num_shared : self._workers]:
            loss, count = self._step(batch)
            answer_loss, num_answers = answer_loss + loss, num_answers + count
        self.tokens += sum(batch.num_tokens for batch in batches[:num_shared])
        self.block += 1
        self.seconds += time.perf_counter() - start
        return {
            "block": self.block,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "loss": round(answer_loss / num_answers, 4),
            "rate": rate,
        }

    def _step(self, batch: Batch) -> tuple[float, int]:
        """Make one update; returns the summed loss on answers, and their number of tokens."""
        tokens, chosen, targets, weights = (
            tensor.to(self.device) for tensor in (batch.tokens, batch.chosen, batch.targets, batch.weights)
        )
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.bfloat16):
            logits = self._forward(tokens, chosen)
        losses = F.cross_entropy(logits.float(), targets, reduction="none")
        ((losses * weights).sum() / weights.sum()).backward()  # type: ignore[no-untyped-call]
        if self._workers > 1:
            _average_gradients(self.network, self._workers)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        is_answer = weights >= 1.0
        return float(losses.detach()[is_answer].sum()), int(is_answer.sum())

    def _hold(self, held: bool) -> None:
        """Hold the wired parameters fixed, or train them."""
        for parameter in wired_parameters(self.network):
            parameter.requires_grad_(not held)

    def save(self, folder: Path) -> None:
        """Write the state; after a crash while writing, the old one is still there."""
        state = {
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "sizes": asdict(self.network.config),
            "block": self.block,
            "tokens": self.tokens,
            "seconds": self.seconds,
        }
        torch.save(state, folder / f"{STATE}.new")
        os.replace(folder / f"{STATE}.new", folder / STATE)

    def resume(self, folder: Path) -> None:
        """Restore the state that `save` wrote, if there is one."""
        if not (folder / STATE).is_file():
            return
        state = load_state(folder)
        if state["sizes"] != asdict(self.network.config):
            raise ConfigError(f"{folder / STATE} is of a network of other sizes: {state['sizes']}")
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.block, self.tokens, self.seconds = state["block"], state["tokens"], state["seconds"]


def train(training: Training, folder: Path, report: Callable[[str], None]) -> None:
    """Train to the end, with checkpoints and a log in `folder`."""
    training.resume(folder)
    saved_s = time.monotonic()
    writes = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    with (folder / LOG).open("a", encoding="utf-8") as log:
        while training.block < training.config.blocks:
            line = json.dumps(training.step_block())
            if writes:
                log.write(line + "\n")
                log.flush()
                report(line)
            if writes and time.monotonic() - saved_s >= training.config.save_every_s:
                training.save(folder)
                saved_s = time.monotonic()
    if writes:
        training.save(folder)


def _average_gradients(network: Network, workers: int) -> None:
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    sizes = [gradient.numel() for gradient in gradients]
    torch.distributed.all_reduce(flat)
    flat /= workers
    for gradient, part in zip(gradients, torch.split(flat, sizes), strict=True):
        gradient.copy_(part.view_as(gradient))


def load_state(folder: Path) -> dict[str, Any]:
    """Read the state that `Training.save` wrote, on the CPU."""
    state: dict[str, Any] = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    return state


def learning_rate(block: int, config: TrainingConfig) -> float:
    """Learning rate of a block: linear warm-up, plateau, and half a cosine down to the final rate."""
    if block < config.warmup_blocks:
        return config.peak_rate * (block + 1) / config.warmup_blocks
    decay_from = (1 - config.decay_share) * config.blocks
    if block < decay_from:
        return config.peak_rate
    done = (block - decay_from) / max(1.0, config.blocks - decay_from)
    return (
        config.final_rate
        + (config.peak_rate - config.final_rate) * (1 + math.cos(math.pi * min(1.0, done))) / 2
    )


def longest_text(block: int, config: TrainingConfig) -> int:
    """Longest text of the examples in a block, in words."""
    grown = (block / config.blocks - config.long_from) / (config.long_by - config.long_from)
    return round(config.short_words + (config.long_words - config.short_words) * min(1.0, max(0.0, grown)))


def _groups(network: Network, config: TrainingConfig) -> list[dict[str, Any]]:
    wired = wired_parameters(network)
    known = {id(parameter) for parameter in wired}
    free = [parameter for parameter in network.parameters() if id(parameter) not in known]
    matrices, vectors = [p for p in free if p.ndim == 2], [p for p in free if p.ndim != 2]
    return [
        {"params": matrices, "weight_decay": config.weight_decay, "factor": 1.0},
        {"params": vectors, "weight_decay": 0.0, "factor": 1.0},
        {"params": wired, "weight_decay": 0.0, "factor": config.wired_rate},
    ]


def _counts(corpus: Corpus, tokenizer: Tokenizer) -> Mapping[int, int]:
    """Number of sentences that contain each token, in a sample."""
    rng = Random(0)
    sentences = [s for p in corpus.passages for s in p.sentences]
    sample = sentences if len(sentences) <= 60_000 else rng.sample(sentences, 60_000)
    counts: Counter[int] = Counter()
    for encoding in tokenizer.encode_batch(sample, add_special_tokens=False):
        counts.update(set(encoding.ids))
    return counts
