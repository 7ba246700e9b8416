"""Reading a request's body as far as its placement needs it: its model, length, and the prompt's key.

The key of a prompt is made of its text (`wire/prompt_texts.py`). Keys only place: a prompt that is read in
another way than the server reads it costs time and never changes an answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np

from stretto.cluster.placement_request import PromptKey
from stretto.cluster.prompt_keys import BYTES, hash_text
from stretto.router.body_edits import form_model, members_of, values_of
from stretto.router.chats import chat_of
from stretto.router.messages import RoutedRequest
from stretto.router.programs import asked_program
from stretto.router.reading import ReadingRules, RequestHead
from stretto.router.stored_names import id_in_path, id_named
from stretto.router.urgency import read_objective
from stretto.wire.errors import ApiError, RequestRefused, malformed
from stretto.wire.json_values import read_json
from stretto.wire.prompt_texts import content_text, prompt_text, tool_name

_BYTES_PER_TOKEN = 4
_DIGITS = np.array([0, 6, 12, 18], np.uint32)
"""Places of the four digits, of 6 bits each, by which a token id is written as text."""
_MAX_KEYED = 2**20 * _BYTES_PER_TOKEN
"""Characters, or token ids, of a prompt that its key covers: a million tokens or more."""
_MAX_NAME = 2048
"""Characters of the name of a model; the rest of a longer one is left out, as no worker lists it."""
_MAX_EACH = 128
"""Largest believable number of answers to one prompt."""
_MAX_ITEMS = 1_000_000
"""Number of values of a body that takes 100 megabytes, and the interpreter for too long."""
_MAX_KEPT_NAMES = 4000
"""Characters of the names of a request's fields and tools up to which their digest is kept."""
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens")
_HEDGED = frozenset(("/v1/completions", "/v1/chat/completions", "/v1/embeddings"))
"""Paths of requests that leave nothing at a worker, unless they ask to be stored."""
_SPLIT = frozenset(("/v1/completions", "/v1/chat/completions"))
"""Paths of requests whose prompt and answer two workers may share."""

_Text: TypeAlias = "str | array[int]"


def read_request(head: RequestHead, rules: ReadingRules, body: bytes) -> RoutedRequest:
    """Read the body of a request. One that is not JSON by its type is read for its model alone.

    Raises:
        RequestRefused: the body is not a JSON object, names no model by a text, or asks for a class that
            there is not.
    """
    path, kind = head.path, head.content_type
    is_empty = not body and bool(id_in_path(path))  # such as the cancelling of a response
    if is_empty or ("json" not in kind and (kind or not body.lstrip().startswith(b"{"))):
        return _read_form(head, rules, body)
    fields = _read_fields(body)
    model = _model(fields)
    try:
        repaired = rules.repairs.repaired(path, fields, body)
        fields = repaired.fields
        text = _text(path, fields)
    except RecursionError as error:
        raise malformed("", "nested too deeply") from error
    key = None
    if rules.uses_keys and text is not None:
        key = _key(text, f"{rules.aliases.only(model)}\0{fields.get('cache_salt') or ''}")
    looked_up = _looked_up(path, fields) if rules.has_reports else None
    headers, limit, num_answers = head.headers, _limit(fields), _num_answers(fields)
    is_one = num_answers == 1 and limit not in (0, 1)
    return RoutedRequest(
        model=model,
        num_tokens=_num_tokens(text, body),
        max_tokens=limit,
        num_answers=num_answers,
        key=key,
        text=looked_up if isinstance(looked_up, str) else "",
        ids=looked_up if isinstance(looked_up, array) else (),
        chat=chat_of(path, fields) if rules.has_reports and rules.reads_chats else None,
        is_repeatable=head.is_repeatable,
        client_key=head.client_key,
        tenant=head.tenant,
        stored_id=id_named(path, fields, body),
        objective=read_objective(fields),
        shape="" if key is None else _shape(fields),
        may_hedge=path in _HEDGED and not fields.get("store"),
        may_split=is_one and path in _SPLIT and text is not None and _may_split(fields),
        is_streamed=fields.get("stream") is True,
        priority_at=members_of(body, "priority") if rules.cuts_priority and "priority" in fields else (),
        alias_at=values_of(body, "model") if model in rules.aliases else (),
        edits=repaired.edits,
        repaired=repaired.told,
        deadline_s=head.deadline_s,
        asked=None if headers is None else asked_program(path, headers, fields, head.owner),
    )


def _read_form(head: RequestHead, rules: ReadingRules, body: bytes) -> RoutedRequest:
    """Read the model of a body that is not JSON by its type."""
    place = form_model(head.content_type, body)
    name = "" if place is None else body[place[0] : place[1]][:_MAX_NAME].decode("utf-8", "replace")
    return RoutedRequest(
        model=name,
        num_tokens=len(body) // _BYTES_PER_TOKEN,
        is_repeatable=head.is_repeatable,
        client_key=head.client_key,
        tenant=head.tenant,
        stored_id=id_in_path(head.path),
        deadline_s=head.deadline_s,
        alias_at=(place,) if place is not None and name in rules.aliases else (),
        is_form=True,
    )


def _read_fields(body: bytes) -> Mapping[str, Any]:
    """Return the object of JSON that a body is. Raises RequestRefused."""
    check_num_items(body)
    try:
        fields = read_json(body)
    except (ValueError, RecursionError) as error:
        raise malformed("", f"not JSON: {error!s:.200}") from error
    if not isinstance(fields, dict):
        raise malformed("", "must be a JSON object")
    return fields


def _model(fields: Mapping[str, Any]) -> str:
    """Return the name of the model that a request asks for. Raises RequestRefused."""
    model = fields.get("model") or ""
    if not isinstance(model, str):
        raise malformed("model", "must be a text")
    return model[:_MAX_NAME]


def check_num_items(body: bytes) -> None:
    """Check that reading a body does not take many times its length of memory. Raises RequestRefused.

    Commas and brackets inside texts count too, of which a text has few.
    """
    if len(body) > _MAX_ITEMS and sum(map(body.count, (b",", b"[", b"{"))) > _MAX_ITEMS:
        message = f"the body has more than {_MAX_ITEMS} values"
        raise RequestRefused(ApiError(413, message, "Bad Request", "body"))


def _looked_up(path: str, fields: Mapping[str, Any]) -> _Text | None:
    """Return the only prompt of a completion whose token ids a worker may report.

    A salted prompt has blocks of its own, which no report names.
    """
    is_completion = path.endswith("/completions") and "messages" not in fields
    prompt = fields.get("prompt")
    if not is_completion or fields.get("cache_salt") or fields.get("add_special_tokens", True) is not True:
        return None
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and type(prompt[0]) is int):
        return _prompt(prompt)
    return None


def _key(text: _Text, salt: str) -> PromptKey:
    """Return the key of a text, or of token ids, in blocks of 64 tokens by count or by estimate."""
    text = text[:_MAX_KEYED]
    if isinstance(text, array):
        digits = (np.frombuffer(text, np.uint32)[:, None] >> _DIGITS) & 63
        text, salt = (digits + ord("0")).astype(np.uint8).tobytes().decode("ascii"), f"{salt}\0ids"
    return PromptKey(hash_text(text, salt), BYTES.block_tokens)


def _num_tokens(text: _Text | None, body: bytes) -> int:
    if isinstance(text, array):
        return len(text)
    return (len(body) if text is None else len(text)) // _BYTES_PER_TOKEN


def _limit(fields: Mapping[str, Any]) -> int | None:
    parameters = fields.get("sampling_params")
    for name in _LIMITS:
        value = fields.get(name)
        if value is None and isinstance(parameters, dict):
            value = parameters.get(name)
        if type(value) is int and value >= 0:
            return value
    return None


def _num_answers(fields: Mapping[str, Any]) -> int:
    """Return how many answers a request asks for: its number of prompts times `n`, the answers to each."""
    prompt, each = fields.get("prompt"), fields.get("n")
    num_prompts = len(prompt) if isinstance(prompt, list) and prompt and type(prompt[0]) is not int else 1
    return num_prompts * (each if type(each) is int and 0 < each <= _MAX_EACH else 1)


def _may_split(fields: Mapping[str, Any]) -> bool:
    """Return whether two workers may share a request that has one answer of more than one token: its prompt
    is not part of the answer, and its client does not see to that itself. vLLM refuses an answer of one token
    where a call of a tool is required.
    """
    asked = (
        fields.get("kv_transfer_params"),
        fields.get("echo"),
        fields.get("prompt_logprobs"),
        fields.get("store"),
        fields.get("tool_choice") == "required",
    )
    return not any(asked)


def _shape(fields: Mapping[str, Any]) -> str:
    """Return what requests of one kind of program have in common: the number of their tools, and a digest of
    the names of these and of their fields.
    """
    tools = fields.get("tools") or fields.get("functions")
    names = sorted(map(tool_name, tools)) if isinstance(tools, list) else []
    data = ",".join([*sorted(fields), "", *names])
    digest = _digest(data) if len(data) <= _MAX_KEPT_NAMES else _digest.__wrapped__(data)
    return f"{len(names)} tools, {digest}" if names else digest


@lru_cache(maxsize=256)
def _digest(data: str) -> str:
    return blake2b(data.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def _text(path: str, fields: Mapping[str, Any]) -> _Text | None:
    """Return the prompt of a request; None if it is not known to have one."""
    if (text := prompt_text(path, fields)) is not None:
        return text
    reader = _READERS.get(path.rsplit("/", 1)[-1])
    return None if reader is None else reader(fields)


def _completion(fields: Mapping[str, Any]) -> _Text | None:
    return _prompt(fields.get("prompt"))


def _generate(fields: Mapping[str, Any]) -> _Text | None:
    return _prompt(fields.get("text") or fields.get("input_ids"))


def _prompt(prompt: Any) -> _Text | None:
    """Return a text or token ids, or several of them as one."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], list):
            prompt = [token for one in prompt if isinstance(one, list) for token in one]
        try:
            return array("I", prompt)
        except (TypeError, OverflowError):
            return content_text(prompt)
    return None


_READERS: Mapping[str, Callable[[Mapping[str, Any]], _Text | None]] = {
    "completions": _completion,
    "generate": _generate,
}
"""Readers of prompts without messages."""
