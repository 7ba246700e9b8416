"""The ids by which clients name a program in headers and body fields, in one table.

A program is named by its root: the session of a coding agent, not one of its sub-agents. A client that names
a child and its parent names the parent's program. Ids are the client's word: `recogniser.py` keeps those of
different tenants apart.

Some ids name more than one program: keys by which prompts are routed or cached may be the same for a whole
app. They are *hints*, which count only where the content of a prompt says nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stretto.model.record import record

_MAX_ID = 512
"""Characters of an id that count; a longer one is cut."""
_MAX_CONTEXT = 16_384
"""Characters of a context that comes as JSON inside a text; a longer one is not read."""
_TRUE = frozenset((b"1", b"true", b"yes"))


@record
class ProgramIds:
    """What a request says of its program.

    Attributes:
        name: id of the program, with the scheme of ids that it belongs to; "" if the request has none.
        parent: id of the program that started this one; "" if the request names none.
        hint: id that may name several programs, such as a key for caches; "" if there is none.
        continues: id of the stored answer that the prompt goes on with; "" if there is none.
        is_final: whether the client says that the program makes no other request.
    """

    name: str = ""
    parent: str = ""
    hint: str = ""
    continues: str = ""
    is_final: bool = False


@record
class HeaderIds:
    """The headers of one scheme of ids; "" where it has none."""

    scheme: str
    name: bytes
    parent: bytes = b""
    final: bytes = b""
    is_hint: bool = False


HEADERS = (
    HeaderIds("stretto", b"x-stretto-program", b"x-stretto-program-parent", b"x-stretto-program-final"),
    HeaderIds("dynamo", b"x-dynamo-session-id", b"x-dynamo-parent-session-id", b"x-dynamo-session-final"),
    HeaderIds("claude-code", b"x-claude-code-session-id"),
    HeaderIds("deepseek", b"x-deepseek-harness-session-id", b"x-deepseek-harness-parent-session-id"),
    HeaderIds("codex-session", b"session-id"),
    HeaderIds("codex-session", b"session_id"),
    HeaderIds("codex-thread", b"thread-id", b"x-codex-parent-thread-id"),
    HeaderIds("session", b"x-session-id", b"x-parent-session-id"),
    HeaderIds("session", b"x-session-affinity", b"x-parent-session-id"),
    HeaderIds("aibrix", b"x-aibrix-session-key"),
    HeaderIds("smg", b"x-smg-routing-key", is_hint=True),
    HeaderIds("llm-d", b"x-llm-d-inference-fairness-id", is_hint=True),
    HeaderIds("llm-d", b"x-gateway-inference-fairness-id", is_hint=True),
)
"""The schemes of headers. The first one that names a program counts. Ids of sub-agents, such as
`x-claude-code-agent-id`, are not in the table: their session is."""

_HEADER_NAMES = frozenset(
    name for scheme in HEADERS for name in (scheme.name, scheme.parent, scheme.final) if name
)


@record
class FieldIds:
    """One field of a body that names a program: the path to it, and what reads its value."""

    scheme: str
    path: tuple[str, ...]
    read: Callable[[Any], tuple[str, str]]
    """Returns the id of the program and that of its parent."""
    is_hint: bool = False


def _text(value: Any) -> tuple[str, str]:
    return (value if isinstance(value, str) else "", "")


def _object(value: Any) -> tuple[str, str]:
    """Read a conversation, which is named by a text or by an object with an `id`."""
    return _text(value.get("id") if isinstance(value, dict) else value)


def _agent_context(value: Any) -> tuple[str, str]:
    """Read a context of an agent: an object, or its JSON. The task or session counts before one agent."""
    if isinstance(value, str) and len(value) <= _MAX_CONTEXT:
        value = _object_of_json(value)
    if not isinstance(value, dict):
        return "", ""
    found = {name: one for name, one in value.items() if isinstance(one, str)}
    session, above = found.get("session_id", ""), found.get("parent_session_id", "")
    if root := found.get("task_id") or session:
        return root, above
    agent = found.get("program_id") or found.get("trajectory_id", "")
    return agent, found.get("parent_program_id") or found.get("parent_trajectory_id", "")


def _claude_user(value: Any) -> tuple[str, str]:
    """Read the session in the user of Claude Code: `user_…_session_ID`, or JSON with a `session_id`."""
    if not isinstance(value, str):
        return "", ""
    if value.startswith("{") and len(value) <= _MAX_CONTEXT:
        found = _object_of_json(value)
        return _text(found.get("parent_session_id") or found.get("session_id"))
    return _text(value.rpartition("_session_")[2] if "_session_" in value else "")


def _object_of_json(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


FIELDS = (
    FieldIds("agentic-context", ("vllm_xargs", "agentic_context"), _agent_context),
    FieldIds("agentic-context", ("agent_hint",), _agent_context),
    FieldIds("dynamo", ("nvext", "agent_context"), _agent_context),
    FieldIds("dynamo", ("nvext", "agent_hints"), _agent_context),
    FieldIds("program", ("program_id",), _text),
    FieldIds("session", ("session_id",), _text),
    FieldIds("session", ("session_params", "session_id"), _text),
    FieldIds("session", ("session_params", "id"), _text),
    FieldIds("conversation", ("conversation",), _object),
    FieldIds("metadata", ("metadata", "program_id"), _text),
    FieldIds("metadata", ("metadata", "session_id"), _text),
    FieldIds("metadata", ("metadata", "conversation_id"), _text),
    FieldIds("metadata", ("metadata", "thread_id"), _text),
    FieldIds("claude-code", ("metadata", "user_id"), _claude_user),
    FieldIds("cache-key", ("prompt_cache_key",), _text, is_hint=True),
)
"""The fields of bodies, after the headers. The first one that names a program counts."""
_FIELD_NAMES = frozenset(field.path[0] for field in FIELDS)


def read_ids(headers: Iterable[tuple[bytes, bytes]], fields: Mapping[str, Any]) -> ProgramIds:
    """Return what a request says of its program, from headers (names in lower case) and body fields."""
    sent = {name: value for name, value in headers if name in _HEADER_NAMES}
    name = parent = hint = ""
    is_final = False
    for scheme in HEADERS if sent else ():
        if not (value := sent.get(scheme.name)):
            continue
        if scheme.is_hint:
            hint = hint or _named(scheme.scheme, value.decode("latin-1"))
        else:
            name = _named(scheme.scheme, value.decode("latin-1"))
            parent = _named(scheme.scheme, sent.get(scheme.parent, b"").decode("latin-1"))
            is_final = sent.get(scheme.final, b"").strip().lower() in _TRUE
            break
    for field in () if _FIELD_NAMES.isdisjoint(fields) else FIELDS:
        if field.path[0] in fields and not (hint if field.is_hint else name):
            found, above = field.read(_value(fields, field.path))
            if found and field.is_hint:
                hint = _named(field.scheme, found)
            elif found:
                name, parent = _named(field.scheme, found), _named(field.scheme, above)
    continues = fields.get("previous_response_id")
    return ProgramIds(name, parent, hint, continues[:_MAX_ID] if isinstance(continues, str) else "", is_final)


def _named(scheme: str, value: str) -> str:
    value = value.strip()
    return f"{scheme}:{value[:_MAX_ID]}" if value else ""


def _value(fields: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = fields
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value
