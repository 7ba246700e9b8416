"""What a server that speaks OpenAI's API as vLLM does must do, asked over real HTTP.

Every server is a row of `support.openai_rows`. A real vLLM is one of them where it is installed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import httpx
import pytest
from support.openai_rows import ROWS, Server

from stretto.wire import engine_metrics, metrics, paths, sse
from stretto.wire.answers import AnswerChoice, ModelAnswer, read_chunk, read_whole
from stretto.wire.errors import read_reason
from stretto.wire.models import read_models, read_tokens, tokenize_request
from stretto.wire.options import Options
from stretto.wire.paths import Api
from stretto.wire.requests import ChatMessage, ChatRequest, CompletionRequest, GenerateRequest

TEXT = "Every house has a kitchen; every kitchen has a table."
IDS = tuple(range(10, 90))
GREEDY = Options(max_tokens=12, temperature=0.0, ignore_eos=True)
APIS: tuple[Api, ...] = ("completions", "chat")
_PATIENCE_S = 100


class Client:
    """A client of one server."""

    def __init__(self, server: Server) -> None:
        self.model = server.model
        self.metric_names = server.metric_names
        self._http = httpx.Client(base_url=server.url, timeout=120)

    def request(self, api: Api, options: Options, text: str = TEXT) -> GenerateRequest:
        if api == "chat":
            return ChatRequest(model=self.model, messages=(ChatMessage("user", text),), options=options)
        return CompletionRequest(model=self.model, prompts=(text,), options=options)

    def get(self, path: str) -> httpx.Response:
        return self._http.get(path)

    def post(self, path: str, body: Mapping[str, Any] | bytes) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._http.post(path, content=content, headers={"Content-Type": "application/json"})

    def whole(self, api: Api, request: GenerateRequest) -> ModelAnswer:
        response = self.post(paths.GENERATE[api], request.to_json())
        assert response.status_code == 200, response.text
        return read_whole(api, response.json())

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def stream(self, api: Api, request: GenerateRequest) -> Iterator[ModelAnswer]:
        """The chunks; closing the iterator leaves the server."""
        request = replace(request, options=replace(request.options, stream=True))
        decoder = sse.EventDecoder()
        with self._http.stream("POST", paths.GENERATE[api], json=request.to_json()) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith(sse.CONTENT_TYPE)
            for received in response.iter_bytes():
                for data in decoder.feed(received):
                    yield read_chunk(api, json.loads(data))
        assert decoder.is_done

    def measure(self, family: metrics.Family) -> float:
        """The sum of a family's samples."""
        name = self.metric_names.get(family.name, family.name)
        return sum(sample.value for sample in metrics.read_samples(self.get(paths.METRICS).text, [name]))

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not is_so():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


@pytest.fixture(
    scope="module",
    params=["stub", "emulated", "emulated-sglang", pytest.param("vllm", marks=pytest.mark.timeout(900))],
)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with (
        ROWS[request.param](tmp_path_factory.mktemp(request.param)) as server,
        closing(Client(server)) as one,
    ):
        yield one


def only(answer: ModelAnswer) -> AnswerChoice:
    (choice,) = answer.choices
    return choice


# --- answers


@pytest.mark.parametrize("api", APIS)
def test_a_whole_answer_has_its_text_its_end_and_counts(client: Client, api: Api) -> None:
    answer = client.whole(api, client.request(api, GREEDY))
    choice = only(answer)
    assert choice.text
    assert choice.finish == "length"
    assert choice.role == ("assistant" if api == "chat" else None)
    assert answer.model == client.model
    assert answer.id
    assert answer.counts is not None
    assert answer.counts.num_prompt > 0
    assert answer.counts.num_output == GREEDY.max_tokens


def test_a_prompt_may_be_token_ids(client: Client) -> None:
    request = CompletionRequest(model=client.model, prompts=(IDS,), options=GREEDY)
    answer = client.whole("completions", request)
    assert answer.counts is not None
    assert answer.counts.num_prompt == len(IDS)
    assert only(answer).text == "".join(
        only(chunk).text for chunk in client.stream("completions", request) if chunk.choices
    )


@pytest.mark.parametrize("api", APIS)
def test_a_stream_says_the_same_as_a_whole_answer(client: Client, api: Api) -> None:
    request = client.request(api, GREEDY)
    whole = client.whole(api, request)
    counted = client.request(api, replace(GREEDY, include_usage=True))
    *chunks, last = client.stream(api, counted)
    assert "".join(only(chunk).text for chunk in chunks) == only(whole).text
    assert [only(chunk).finish for chunk in chunks if only(chunk).finish] == ["length"]
    assert only(chunks[-1]).finish == "length"
    assert all(chunk.counts is None for chunk in chunks)
    assert last.choices == ()
    assert last.counts is not None
    assert whole.counts is not None
    assert (last.counts.num_prompt, last.counts.num_output) == (
        whole.counts.num_prompt,
        whole.counts.num_output,
    )
    if api == "chat":
        assert only(chunks[0]).role == "assistant"


def test_a_stream_counts_only_if_asked(client: Client) -> None:
    chunks = list(client.stream("completions", client.request("completions", GREEDY)))
    assert all(chunk.counts is None and chunk.choices for chunk in chunks)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_a_text_ends_before_a_stop_string(client: Client, api: Api, is_streamed: bool) -> None:
    text = only(client.whole(api, client.request(api, GREEDY))).text
    end = next(text[i : i + 2] for i in range(3, len(text)) if text.index(text[i : i + 2]) == i)
    request = client.request(api, replace(GREEDY, stop=("never to be seen", end)))
    if is_streamed:
        choices = [only(chunk) for chunk in client.stream(api, request)]
    else:
        choices = [only(client.whole(api, request))]
    assert "".join(choice.text for choice in choices) == text[: text.index(end)]
    assert (choices[-1].finish, choices[-1].stop_reason) == ("stop", end)


def test_a_completion_has_sixteen_tokens_if_nothing_is_said(client: Client) -> None:
    request = client.request("completions", replace(GREEDY, max_tokens=None))
    answer = client.whole("completions", request)
    assert answer.counts is not None
    assert answer.counts.num_output == 16


@pytest.mark.parametrize("api", APIS)
def test_several_answers_are_numbered(client: Client, api: Api) -> None:
    answer = client.whole(api, client.request(api, replace(GREEDY, n=3, temperature=1.0)))
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.counts is not None
    assert answer.counts.num_output == 3 * 12


def test_several_prompts_are_answered_in_order(client: Client) -> None:
    request = CompletionRequest(model=client.model, prompts=(TEXT, TEXT, TEXT), options=GREEDY)
    answer = client.whole("completions", request)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.text for choice in answer.choices}) == 1


@pytest.mark.parametrize("api", APIS)
def test_log_probabilities_are_reported_token_by_token(client: Client, api: Api) -> None:
    answer = client.whole(api, client.request(api, replace(GREEDY, logprobs=1)))
    logprobs = only(answer).logprobs
    assert logprobs is not None
    assert len(logprobs) == 12
    assert all(token.logprob <= 0 and token.top for token in logprobs)
    assert only(client.whole(api, client.request(api, GREEDY))).logprobs is None


def test_a_prompt_that_was_there_before_is_cached(client: Client) -> None:
    request = CompletionRequest(model=client.model, prompts=(tuple(range(200, 328)),), options=GREEDY)
    counts = [client.whole("completions", request).counts for _ in range(2)]
    cached = [count.num_cached for count in counts if count is not None]
    assert cached[0] == 0
    assert cached[1] in (96, 128)  # whole blocks; the last token may be computed again


def test_fields_that_nobody_knows_are_passed_over(client: Client) -> None:
    request = client.request("completions", GREEDY)
    assert only(client.whole("completions", replace(request, extra={"unheard_of": [1]}))).text


# --- the server


def test_a_server_lists_its_models(client: Client) -> None:
    (card,) = read_models(client.get(paths.MODELS).json())
    assert card.id == client.model
    assert card.max_model_tokens == 2048


def test_a_server_says_that_it_is_well(client: Client) -> None:
    assert client.get(paths.HEALTH).status_code == 200


def test_a_server_cuts_a_text_into_tokens(client: Client) -> None:
    tokens = read_tokens(client.post(paths.TOKENIZE, tokenize_request(client.model, TEXT)).json())
    assert tokens
    assert all(type(token) is int for token in tokens)


def test_a_server_has_all_metrics_and_counts(client: Client) -> None:
    text = client.get(paths.METRICS).text
    for family in engine_metrics.VLLM:
        if client.metric_names:
            if family.name not in client.metric_names:
                continue
            family = replace(family, name=client.metric_names[family.name])
        name = f"{family.name}_count" if family.kind == "histogram" else family.name
        assert list(metrics.read_samples(text, [name])), name
        assert f"# TYPE {family.name} {family.kind}\n" in text
    before = (
        client.measure(engine_metrics.VLLM_PROMPT_TOKENS),
        client.measure(engine_metrics.VLLM_OUTPUT_TOKENS),
    )
    client.whole("completions", CompletionRequest(model=client.model, prompts=(IDS,), options=GREEDY))
    client.wait_for(lambda: client.measure(engine_metrics.VLLM_PROMPT_TOKENS) == before[0] + len(IDS))
    assert client.measure(engine_metrics.VLLM_OUTPUT_TOKENS) == before[1] + 12


@pytest.mark.parametrize("api", APIS)
def test_a_client_that_leaves_frees_its_place(client: Client, api: Api) -> None:
    before = client.measure(engine_metrics.VLLM_OUTPUT_TOKENS)
    chunks = client.stream(api, client.request(api, replace(GREEDY, max_tokens=1900)))
    for _ in range(3):
        next(chunks)
    client.wait_for(lambda: client.measure(engine_metrics.VLLM_NUM_RUNNING) == 1)
    chunks.close()  # type: ignore[attr-defined]
    client.wait_for(lambda: client.measure(engine_metrics.VLLM_NUM_RUNNING) == 0)
    assert client.measure(engine_metrics.VLLM_NUM_WAITING) == 0
    assert client.measure(engine_metrics.VLLM_OUTPUT_TOKENS) < before + 1900


# --- refusals

BAD_PROMPTS: tuple[Any, ...] = (None, "", [], [[]], 5, [-1], ["a", 1])
BAD_MESSAGES: tuple[Any, ...] = (None, [], 5, [{}], [{"role": 5, "content": "x"}])
BAD_FIELDS: tuple[tuple[str, Any], ...] = (
    *(("prompt", value) for value in BAD_PROMPTS),
    *(("max_tokens", value) for value in (0, -1, "x", 2.5, 10**6, 10**30)),
    *(("temperature", value) for value in (-1, 3, "hot", float("nan"))),
    *(("top_p", value) for value in (0, 2)),
    *(("top_k", -5), ("min_p", 2), ("presence_penalty", 3), ("repetition_penalty", 0)),
    *(("n", value) for value in (0, -1, 100_000)),
    *(("stop", value) for value in ("", [""], ["a"] * 5, 5)),
    *(("min_tokens", value) for value in (-1, 10)),
    *(("logprobs", value) for value in (-2, 1000, "x")),
    *(("cache_salt", value) for value in ("", "a/b", 5, "x" * 129)),
    *(("seed", 2**70), ("priority", "x"), ("ignore_eos", "x"), ("stop_token_ids", [1.5])),
    *(("response_format", value) for value in ({"type": "json_schema"}, {"type": "nonsense"}, 5)),
    *(("structured_outputs", value) for value in ({"regex": "a", "json": {}}, {})),
    ("stream_options", {"include_usage": True}),
)
BAD_CHATS: tuple[tuple[str, Any], ...] = (
    *(("messages", value) for value in BAD_MESSAGES),
    ("messages", [{"role": "user", "content": 5}]),
    *(("tools", []), ("top_logprobs", 2), ("max_completion_tokens", 0)),
)


def check_refusal(response: httpx.Response, status: int) -> Mapping[str, Any]:
    assert response.status_code == status, response.text
    error: Mapping[str, Any] = response.json()["error"]
    assert error["code"] == status
    assert error["message"]
    assert error["type"]
    assert read_reason(response.content) == error["message"][:500]
    return error


@pytest.mark.parametrize(("name", "value"), BAD_FIELDS)
def test_a_bad_completion_is_refused(client: Client, name: str, value: Any) -> None:
    body = {"model": client.model, "prompt": TEXT, "max_tokens": 4, "temperature": 0, name: value}
    error = check_refusal(client.post(paths.GENERATE["completions"], body), 400)
    assert error["type"] in ("BadRequestError", "Bad Request")
    assert error["param"] is None or name in error["param"]


@pytest.mark.parametrize(("name", "value"), BAD_CHATS)
def test_a_bad_chat_is_refused(client: Client, name: str, value: Any) -> None:
    body = {
        "model": client.model,
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 4,
        name: value,
    }
    check_refusal(client.post(paths.GENERATE["chat"], body), 400)


def test_greedy_answers_are_not_repeated(client: Client) -> None:
    body = client.request("completions", replace(GREEDY, n=2)).to_json()
    check_refusal(client.post(paths.GENERATE["completions"], body), 400)


@pytest.mark.parametrize("body", [b"", b"{nope", b"[]", b"5"])
@pytest.mark.parametrize("api", APIS)
def test_what_is_no_request_is_refused(client: Client, api: Api, body: bytes) -> None:
    assert check_refusal(client.post(paths.GENERATE[api], body), 400)["type"] == "Bad Request"


def test_a_body_that_is_no_text_is_refused(client: Client) -> None:
    assert client.post(paths.GENERATE["completions"], b"\xff").status_code == 400


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_prompt_beyond_the_context_is_refused(client: Client, is_streamed: bool) -> None:
    options = replace(GREEDY, stream=is_streamed)
    request = CompletionRequest(model=client.model, prompts=((5,) * 3000,), options=options)
    error = check_refusal(client.post(paths.GENERATE["completions"], request.to_json()), 400)
    assert error["param"] == "input_tokens"
    assert "2048" in error["message"]
    assert "3000" in error["message"]


def test_an_answer_beyond_the_context_is_cut(client: Client) -> None:
    options = replace(GREEDY, max_tokens=100)
    request = CompletionRequest(model=client.model, prompts=((5,) * 2040,), options=options)
    answer = client.whole("completions", request)
    assert only(answer).finish == "length"
    assert answer.counts is not None
    assert answer.counts.num_output == 8


@pytest.mark.parametrize("api", APIS)
def test_an_unknown_model_is_not_found(client: Client, api: Api) -> None:
    body = {**client.request(api, GREEDY).to_json(), "model": "nobody's"}
    error = check_refusal(client.post(paths.GENERATE[api], body), 404)
    assert (error["type"], error["param"]) == ("NotFoundError", "model")
    assert client.model in error["message"]


def test_an_unknown_path_is_not_found(client: Client) -> None:
    assert client.get("no/such/path").status_code == 404
