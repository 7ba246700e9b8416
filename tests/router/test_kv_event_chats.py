"""Chats that are looked up in what servers report of their caches, on emulated servers with KV events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
pytest.importorskip("transformers")

from support.emulated import MODEL, emulating, fleet_of
from support.routing import run, until

from benchmarks.common.mini_model import MINI
from stretto.engines.openai_server.config import KVEventsConfig
from stretto.router.chat_tokens import ChatTokens, _KnownChats
from stretto.router.chats import Chat, chat_of
from stretto.router.config import RouterConfig
from stretto.router.serve import RunningRouter
from stretto.router.token_reader import TokenReader
from stretto.router.worker_config import WorkerConfig
from stretto.wire.metrics import read_samples

PATIENCE_S = 60.0
CHATS = "/v1/chat/completions"
ROLES = ("system", "user", "assistant", "tool")
TEMPLATE = (  # the one of emulated servers, which show no names of authors
    "{% for one in messages %}<|{{ one.role }}|>{{ one.name }}{{ one.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
OPENING = [
    {"role": "system", "content": "You guide ships. " * 30},
    {"role": "user", "content": "The harbour lies in the north, and its lanterns burn all night. " * 20},
]


def write_model(folder: Path) -> None:
    """Write the tokenizer of the tests with the tokens of roles, and with `TEMPLATE`."""
    spec = json.loads((MINI / "tokenizer.json").read_text("utf-8"))
    usual = {**spec["added_tokens"][0]}
    free = max(*spec["model"]["vocab"].values(), *(one["id"] for one in spec["added_tokens"])) + 1
    spec["added_tokens"] += [
        {**usual, "id": free + number, "content": f"<|{role}|>"} for number, role in enumerate(ROLES)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(spec), "utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model with a chat template."""
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    return folder


@pytest.fixture(scope="module")
def chats(model: Path) -> ChatTokens:
    """Its chat template."""
    return ChatTokens(model)


@pytest.fixture(scope="module")
def workers(model: Path) -> Iterator[tuple[WorkerConfig, ...]]:
    """Two emulated servers of the model, which publish KV events."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        found = []
        for number in range(2):
            endpoint = f"ipc://{folder}/{number}"
            fleet = fleet_of(tokenizer=str(model), kv_events=endpoint)
            (url,) = stack.enter_context(emulating(fleet))
            found.append(WorkerConfig(url=url, kv_events=KVEventsConfig(endpoint, f"{endpoint}-replay")))
        yield tuple(found)


@asynccontextmanager
async def routed(
    workers: tuple[WorkerConfig, ...], model: Path
) -> AsyncIterator[tuple[RunningRouter, httpx.AsyncClient]]:
    """Run a router that waits long for token ids, and wait until it has read what its workers hold."""
    config = RouterConfig(worker=workers, port=0, placement="stretto", tokenizer=str(model))
    async with (
        RunningRouter(config) as router,
        httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client,
    ):
        assert isinstance(router.front.tokens, TokenReader)
        router.front.tokens._timeout_s = PATIENCE_S
        view = router.front.router_state.view
        await until(lambda: all(worker.shares_template for worker in view.workers()) and view.has_reports)
        yield router, client


def asking(messages: list[dict[str, str]], **more: object) -> dict[str, object]:
    """Return the body of a chat request."""
    return {"model": MODEL, "messages": messages, "max_tokens": 4, **more}


async def answered(worker: WorkerConfig) -> str:
    """Return what a server answers to `OPENING`, past the router."""
    async with httpx.AsyncClient(base_url=worker.url, timeout=PATIENCE_S) as direct:
        reply = (await direct.post(CHATS, json=asking(OPENING))).json()
    return str(reply["choices"][0]["message"]["content"])


def test_the_next_turn_of_a_chat_goes_to_the_server_that_has_reported_it(
    workers: tuple[WorkerConfig, ...], model: Path
) -> None:
    """The router has not seen the first turn."""

    async def main() -> None:
        answer = await answered(workers[1])
        turns = [
            *OPENING,
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "And the south?"},
        ]
        async with routed(workers, model) as (router, client):
            reply = await client.post(CHATS, json=asking(turns))
            assert reply.headers["x-stretto-worker"] == "1"
            cached = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached > 200
            text = (await client.get("/metrics")).text
            for name in ("stretto_predicted_cached_tokens_total", "stretto_cached_tokens_total"):
                assert sum(one.value for one in read_samples(text, (name,))) == cached
            assert not any(one.num_miscounted for one in router.front.router_state.view.workers())

    run(main())


def test_chats_are_not_looked_up_where_the_worker_counts_other_tokens(
    workers: tuple[WorkerConfig, ...], model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        await answered(workers[0])
        async with routed(workers[:1], model) as (router, client):
            (worker,) = router.front.router_state.view.workers()
            named = [OPENING[0], {**OPENING[1], "name": "ada"}]
            for num_miscounted in (1, 2, 3, 3):
                assert (await client.post(CHATS, json=asking(named))).status_code == 200
                await until(lambda number=num_miscounted: worker.num_miscounted == number)  # type: ignore
                assert worker.shares_template == (num_miscounted < 3)
            assert caplog.text.count("no chats are looked up any more") == 1

    run(main())


def test_a_worker_with_another_template_is_not_asked_for_chats(
    workers: tuple[WorkerConfig, ...], model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE.replace("<|assistant|>", "<|user|>"), "utf-8")

    async def main() -> None:
        config = RouterConfig(worker=workers, port=0, placement="stretto", tokenizer=str(tmp_path))
        async with RunningRouter(config) as router:
            await until(lambda: caplog.text.count("does not agree with the router's chat template") == 2)
            assert router.front.tokens is not None
            assert not router.front.tokens.reads_chats
            assert all(worker.shares_tokenizer for worker in router.front.router_state.view.workers())

    run(main())


def test_a_folder_whose_template_cannot_be_used_serves_texts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no system message') }}", "utf-8")
    reader = TokenReader(tmp_path)
    assert reader.chats is None
    assert "chats are not looked up" in caplog.text
    assert reader.encode("a ship")
    reader.close()


OTHERS = (
    "\nAnswer:",
    "\nDraft",
    "s: ",
    "<|end|>",
    "<|e",
    "nd|>",
    "  ",
    "\n\n",
    "ship ",
    "é日",
    "(",
    "“",
    "x",
    " ",
)
PIECES = st.sampled_from((*(f"<|{role}|>" for role in ROLES), *OTHERS))
TEXTS = st.lists(PIECES, max_size=8).map("".join)


@given(st.lists(st.tuples(st.integers(0, 9), TEXTS), min_size=1, max_size=8))
def test_a_text_that_goes_on_from_others_has_the_ids_of_the_whole_text(
    chats: ChatTokens, grown: list[tuple[int, str]]
) -> None:
    texts = [""]
    for number, more in grown:
        texts.append(f"{texts[number % len(texts)]}{more}")
        whole = chats._tokenizer.encode(texts[-1], add_special_tokens=False).ids
        assert list(chats.ids_of_text(texts[-1])) == whole


def test_known_chats_take_bounded_memory_and_the_latest_remain() -> None:
    from array import array

    known = _KnownChats(1000)
    for number in range(100):
        name = str(number).encode()
        known.add([name + b"a", name + b"b"], array("I", range(50)), [0, 40])
    assert 0 < known._cost <= 1000
    assert len(known._chats) == known._cost // 178
    assert len(known._found) == 2 * len(known._chats)
    assert known.longest([b"99a", b"99b", b"other"]) == (1, array("I", range(40)), [0])
    assert known.longest([b"0a", b"0b"]) == (0, array("I"), [])


def test_chats_are_prepared_as_vllm_does() -> None:
    fields: dict[str, Any] = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}], "mood": "good"},
            {
                "role": "assistant",
                "content": None,
                "reasoning": "Look.",
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
                    {"id": "2", "type": "function", "function": {"name": "g", "arguments": ""}},
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": t} for t in "ab"]},
        ],
        "tools": [{"function": {"parameters": {}, "strict": True, "name": "f"}, "type": "function"}],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    chat = chat_of(CHATS, fields)
    assert chat is not None
    assert chat.kwargs == {"add_generation_prompt": True, "enable_thinking": False}
    assert chat.prepared_messages() == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": {}}},
            ],
            "reasoning": "Look.",
            "reasoning_content": "Look.",
        },
        {"role": "tool", "content": "a\nb", "tool_call_id": "1"},
    ]
    assert json.dumps(chat.prepared_tools()) == (
        '[{"type": "function", "function": '
        '{"name": "f", "description": null, "parameters": {}, "strict": true}}]'
    )


@pytest.mark.parametrize(
    "more",
    [
        {"cache_salt": "x"},
        {"chat_template": "{{ 1 }}"},
        {"chat_template_kwargs": {"tokenize": True}},
        {"chat_template_kwargs": "x"},
        {"add_generation_prompt": "yes"},
        {"continue_final_message": True},
        {"reasoning_effort": "low"},
    ],
)
def test_chats_that_something_else_decides_too_are_left_out(more: dict[str, object]) -> None:
    assert chat_of(CHATS, asking(OPENING, **more)) is None
    assert chat_of("/v1/completions", asking(OPENING)) is None


@pytest.mark.parametrize("content", [[{"type": "image_url"}], [{"type": "text", "text": "a"}] * 2, 3, {}])
def test_chats_with_more_than_text_have_no_ids(chats: ChatTokens, content: Any) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        chats.ids_of(Chat([{"role": "user", "content": content}], None, {}))
