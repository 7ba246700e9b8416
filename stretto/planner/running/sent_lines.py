"""What servers that speak OpenAI's API get of a line of a Batch file: its body as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from reprlib import repr as short
from typing import Any, Protocol, TypeAlias

from stretto.graph.one_call import PromptMessage
from stretto.model.errors import ConfigError, StrettoError
from stretto.planner.application import ModelNode
from stretto.planner.running.planned_calls import CallAnswer
from stretto.planner.running.run_request import SentLine
from stretto.wire.batch_lines import check_whole

CHAT = "/v1/chat/completions"
_LIMITS = {
    CHAT: ("max_tokens", "max_completion_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
    "/v1/embeddings": (),
    "/v1/rerank": (),
    "/v1/moderations": (),
}
"""Fields that limit the answer to a line, by its path; the first one is what a node's limit becomes."""
ReadLine: TypeAlias = Callable[[SentLine], tuple[Sequence[PromptMessage], int]]
"""Returns the longest prompt of a line that is handed on, and the most tokens of an answer to it. Raises
UserError for a line that is refused."""


class AskLines(Protocol):
    """Asks for the answers to lines that are handed on."""

    def begin(self, line: SentLine, ended: Callable[[CallAnswer | StrettoError], None]) -> Callable[[], None]:
        """Begin to ask, and return what cancels that. `ended` is called once, with the answer or why there is
        none.
        """

    def close(self) -> None:
        """Let go of what asking needs."""


def sent_line(url: str, body: Mapping[str, Any], node: ModelNode, limit: int | None) -> SentLine:
    """Return what a line of a Batch file sends.

    Args:
        limit: longest answer, for a line that has none of its own; None leaves it out.

    Raises:
        ConfigError, LineRefused: the line cannot be handed on.
    """
    if url not in _LIMITS:
        raise ConfigError(f"url must be one of {', '.join(_LIMITS)}, got {short(url)}")
    if node.prompt or node.calls > 1:
        raise ConfigError(
            f"body: node {node.name!r} has a prompt of its own, or several calls; give its requests as lines "
            "with a prompt"
        )
    check_whole(body.get("stream"))
    names = _LIMITS[url]
    is_limited = not names or any(body.get(name) is not None for name in names)  # by 0 too: an echo alone
    own = {} if limit is None or is_limited else {names[0]: limit}
    return SentLine(url, {**body, "model": node.model, **own})
