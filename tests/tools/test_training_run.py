"""The whole way at toy size: tokenizer, training, resuming, export, and the checkpoint in our engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.llm_running import value
from tokenizers import Tokenizer

from stretto.apps.components.prompt_segments import load_prompt, parse_prompt, prompt_names
from stretto.engines.prompt_tokens import PromptTokenizer
from stretto.engines.transformer.engine import TransformerConfig, TransformerLLM
from stretto.graph.graph import Constant
from stretto.model.errors import ConfigError
from stretto.model.tasks import Decode
from stretto.model.values import Segment
from tools.training.commands import main
from tools.training.corpus import load_corpus
from tools.training.network import NetworkConfig
from tools.training.tokenizer import MARKERS, PromptEncoder
from tools.training.train import Training, TrainingConfig, learning_rate, longest_text, train

DOCUMENTS = Path(__file__).parents[2] / "examples" / "documents"
TOY = TrainingConfig(
    blocks=4, block_examples=4, batch_tokens=512, short_words=20, long_words=20, bfloat16=False
)
TEXT = 'The captain\'s well-known "house" (of 1883).\n\nA second\nparagraph; déjà vu 🎼: {"a": [1]}'


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the corpus of one document, and a tokenizer of it."""
    documents, work = tmp_path_factory.mktemp("documents"), tmp_path_factory.mktemp("work")
    name = "treasure-island-opening.txt"
    (documents / name).write_bytes((DOCUMENTS / name).read_bytes())
    arguments = ["tokenizer", "--data", str(documents), "--work", str(work), "--vocabulary", "700"]
    assert main(arguments) == 0
    return work


@pytest.fixture
def sizes(work: Path) -> NetworkConfig:
    return NetworkConfig(vocabulary=_tokenizer(work).get_vocab_size())


def _tokenizer(work: Path) -> Tokenizer:
    return Tokenizer.from_file(str(work / "tokenizer.json"))


def _training(work: Path, sizes: NetworkConfig, config: TrainingConfig = TOY) -> Training:
    torch.set_num_threads(1)
    return Training(load_corpus(work / "corpus.json"), _tokenizer(work), sizes, config)


def test_one_command_trains_and_the_checkpoint_runs_in_the_engine(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("corpus.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((work / name).read_bytes())
    toy = [
        "--blocks=8",
        "--block-examples=16",
        "--warmup-blocks=1",
        "--held-share=1",
        "--batch-tokens=1024",
        "--short-words=20",
        "--long-words=20",
    ]
    assert main(["train", "--work", str(tmp_path), "--threads=1", *toy]) == 0
    losses = [json.loads(line)["loss"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert len(losses) == 8
    assert sum(losses[-3:]) / 3 < 0.9 * sum(losses[:2]) / 2
    assert (
        main(["export", "--work", str(tmp_path), "--model", str(tmp_path / "model"), "--dtype=float32"]) == 0
    )
    llm = TransformerLLM(TransformerConfig(tmp_path / "model"))
    prompt = (Segment("Summarise the text in one or two sentences.\nText: "), Segment("A cat sat.", "text"))
    assert isinstance(value(llm, (*prompt, Segment("\nSummary:")), Decode(max_tokens=8)), str)


def test_the_engine_computes_what_was_trained(work: Path, sizes: NetworkConfig, tmp_path: Path) -> None:
    from tools.training.export import export

    training = _training(work, sizes)
    training.step_block()
    export(training.network, _tokenizer(work), tmp_path, "float32")
    llm = TransformerLLM(TransformerConfig(tmp_path))
    prompt = (Segment("Text: "), Segment("The captain lived at the inn", "text"), Segment("\nAnswer:"))
    tokens = PromptTokenizer(tmp_path).encode(prompt)
    with torch.no_grad():
        logits = training.network(torch.tensor([tokens]), torch.tensor([len(tokens) - 1]))
    expected = PromptTokenizer(tmp_path).decode([int(logits.argmax())]).strip()
    assert value(llm, prompt, Decode(max_tokens=1)) == expected


def test_a_resumed_run_is_the_run_that_was_never_stopped(
    work: Path, sizes: NetworkConfig, tmp_path: Path
) -> None:
    whole = _training(work, sizes)
    for _ in range(TOY.blocks):
        whole.step_block()
    first = _training(work, sizes)
    for _ in range(2):
        first.step_block()
    first.save(tmp_path)
    second = _training(work, sizes)
    lines: list[str] = []
    train(second, tmp_path, lines.append)
    assert [json.loads(line)["block"] for line in lines] == [3, 4]
    assert second.tokens == whole.tokens
    for (name, one), other in zip(
        second.network.state_dict().items(), whole.network.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name


def test_a_state_of_other_sizes_is_refused(work: Path, sizes: NetworkConfig, tmp_path: Path) -> None:
    _training(work, sizes).save(tmp_path)
    smaller = NetworkConfig(vocabulary=sizes.vocabulary, intermediate=64)
    with pytest.raises(ConfigError, match="other sizes"):
        _training(work, smaller).resume(tmp_path)


def test_untrained_weights_copy_already(work: Path, sizes: NetworkConfig) -> None:
    """The wiring gives the copied tokens of a repeated text more than chance; the tokens are rare words."""
    training = _training(work, sizes)
    encoder = PromptEncoder(_tokenizer(work))
    sentence = "The brown old seaman with the sabre cut took a glass of rum to the apple parlour."
    prompt = encoder.prompt("summarise", {"text": f"It was late. {sentence} He went."})
    answer = encoder.answer(sentence)
    places = torch.arange(len(prompt) - 1, len(prompt) + len(answer) - 1)
    with torch.no_grad():
        logits = training.network(torch.tensor([prompt + answer]), places)
    right = (logits.argmax(1) == torch.tensor(answer)).float()[4:-1].mean()
    assert right > 0.3


def test_rates_and_lengths_follow_the_run() -> None:
    config = TrainingConfig(blocks=100, warmup_blocks=10, decay_share=0.5, short_words=50, long_words=150)
    rates = [learning_rate(block, config) for block in range(100)]
    assert rates[0] == pytest.approx(config.peak_rate / 10)
    assert rates[10:50] == [config.peak_rate] * 40
    assert rates[50:] == sorted(rates[50:], reverse=True)
    assert [longest_text(block, config) for block in (0, 30, 55, 80, 99)] == [50, 50, 100, 150, 150]


def test_text_comes_back_and_prompts_are_tokenised_as_the_engine_does(work: Path) -> None:
    tokenizer = _tokenizer(work)
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert (
        tokenizer.decode(ids)
        == ' The captain\'s well-known "house" (of 1883).\n A second paragraph; déjà vu 🎼: {"a": [1]}'
    )
    encoder, engine = PromptEncoder(tokenizer), PromptTokenizer(work)
    for name in prompt_names():
        names = [part.strip("{}") for part in load_prompt(name).split() if part.startswith("{")]
        values = {n: TEXT + MARKERS[0] for n in names if n != "num_queries"}
        known = (("num_queries", "3"),) if name == "expand" else ()
        parts = parse_prompt(load_prompt(name), frozenset(values), known)
        prompt = tuple(
            Segment(part.text) if isinstance(part, Constant) else Segment(values[part.port], part.port)
            for part in parts
        )
        assert encoder.prompt(name, values, dict(known)) == engine.encode(prompt), name


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--work", str(tmp_path)]) == 2
    assert "run the command tokenizer first" in capsys.readouterr().err
    assert main(["evaluate", "--model", str(tmp_path), "--data", str(tmp_path)]) == 2
    assert "no squad_xquad_en" in capsys.readouterr().err
