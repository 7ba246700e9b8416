"""What sees the requests of a door that a command runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stretto.operate.watch import Watch


def watch_of(otel: str | None) -> Watch:
    """Return what counts and follows a door's requests, and sends their spans to the collector at the URL
    `otel`, if one is given.

    Raises:
        ConfigError: it is no URL.
    """
    from stretto.operate.watch import Watch

    if otel is None:
        return Watch()
    from stretto.operate.otel import SpanSender

    return Watch(SpanSender(otel))
