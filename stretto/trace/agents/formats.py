"""The formats of agents' traces, and which of them a file has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from stretto.trace.agents.cache_tester import read_sessions
from stretto.trace.agents.chat_log import read_chat_log
from stretto.trace.agents.dag_jsonl import read_dag_jsonl
from stretto.trace.agents.mooncake import SCHEMA, read_mooncake_trace
from stretto.trace.agents.requests import AgentTrace
from stretto.trace.agents.router_record import read_router_record
from stretto.trace.lines import TraceError, json_lines

READERS: Mapping[str, Callable[[Path], AgentTrace]] = {
    "mooncake": read_mooncake_trace,
    "dag_jsonl": read_dag_jsonl,
    "chat log": read_chat_log,
    "kv-cache-tester": read_sessions,
    "router record": read_router_record,
}
"""Table of the readers, by the name of the format."""

_TIMED = {"timestamp", "created_time", "delay", "delay_ms", "output_length", "output_tokens", "hash_ids"}


def read_agent_trace(path: Path) -> AgentTrace:
    """Read a trace of agents in any of the formats, which its first line tells.

    Raises:
        TraceError: the file cannot be read, or has none of the formats, or does not fit its format.
    """
    name = agent_format(path)
    if name is None:
        raise TraceError(f"{path}, line 1: not a line of a known format ({', '.join(READERS)})")
    return READERS[name](path)


def agent_format(path: Path) -> str | None:
    """Return the name of the format of a trace of agents, or None if the file is something else.

    Raises:
        TraceError: the file cannot be read, or its first line is not JSON.
    """
    first = next(json_lines(path), None)
    if first is None:
        raise TraceError(f"{path}: there are no requests")
    fields = first.fields
    if fields.get("schema") == SCHEMA or "input_length" in fields or "input_tokens" in fields:
        return "mooncake"
    if "requests" in fields and "block_size" in fields:
        return "kv-cache-tester"
    if "attempts" in fields and "completion_tokens" in fields:
        return "router record"
    if "turns" in fields or "orchestrator" in fields:
        return "dag_jsonl"
    if "request" in fields:
        return "chat log"
    if "messages" in fields or "text_input" in fields:
        return "mooncake" if _TIMED & fields.keys() or "text_input" in fields else "chat log"
    return None
