"""The small language model that ships with the project: what is in the package, and how it behaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from support.llm_running import drain, task

from stretto.apps.components.prompt_segments import load_prompt, parse_prompt
from stretto.engines.catalogue import SMALL_MODEL, llm_engine
from stretto.engines.models import MINI
from stretto.engines.transformer.engine import TransformerConfig, TransformerLLM
from stretto.graph.graph import Constant
from stretto.model.tasks import Decode, Done
from stretto.model.values import Prompt, Segment

CONTEXT = (
    "The lighthouse on Gull Rock was built in 1832 by Anna Merridew. Its lamp burned whale oil until 1871. "
    "A keeper and his family lived beside it. Storms carried the first bridge away in a single night."
)
QUESTION = "Who built the lighthouse on Gull Rock?"
OTHER = "Cats sleep for most of the day. A litter has four kittens on average."
PROMPTS = (
    ("answer", {"question": QUESTION, "context": CONTEXT}),
    ("answer", {"question": QUESTION, "context": OTHER}),
    ("refine", {"question": QUESTION, "context": OTHER, "draft": CONTEXT.split(". ")[0] + "."}),
    ("combine", {"question": QUESTION, "drafts": "\n\n".join(CONTEXT.split(". ")[:2])}),
    ("expand", {"question": QUESTION}),
    ("judge", {"question": QUESTION, "text": CONTEXT}),
    ("judge", {"question": QUESTION, "text": OTHER}),
    ("summarise", {"text": CONTEXT}),
    ("proxy", {"question": QUESTION}),
)


def _prompt(name: str, values: dict[str, str]) -> Prompt:
    known = (("num_queries", "3"),) if name == "expand" else ()
    return tuple(
        Segment(part.text) if isinstance(part, Constant) else Segment(values[part.port], part.port)
        for part in parse_prompt(load_prompt(name), frozenset(values), known)
    )


def _outputs(num_threads: int, max_running: int) -> list[tuple[str, int]]:
    """Return for each prompt the text and how many tokens it took."""
    llm = TransformerLLM(TransformerConfig(MINI, num_threads=num_threads, max_running=max_running))
    for number, (name, values) in enumerate(PROMPTS):
        llm.admit(task(number, _prompt(name, values), Decode(max_tokens=120)), ())
    ended = {event.task: event for event in drain(llm) if isinstance(event, Done)}
    return [(str(ended[n].value), ended[n].usage.num_output_tokens) for n in range(len(PROMPTS))]


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def outputs() -> list[tuple[str, int]]:
    return _outputs(1, 16)


@pytest.mark.long  # two threads are slow where cores are busy
def test_greedy_output_is_the_same_with_two_threads_and_in_other_batches(
    outputs: list[tuple[str, int]],
) -> None:
    assert _outputs(2, 3) == outputs


def test_every_output_ends_by_itself(outputs: list[tuple[str, int]]) -> None:
    assert all(0 < tokens < 120 for _, tokens in outputs), outputs


def test_an_answer_is_quoted(outputs: list[tuple[str, int]]) -> None:
    answer = outputs[0][0]
    assert answer in CONTEXT


def test_an_expanded_query_is_json(outputs: list[tuple[str, int]]) -> None:
    queries = json.loads(outputs[4][0])
    assert len(queries) == 3
    assert all("lighthouse" in query for query in queries)


def test_a_verdict_is_yes_or_no(outputs: list[tuple[str, int]]) -> None:
    assert {outputs[5][0], outputs[6][0]} <= {"yes", "no"}


def test_a_summary_is_quoted_and_what_is_not_known_is_said(outputs: list[tuple[str, int]]) -> None:
    assert outputs[7][0] in CONTEXT
    assert outputs[8][0] == "I do not know."


def test_it_has_a_name() -> None:
    engine = llm_engine(SMALL_MODEL)
    llm = engine.replicas[0].executable(engine.replicas[0].config)
    assert isinstance(llm, TransformerLLM)


def test_it_is_small_and_complete() -> None:
    names = {path.name for path in MINI.iterdir()}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "README.md",
    } <= names
    assert sum(path.stat().st_size for path in MINI.iterdir()) <= 25_000_000
    with safe_open(MINI / "model.safetensors", "pt") as weights:
        assert sum(weights.get_tensor(name).numel() for name in weights.keys()) <= 12_000_000  # noqa: SIM118
    config = json.loads((MINI / "config.json").read_text("utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["max_position_embeddings"] >= 2048


def test_transformers_reads_it_too(outputs: list[tuple[str, int]]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(MINI, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(MINI)
    text = "".join(segment.text for segment in _prompt(*PROMPTS[0]))
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    found = model.generate(**ids, max_new_tokens=100, do_sample=False)
    new = found[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(new, skip_special_tokens=True).strip() == outputs[0][0]


def test_the_card_says_what_is_needed() -> None:
    card = (MINI / "README.md").read_text("utf-8")
    for word in ("Licence", "CC BY-SA 4.0", "BM25", "random", "sentence hit", "held-out", "tokens"):
        assert word in card, word
    assert Path(MINI / "config.json").is_file()
