"""Where a server that embeds or reranks is, and how it is asked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stretto.model.errors import ConfigError
from stretto.wire.server_url import read_server_url

INSTANCES_PER_SERVER = 2
"""Instances of an engine that ask one server. While the server works on the batch of one, that of the other
waits there, so that the server is not idle between two batches.
"""


@dataclass(frozen=True, slots=True)
class BatchServerConfig:
    """The configuration of `EmbeddingServer` and `RerankingServer`: one server, and limits of requests.

    Attributes:
        url: URL of the server or of its API, in any form that `server_url.py` lists.
        model: name of the model at the server; None takes the only one that it lists.
        api_key_env: environment variable that holds the key, if there is one.
        timeout_s: longest silence of the server before an answer, and longest time of the answer itself.
        max_texts: largest number of texts of one request. If the server names a smaller one, that counts.
        max_connections: requests at once.
        max_retries: further attempts after a 429, a 5xx or a connection that broke. The first comes
            `backoff_s` later, each next one after twice the time; or when the server says, but not later than
            `max_backoff_s`. A connection that is refused is not tried again here, but at another instance. So
            is everything while other servers of the engine serve; this one rests for as long as it says.
    """

    url: str
    model: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    timeout_s: float = 60
    connect_timeout_s: float = 5
    max_texts: int = 32
    max_connections: int = 8
    max_retries: int = 2
    backoff_s: float = 0.5
    max_backoff_s: float = 10

    def __post_init__(self) -> None:
        read_server_url(self.url)
        for name, least in (("max_texts", 1), ("max_connections", 1), ("max_retries", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        for name in ("timeout_s", "connect_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive and finite")
        for name in ("backoff_s", "max_backoff_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be finite and not negative")

    @property
    def served(self) -> str:
        """Name of what the server computes: its model, or its URL if no model is named."""
        return self.model or self.url
