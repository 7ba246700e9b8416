"""The fields of a request that a server does not take, and what is sent instead.

Servers differ in the fields that they refuse: newer models of OpenAI want `max_completion_tokens` for
`max_tokens` and no other temperature than their own; others know no `stream_options`. A setting names such
fields (`OpenAIServerConfig`). Those that an answer can do without are also learned from refusals: the request
is sent once more for each, and what has helped is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from stretto.model.errors import ConfigError

MAX_TOKENS, MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"
_NEEDED = ("model", "prompt", "messages", "stream", MAX_TOKENS, MAX_COMPLETION_TOKENS)
_DISPENSABLE = ("temperature", "seed", "stop", "stream_options", "service_tier")
"""Fields without which an answer is of the same kind. Stop strings are looked for here too."""


@dataclass(frozen=True, slots=True)
class RequestFields:
    """The changes to requests that a server takes.

    Attributes:
        omitted: names of fields that are left out.
        max_tokens_field: name of the field for the largest number of tokens.

    Raises:
        ConfigError: a field that is left out is needed, or there is no such field for the number of tokens.
    """

    omitted: frozenset[str] = frozenset()
    max_tokens_field: str = MAX_TOKENS

    def __post_init__(self) -> None:
        if needed := [name for name in _NEEDED if name in self.omitted]:
            raise ConfigError(
                f"omit names {', '.join(needed)}; a request needs {'these' if needed[1:] else 'it'}"
            )
        if self.max_tokens_field not in (MAX_TOKENS, MAX_COMPLETION_TOKENS):
            raise ConfigError(
                f"max_tokens_field is {self.max_tokens_field!r}; it must be {MAX_TOKENS!r} or "
                f"{MAX_COMPLETION_TOKENS!r}"
            )

    def applied(self, body: Mapping[str, object]) -> dict[str, object]:
        """Return the body of a request as the server takes it."""
        sent = {name: value for name, value in body.items() if name not in self.omitted}
        if MAX_TOKENS in sent:
            sent[self.max_tokens_field] = sent.pop(MAX_TOKENS)
        return sent

    def without_refused(self, refusal: str, sent: Mapping[str, object]) -> RequestFields | None:
        """Return these changes and one more, by which a refused request may be taken; None for no idea.

        Args:
            refusal: the server's words.
            sent: body of the refused request.
        """
        if MAX_TOKENS in sent and MAX_COMPLETION_TOKENS in refusal:
            return replace(self, max_tokens_field=MAX_COMPLETION_TOKENS)
        for name in _DISPENSABLE:
            if name in sent and _is_about(refusal, name):
                return replace(self, omitted=self.omitted | {name})
        return None

    def joined(self, other: RequestFields) -> RequestFields:
        """Return the changes of both."""
        fields = {self.max_tokens_field, other.max_tokens_field} - {MAX_TOKENS}
        return RequestFields(self.omitted | other.omitted, fields.pop() if fields else MAX_TOKENS)

    def __str__(self) -> str:
        said = [f"without {', '.join(sorted(self.omitted))}"] if self.omitted else []
        if self.max_tokens_field != MAX_TOKENS:
            said.append(f"with {self.max_tokens_field} for {MAX_TOKENS}")
        return " and ".join(said) or "as they are"


def _is_about(refusal: str, name: str) -> bool:
    """Return whether the words of a refusal name a field, not only use the word. Some are no words."""
    if "_" in name and re.search(rf"\b{name}\b", refusal):
        return True
    return re.search(rf"(['\"`]|body\.|unsupported |field ){name}\b|\b{name} is not\b", refusal) is not None
