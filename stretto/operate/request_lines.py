"""A line of log at INFO for each request that has ended: who asked, where it went and why, and its times.

No line has a value of a prompt or an answer, a header, or a query of a URL.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from stretto.sched.observer import Observer
from stretto.sched.request_trace import RequestTrace

REQUESTS = logging.getLogger("stretto.requests")
"""Logger of the lines. A record's attribute `request` has the fields, for a formatter that writes JSON."""
_MAX_CHARS = 120


class RequestLines(Observer):
    """An observer that logs requests. It costs nothing where the level INFO is not logged."""

    def on_request_ended(self, trace: RequestTrace, now_s: float) -> None:
        """Log a request."""
        if REQUESTS.isEnabledFor(logging.INFO):
            log_fields(fields_of(trace, now_s))


def log_fields(fields: Mapping[str, object]) -> None:
    """Log the fields of a request; those without a value are left out."""
    given = {name: value for name, value in fields.items() if value is not None and value != ""}
    words = " ".join(f"{name}={_word(value)}" for name, value in given.items())
    REQUESTS.info("request %s", words, extra={"request": given})


def fields_of(trace: RequestTrace, now_s: float) -> dict[str, object]:
    """Return what the line of a request says. Times are seconds."""
    last = trace.tries[-1] if trace.tries else None
    waited_s = 0.0 if last is None else last.waited_s
    held_s = 0.0 if last is None else last.held_s
    first_s = trace.first_token_s
    return {
        "id": trace.request_id,
        "door": trace.door,
        "path": trace.target,
        "tenant": trace.tenant,
        "program": trace.program,
        "step": trace.step,
        "model": trace.model,
        "status": trace.status,
        "worker": "" if last is None else last.name,
        "total_s": round(now_s - trace.arrived_s, 4),
        "held_s": round(held_s, 4),
        "queue_s": round(waited_s - held_s, 4),
        "first_token_s": None if first_s is None else round(first_s - trace.arrived_s, 4),
        "prompt_tokens": trace.prompt_tokens,
        "cached_tokens": trace.cached_tokens,
        "output_tokens": trace.output_tokens,
        "attempts": len(trace.tries),
        "waited_for": trace.why,
        "why": trace.reason,
        "error": trace.error,
    }


def _word(value: object) -> str:
    """Return a value as one word or one quoted text, on one line."""
    text = str(value)[:_MAX_CHARS]
    is_word = text.isascii() and text.isprintable() and not any(letter in text for letter in ' "=')
    return text if is_word else json.dumps(text)
