"""The settings of one worker (a server behind the router)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.engines.openai_server.config import KVEventsConfig
from stretto.http.client.headers import Headers
from stretto.http.tls import ClientTls
from stretto.model.errors import ConfigError
from stretto.model.number_checks import check_counts
from stretto.model.profile import UNKNOWN_LLM, Profile
from stretto.router.found_workers import DnsConfig, KubernetesConfig
from stretto.router.keys import KEY_HEADERS
from stretto.router.roles import Role, check_role
from stretto.router.worker_url import parse_address

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


_OWN_HEADERS = frozenset(("host", "connection", "content-length", "transfer-encoding", "upgrade", "expect"))
"""Headers that the router writes itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The settings of one worker: a server behind the router.

    Attributes:
        url: URL of the server or of its API, such as "http://10.0.0.2:8000", in any form that
            `server_url.py` lists. Its query may have `api-version` alone.
        num_slots: number of requests that may run there at once; more wait in the router.
        kv_tokens: number of tokens that may be in flight there, of prompts and expected outputs; None asks
            the server, and sets no limit if it does not tell.
        profile: predicted seconds of its work, for policies that compare seconds.
        kv_events: where it publishes what its prefix cache holds (vLLM); None leaves that to be guessed.
        role: part of requests that it takes (`roles.py`). Other roles than "mixed" are for servers that pass
            KV on to each other, as vLLM does with `--kv-transfer-config`.
        takes_priority: whether it takes the field `priority`, as vLLM does with `--scheduling-policy
            priority`. If not, the field is left out on the way there: the router has made use of it.
        models: names of its models, for a server that does not list them.
        api_key: key that goes, as `Authorization: Bearer KEY`, with health checks and with requests that
            bring no key of their own; "" for none.
        api_key_env: environment variable that holds this key, in place of `api_key`.
        headers: further headers for health checks, and for requests that have none of the same name.
        tls: authorities, certificate and name for a worker at https://…; None for those of the router's
            `worker_tls`.
        dns: says that each address of the URL's host is a worker of its own, with these settings.
        kubernetes: says the same of endpoints of Kubernetes. They have the URL's port, if it has one, and
            else their own port of the name "http", or their first one.
    """

    url: str
    num_slots: int = 256
    kv_tokens: int | None = None
    profile: Profile = UNKNOWN_LLM
    kv_events: KVEventsConfig | None = None
    role: Role = "mixed"
    takes_priority: bool = True
    models: tuple[str, ...] = ()
    api_key: str = field(default="", repr=False)
    api_key_env: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: ClientTls | None = None
    dns: DnsConfig | None = None
    kubernetes: KubernetesConfig | None = None

    @property
    def is_several(self) -> bool:
        """Whether these are the settings of several workers, which are found while the router runs."""
        return self.dns is not None or self.kubernetes is not None

    def own_headers(self) -> Headers:
        """Return the headers that go with health checks, and with requests that have none of their own."""
        key = self._key
        lines = [(name.lower().encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        return [*lines, (b"authorization", b"Bearer " + key.encode("latin-1"))] if key else lines

    @property
    def has_key(self) -> bool:
        """Whether requests that bring no key get one from these settings."""
        return any(name in KEY_HEADERS for name, _ in self.own_headers())

    @property
    def _key(self) -> str:
        return self.api_key if self.api_key_env is None else os.environ.get(self.api_key_env, "").strip()

    def __post_init__(self) -> None:
        if not parse_address(self.url).is_tls and self.tls is not None:
            raise ConfigError(f"worker {self.url}: tls is only of use with a URL that begins with https")
        if self.dns is not None and self.kubernetes is not None:
            raise ConfigError(f"worker {self.url}: dns and kubernetes are both given; give one of them")
        check_role(self.url, self.role)
        self._check_secrets()
        if any(not isinstance(name, str) or not name for name in self.models):
            raise ConfigError(f"worker {self.url}: models are {self.models!r}; each must be a name")
        check_counts(f"worker {self.url}", self, ("num_slots",))
        check_counts(f"worker {self.url}", self, ("kv_tokens",), or_none=True)
        if self.kv_events is not None:
            for address in (self.kv_events.endpoint, self.kv_events.replay_endpoint):
                if address is not None and not address.startswith(("tcp://", "ipc://")):
                    raise ConfigError(
                        f"worker {self.url}: KV events are at {address!r}; it must be tcp://… or ipc://…"
                    )

    def _check_secrets(self) -> None:
        """Check the key and the headers; errors never show their values. Raises ConfigError."""
        if self.api_key_env is not None and self.api_key:
            raise ConfigError(f"worker {self.url}: api_key and api_key_env are both given; give one of them")
        if self.api_key_env is not None and not self._key:
            raise ConfigError(
                f"worker {self.url}: the environment variable {self.api_key_env!r}, which api_key_env names, "
                "is empty or not set; it must hold the key"
            )
        if not isinstance(self.headers, Mapping):
            raise ConfigError(f"worker {self.url}: headers must be a table of names and texts")
        key = self._key
        if not _is_header_value(key) or key != key.strip():
            raise ConfigError(
                f"worker {self.url}: the key must be a text of printable letters, without spaces"
            )
        for name, value in self.headers.items():
            if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
                raise ConfigError(f"worker {self.url}: {name!r:.100} is no name of a header")
            if name.lower() in _OWN_HEADERS:
                raise ConfigError(f"worker {self.url}: the header {name} is the router's own; leave it out")
            if not _is_header_value(value):
                raise ConfigError(f"worker {self.url}: the header {name} must be a text of printable letters")
        if (key and any(name.lower() == "authorization" for name in self.headers)) or len(
            {name.lower() for name in self.headers}
        ) < len(self.headers):
            raise ConfigError(
                f"worker {self.url}: a header is given twice; a key is the header Authorization"
            )


def _is_header_value(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[ -~\xa0-\xff]*", value) is not None
