"""What is known of a request before its body is read, and how bodies are read at a router."""

from __future__ import annotations

from stretto.http.client.headers import Headers
from stretto.model.record import record
from stretto.router.aliases import Aliases
from stretto.router.repairs import Repairs

_NO_ALIASES = Aliases(())
_NO_REPAIRS = Repairs(())


@record(kw_only=True)
class ReadingRules:
    """How bodies are read at a router, as long as its workers stay the same.

    Attributes:
        uses_keys: whether keys of prompts are wanted.
        has_reports: whether workers report what their caches hold, so that the prompt of a completion is
            wanted as it is.
        reads_chats: whether chats are wanted too.
        cuts_priority: whether a worker knows no field `priority`.
        aliases: names for which the names of models are to be put.
        repairs: rules by which prompts are repaired.
    """

    uses_keys: bool = True
    has_reports: bool = False
    reads_chats: bool = False
    cuts_priority: bool = False
    aliases: Aliases = _NO_ALIASES
    repairs: Repairs = _NO_REPAIRS


@record
class RequestHead:
    """What is known of a request before its body is read. Attributes without a text here are those of
    `RoutedRequest`.

    Attributes:
        path: path that is asked, such as "/v1/completions".
        content_type: type of the body; "" if the client says none.
        headers: headers in which programs are named; None if programs are not recognised.
    """

    path: str
    content_type: str = "application/json"
    is_repeatable: bool = True
    client_key: str = ""
    tenant: str | None = None
    deadline_s: float | None = None
    headers: Headers | None = None

    @property
    def owner(self) -> str:
        """Name of the tenant, or digest of the client's key."""
        return self.client_key if self.tenant is None else self.tenant
