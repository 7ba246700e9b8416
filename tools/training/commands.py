"""Trains, measures and exports the small model that ships with the project."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch.multiprocessing.spawn import spawn

from stretto.model.errors import ConfigError, StrettoError
from tools.training.corpus import Corpus, load_corpus, read_corpus, save_corpus
from tools.training.evaluate import HELD_OUT, evaluate
from tools.training.export import export
from tools.training.network import Network, NetworkConfig
from tools.training.tokenizer import save_tokenizer, train_tokenizer
from tools.training.train import Training, TrainingConfig, load_state, train

_CORPUS = "corpus.json"
_TOKENIZER = "tokenizer.json"
_RUN, _SIZES = TrainingConfig(), NetworkConfig()


def main(arguments: list[str] | None = None) -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m tools.training", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("tokenizer", help="read the texts, and train a tokenizer on them")
    command.add_argument("--data", type=Path, required=True, help="known data sets, or any documents")
    command.add_argument("--work", type=Path, required=True, help="folder for intermediate files")
    command.add_argument("--vocabulary", type=int, default=_SIZES.vocabulary)
    command = commands.add_parser("train", help="train, or resume a stopped training")
    command.add_argument("--work", type=Path, required=True)
    command.add_argument("--workers", type=int, default=1, help="processes that share the work")
    command.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="threads of each process"
    )
    command.add_argument("--layers", type=int, default=_SIZES.layers)
    for name in (
        "blocks",
        "warmup-blocks",
        "block-examples",
        "batch-tokens",
        "short-words",
        "long-words",
        "seed",
    ):
        default = getattr(_RUN, name.replace("-", "_"))
        command.add_argument(f"--{name}", type=int, default=default)
    for name in ("peak-rate", "decay-share", "long-from", "long-by", "held-share", "wired-rate"):
        command.add_argument(f"--{name}", type=float, default=getattr(_RUN, name.replace("-", "_")))
    command = commands.add_parser("export", help="write the checkpoint")
    command.add_argument("--work", type=Path, required=True)
    command.add_argument("--model", type=Path, required=True, help="folder to write the checkpoint to")
    command.add_argument("--dtype", default="bfloat16")
    command = commands.add_parser("evaluate", help="measure a checkpoint on held-out questions")
    command.add_argument("--model", type=Path, required=True)
    command.add_argument("--data", type=Path, required=True, help=f"folder with {HELD_OUT}")
    command.add_argument("--questions", type=int, default=100_000, help="largest number of questions")
    options = parser.parse_args(arguments)
    try:
        {"tokenizer": _tokenizer, "train": _train, "export": _export, "evaluate": _evaluate}[options.command](
            options
        )
    except StrettoError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    return 0


def _tokenizer(options: argparse.Namespace) -> None:
    options.work.mkdir(parents=True, exist_ok=True)
    corpus = read_corpus(options.data)
    save_corpus(corpus, options.work / _CORPUS)
    save_tokenizer(train_tokenizer(_texts(corpus), options.vocabulary), options.work)


def _texts(corpus: Corpus) -> list[str]:
    """Texts for the training of the tokenizer: a quarter of the novels, and all others."""
    rng = Random(0)
    texts = [s for p in corpus.passages for s in p.sentences if p.source != "books" or rng.random() < 0.25]
    modern = [s for p in corpus.passages for s in p.sentences if p.source in ("tatqa", "hotpotqa")]
    return [*texts, *modern, *corpus.loose_questions]


def _read_tokenizer(work: Path) -> Tokenizer:
    if not (work / _TOKENIZER).is_file():
        raise ConfigError(f"no {_TOKENIZER} in {work}: run the command tokenizer first")
    return Tokenizer.from_file(str(work / _TOKENIZER))


def _train(options: argparse.Namespace) -> None:
    chosen = {f.name: getattr(options, f.name) for f in fields(TrainingConfig) if hasattr(options, f.name)}
    config = TrainingConfig(**chosen)
    if options.workers == 1:
        _worker(0, options, config, None)
        return
    with tempfile.NamedTemporaryFile(prefix="stretto-training-") as meeting:
        url = f"file://{meeting.name}.meet"
        spawn(_worker, (options, config, url), nprocs=options.workers)  # type: ignore[no-untyped-call]


def _worker(rank: int, options: argparse.Namespace, config: TrainingConfig, url: str | None) -> None:
    torch.set_num_threads(options.threads)
    if url is not None:
        torch.distributed.init_process_group("gloo", url, rank=rank, world_size=options.workers)
    tokenizer = _read_tokenizer(options.work)
    sizes = replace(_SIZES, vocabulary=tokenizer.get_vocab_size(), layers=options.layers)
    training = Training(load_corpus(options.work / _CORPUS), tokenizer, sizes, config)
    train(training, options.work, lambda line: print(line, flush=True))
    if url is not None:
        torch.distributed.destroy_process_group()


def _evaluate(options: argparse.Namespace) -> None:
    evaluate(options.model, options.data, options.questions, lambda line: print(line, flush=True))


def _export(options: argparse.Namespace) -> None:
    state = load_state(options.work)
    network = Network(NetworkConfig(**state["sizes"]))
    network.load_state_dict(state["network"])
    export(network, _read_tokenizer(options.work), options.model, options.dtype)
