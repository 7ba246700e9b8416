"""Faults of prompts as JSON, as a line of text, and as metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.operate.prefix.fault import Fault, Loss
from stretto.operate.prefix.guard import PrefixGuard, PromptKind
from stretto.operate.prefix.redaction import printable
from stretto.wire import metric_table as table
from stretto.wire.metrics import Published

_MOST_SHOWN = 50
_ADVICE: Mapping[str, str] = {
    "order of tools": "sort the tools (canonical_tools)",
    "order of keys": "write the same keys in the same order (canonical_tools, where it is tools)",
    "order of text": "keep the order of the parts, or put them behind what stays",
    "set of tools": "send the same tools with every request",
}
_OTHER_ADVICE = "put it behind what stays, or leave it out (drop_line, move_line)"


def faults_json(guard: PrefixGuard) -> list[dict[str, Any]]:
    """Return the faults that lose most."""
    found = sorted(guard.faults(), key=lambda one: -one[1].lost_tokens)[:_MOST_SHOWN]
    return [fault_json(kind, one, Loss(one.num_requests, one.lost_tokens, one.lost_s)) for kind, one in found]


def fault_json(kind: PromptKind, fault: Fault, loss: Loss) -> dict[str, Any]:
    """Return a fault, and what was lost by it."""
    change = fault.last
    return {
        **({"tenant": kind.tenant} if kind.tenant else {}),
        "model": kind.model,
        "path": kind.path,
        "shape": kind.shape,
        "program": fault.program,
        "changes": fault.rule,
        "place": change.place,
        "line": change.line,
        "at_tokens": change.at_tokens,
        "sample": change.sample,
        "requests": loss.num_requests,
        "lost_tokens": loss.tokens,
        "lost_s": round(loss.seconds, 6),
        "advice": _ADVICE.get(fault.rule, _OTHER_ADVICE),
    }


def fault_text(one: Mapping[str, Any]) -> str:
    """Return the JSON of a fault in words. What clients have named is printable in it."""
    one = {name: printable(value) if isinstance(value, str) else value for name, value in one.items()}
    seconds = f", {one['lost_s']:.1f} s of prefills" if one["lost_s"] else ""
    program = f", such as program {one['program']}" if one["program"] else ""
    return (
        f"{one['path']} of {one['model'] or 'any model'} ({one['shape']}){program}\n"
        f"  {one['changes']} changes in {one['place']}, line {one['line']}, after {one['at_tokens']} tokens: "
        f"{one['sample']}\n"
        f"  lost: {one['lost_tokens']} tokens in {one['requests']} requests{seconds}\n"
        f"  {one['advice']}"
    )


def faults_published(guard: PrefixGuard) -> list[Published]:
    """Return what was lost by faults, as metrics."""
    rows = sorted(guard.totals().items())
    return [
        (table.FAULT_REQUESTS, [table.FAULT_REQUESTS.sample(loss.num_requests, *key) for key, loss in rows]),
        (table.FAULT_TOKENS, [table.FAULT_TOKENS.sample(loss.tokens, *key) for key, loss in rows]),
        (table.FAULT_S, [table.FAULT_S.sample(loss.seconds, *key) for key, loss in rows]),
    ]
