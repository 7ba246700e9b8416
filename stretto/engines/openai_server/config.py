"""Where an LLM server is, which API it speaks, and how long to wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from stretto.engines.openai_server.request_fields import MAX_TOKENS, RequestFields
from stretto.model.errors import ConfigError
from stretto.wire.paths import ApiChoice
from stretto.wire.server_url import read_server_url

NO_LIMIT = 1_000_000_000
"""More requests, or tokens, than are ever at a server at once."""


@dataclass(frozen=True, slots=True)
class KVEventsConfig:
    """The places where a vLLM server publishes KV events, which tell what its prefix cache stores and evicts.

    The addresses are those of its option `--kv-events-config`, as they are reached from here.

    Attributes:
        endpoint: address of the publisher, such as "tcp://127.0.0.1:5557".
        replay_endpoint: address where missed events can be fetched; None forgets everything after a gap.
        topic: topic of the publisher.
        timeout_s: longest time of a replay.
    """

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    timeout_s: float = 5


@dataclass(frozen=True, slots=True)
class OpenAIServerConfig:
    """The configuration of an LLM engine behind one OpenAI-compatible server: where the server is, its API,
    and its limits.

    Attributes:
        url: URL of the server or of its API, in any form that `server_url.py` lists.
        model: the name the server knows; None takes the only one that it lists.
        api: "chat" sends messages, which the server puts into its model's chat template. "completions" sends
            the prompt itself: in our own copy of the template if the tokenizer is known, else in its plain
            form. "auto" is "completions" if the tokenizer is known, else "chat", or "completions" again from
            the first refusal on if the server has no chat.
        tokenizer: not with "chat". A directory with the model's tokenizer, to send token ids; "none"
            sends text; "auto" sends ids if the server names a directory on this machine whose tokenizer
            agrees with the server's.
        api_key_env: environment variable that holds the key, if there is one.
        timeout_s: longest silence of the server, before or within an answer. Bytes that only keep the
            connection alive count as silence.
        quiet_s: seconds without a word after which a server that has requests is asked whether it answers,
            and given up if it does not; None never asks. For servers that answer while they compute.
        omit: names of fields that the server refuses and that are not sent, such as "temperature". Some are
            also learned from refusals (`request_fields.py`).
        max_tokens_field: name of the field for the largest number of tokens, "max_tokens" or
            "max_completion_tokens". The second is also learned from a refusal.
        stop: stop strings of every text, besides those of the task; a list ends with its JSON anyway. Servers
            may take four in all. With "auto", `PLAIN_STOP` is added to prompts in their plain form.
        max_connections: requests at once; others wait here in order of arrival, and the server's silence is
            not counted meanwhile. An engine's `max_running` limits them already, and its order decides there
            who waits: a smaller number is for servers that refuse more connections.
        max_retries: further attempts after a 429, a 5xx or a connection that broke within a second, before
            anything of an answer came. The first comes `backoff_s` later, each next one after twice the time;
            or when the server says, but not later than `max_backoff_s`. While other servers of the engine
            serve there are none: the request goes there, and this server rests for as long as it says.
        warms_prefixes: whether to send extra requests that only prefill the beginning of a later prompt into
            the server's prefix cache; choose False where each request costs money.
        priorities: send each request's rank as its priority. Only vLLM with the option
            `--scheduling-policy priority` accepts such requests; other servers refuse them.
        takes_tools: chat only. Whether the server is sent the tools of agents and parses calls of them; None
            tries, and goes by words from the first refusal on.
        kv_events: where the server publishes what its prefix cache holds (vLLM), in token ids; with None, the
            contents are guessed.
        token_s: predicted seconds of a token of an answer, by which the first answers that nobody reads in
            parts are asked for whole; None to stream the first.
    """

    url: str
    model: str | None = None
    api: ApiChoice = "auto"
    tokenizer: str = "auto"
    api_key_env: str = "OPENAI_API_KEY"
    timeout_s: float = 60
    connect_timeout_s: float = 5
    quiet_s: float | None = None
    omit: tuple[str, ...] = ()
    max_tokens_field: str = MAX_TOKENS
    stop: tuple[str, ...] = ()
    max_connections: int = NO_LIMIT
    max_retries: int = 2
    backoff_s: float = 0.5
    max_backoff_s: float = 10
    warms_prefixes: bool = True
    priorities: bool = False
    takes_tools: bool | None = None
    kv_events: KVEventsConfig | None = None
    token_s: float | None = None

    @property
    def output_key(self) -> tuple[str, str | None]:
        """Key that is equal for servers with equal answers, as far as is known: the model, or None where none
        is named.

        An interrupted task may go on at a server with an equal key. Servers of one engine that name no model
        are taken for alike; where they are not, the second text begins otherwise than what was shown, and
        the query fails.
        """
        return "served", self.model

    def __post_init__(self) -> None:
        read_server_url(self.url)
        if self.api not in get_args(ApiChoice):
            raise ConfigError(f"there is no api {self.api!r}; there are {', '.join(get_args(ApiChoice))}")
        RequestFields(frozenset(self.omit), self.max_tokens_field)
        if self.max_connections < 1:
            raise ConfigError(f"max_connections is {self.max_connections}; it must be at least 1")
