"""Where an LLM server is, how it is spoken to, and how patient to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from stretto.engines.openai_wire.paths import Api
from stretto.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KVEventsConfig:
    """Where vLLM publishes its KV events: the endpoints of its `--kv-events-config`, as seen from here.

    Attributes:
        endpoint: of the publisher, as in "tcp://127.0.0.1:5557".
        replay_endpoint: where missed events can be had again; None forgets everything after a gap.
        topic: the publisher's.
        timeout_s: how long a replay may take.
    """

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    timeout_s: float = 5


@dataclass(frozen=True, slots=True)
class OpenAIServerConfig:
    """Everything about one server.

    Attributes:
        url: of the server, with or without `/v1`.
        model: the name the server knows; None takes the first that it lists.
        api: "completions", or "chat" for what only chats: the prompt is one message of the user's then.
        tokenizer: completions only. A directory with the model's tokenizer, to send token ids; "none"
            sends text; "auto" sends ids if the server names a directory that is here and tokenises alike.
        api_key_env: environment variable that holds the key, if there is one.
        timeout_s: longest silence of the server, before or within an answer; what only keeps the connection
            alive does not break it.
        stop: stop strings of every text, besides those of the task; a list ends with its JSON anyway. Servers
            may take four in all.
        max_connections: requests at once; others wait, and the server's silence is not counted meanwhile.
        max_retries: further attempts after a 429, a 5xx or a connection that broke while nothing of an answer
            had been seen, `backoff_s` later and twice as long each time; or when the server says, but not
            later than `max_backoff_s`.
        warms_prefixes: whether a partial prefill may become a request (where each costs money, say no).
        priorities: the server is vLLM with `--scheduling-policy priority`, and each request carries its rank
            as a priority. Other servers refuse such requests.
        kv_events: where the server tells what its prefix cache holds (vLLM), in token ids; else it is
            guessed.
        reports_load: ask the server's `/metrics` every second how busy it is, until it does not tell.
    """

    url: str
    model: str | None = None
    api: Api = "completions"
    tokenizer: str = "auto"
    api_key_env: str = "OPENAI_API_KEY"
    timeout_s: float = 60
    connect_timeout_s: float = 5
    stop: tuple[str, ...] = ()
    max_connections: int = 64
    max_retries: int = 2
    backoff_s: float = 0.5
    max_backoff_s: float = 10
    warms_prefixes: bool = True
    priorities: bool = False
    kv_events: KVEventsConfig | None = None
    reports_load: bool = False

    @property
    def output_key(self) -> tuple[str, str]:
        """The model, or the server where none is named: what an answer depends on."""
        return "served", self.model or self.url

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"{self.url!r} is no URL: it has to start with http:// or https://")
        if self.api not in get_args(Api):
            raise ConfigError(f"there is no api {self.api!r}; there are {', '.join(get_args(Api))}")
        if self.max_connections < 1:
            raise ConfigError("max_connections is at least 1")
