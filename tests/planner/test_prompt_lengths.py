"""Prompts in the tokens of models on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.common.mini_model import MINI
from stretto.engines.prompt_tokens import PromptTokenizer
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.graph.one_call import PromptMessage
from stretto.model.errors import CapacityError
from stretto.model.tasks import Decode, Failed, LLMTask
from stretto.model.values import Segment
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.running.prompt_lengths import PromptLengths
from stretto.planner.running.request_store import stored
from stretto.planner.running.requests import read_planned_requests
from stretto.planner.running.run_request import RunRequest
from stretto.planner.token_counts import TextTokens, tokens_of

CONTEXT = 4096
NODE = ModelNode("writer", str(MINI), 8)


def app_of(*nodes: ModelNode) -> Application:
    return Application("app", nodes)


def request_of(
    text: str, chunks: Sequence[str] = (), decode: Mapping[str, object] | None = None
) -> RunRequest:
    return RunRequest(
        AppRequest("1", 1, (1,) * len(chunks)), (PromptMessage(None, text),), tuple(chunks), decode
    )


def num_tokens(text: str) -> int:
    tokenizer = PromptTokenizer(MINI)
    prompt = (Segment(text, "message0"),)
    return len(tokenizer.encode(prompt)) + len(tokenizer.end_of(prompt))


def check(app: Application, request: RunRequest) -> None:
    PromptLengths(app).check(stored([request]))


def text_of(tokens: int) -> str:
    """Return a text that has exactly so many tokens, with the template."""
    text = "river " * tokens
    while num_tokens(text) > tokens:
        text = text[: -6 * max(1, (num_tokens(text) - tokens) // 2)]
    while num_tokens(text) < tokens:
        text += "."
    assert num_tokens(text) == tokens
    return text


def test_a_prompt_may_fill_the_context_as_the_engine_has_it() -> None:
    text = text_of(CONTEXT - NODE.max_tokens)
    check(app_of(NODE), request_of(text))
    llm = TransformerLLM(TransformerConfig(MINI))
    for number, max_tokens in enumerate((8, 9)):
        segments = (Segment(text, "message0"),)
        llm.admit(LLMTask(number, "query", "", segments, Decode(max_tokens=max_tokens)), ())
    refused = [event.task for event in llm.step() if isinstance(event, Failed)]
    llm.close()
    assert refused == [1]


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers() -> None:
    text = text_of(CONTEXT - NODE.max_tokens + 1)
    with pytest.raises(CapacityError) as refusal:
        check(app_of(NODE), request_of(text))
    assert refusal.value.message == (
        "request '1': its prompt for node 'writer' has 4089 tokens, and its answer up to 8; "
        f"the context of {MINI} is 4096 tokens"
    )
    check(app_of(NODE), request_of(text, decode={"max_tokens": 7}))


def test_lines_of_a_batch_file_that_are_too_long_are_refused_alone() -> None:
    long = "river " * 5000
    texts = {"a": "Hi", "b": long, "c": "Ho", "d": long, "e": "Ha"}
    requests = [
        RunRequest(AppRequest(id, 1, ()), (PromptMessage(None, text),), api="chat")
        for id, text in texts.items()
    ]
    store = stored(requests)
    marks = [store.mark(number) for number in (0, 2, 4)]
    PromptLengths(app_of(NODE)).check(store)
    assert [store.id(number) for number in range(len(store))] == ["a", "c", "e"]
    assert [store.get(number).text for number in range(len(store))] == ["Hi", "Ho", "Ha"]
    assert [store.mark(number) for number in range(len(store))] == marks
    assert store.find(marks[2], 4) == 2
    assert [(one.id, type(one.error)) for one in store.refused] == [
        ("b", CapacityError),
        ("d", CapacityError),
    ]
    assert sum(count for _, count in store.kinds()) == 3


def test_each_chunk_and_the_prompt_of_a_node_count() -> None:
    node = ModelNode("quote", str(MINI), 8, chain=True, prompt="{chunk} {prompt}")
    long = "river " * 5000
    with pytest.raises(CapacityError, match="for node 'quote'"):
        check(app_of(node), request_of("Quote.", ["short", long]))
    check(
        app_of(ModelNode("quote", str(MINI), 8, chain=True, prompt="{prompt}")), request_of("Quote.", [long])
    )


def test_models_without_weights_are_not_checked() -> None:
    check(app_of(ModelNode("writer", "stand-in", 8)), request_of("river " * 5000))


def test_plans_count_in_tokens_of_the_model() -> None:
    found = PromptLengths(app_of(NODE)).counted(request_of("The river runs to the sea.", ["The mill."]))
    assert found.prompt_tokens == num_tokens("The river runs to the sea.")
    (chunk,) = found.chunks
    assert chunk == num_tokens("The mill.") - num_tokens("")
    assert found.id == "1"


def test_plans_count_texts_with_the_tokenizer_of_the_first_model_that_has_one(tmp_path: Path) -> None:
    texts = ["Where is the inn?", "The river, the guild: 1234567890!"]
    lines = [{"custom_id": str(at), "prompt": text, "chunks": [text, 7]} for at, text in enumerate(texts)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    tokens = TextTokens(["mpt-7b-chat", str(MINI)])
    requests, _ = read_planned_requests(tmp_path / "in.jsonl", app_of(NODE), tokens)
    assert [one.prompt_tokens for one in requests] == list(map(num_tokens, texts))
    added = num_tokens(texts[0]) - num_tokens("")
    assert requests[0].chunks == (added, 7)
    assert num_tokens(texts[1]) - num_tokens("") != tokens_of(texts[1])
    prompt = "Write one line: {prompt}"
    node = ModelNode("writer", str(MINI), 8, tokens_of("Write one line: "), prompt=prompt)
    counted = tokens.counted(app_of(node, ModelNode("given", str(MINI), 8, 99, prompt=prompt)))
    assert counted.node("writer").prompt_tokens == num_tokens("Write one line: ") - num_tokens("")
    assert counted.node("given").prompt_tokens == 99
    assert tokens.by == "counted"


def test_without_a_tokenizer_texts_are_estimated() -> None:
    tokens = TextTokens(["mpt-7b-chat"])
    assert tokens.of_prompt(Segment("a" * 9, "prompt")) == 3
    assert tokens.by == "estimated"
