"""Writes answers of models as OpenAI's API has them: whole, and in chunks."""

from __future__ import annotations

from stretto.wire.answers import AnswerChoice, ModelAnswer
from stretto.wire.logprobs import logprobs_json
from stretto.wire.paths import Api


def whole_json(api: Api, answer: ModelAnswer) -> dict[str, object]:
    """Return the JSON body of a server's whole answer, in the form of the `api` (completions or chat)."""
    choices = [
        {
            "index": choice.index,
            **_whole_content(api, choice),
            "logprobs": _logprobs(api, choice),
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
            "token_ids": _listed(choice.token_ids),
            **({"prompt_token_ids": _listed(choice.prompt_token_ids)} if api == "completions" else {}),
        }
        for choice in answer.choices
    ]
    kind = "chat.completion" if api == "chat" else "text_completion"
    return {**_head(answer, kind), "choices": choices, "usage": answer.counts and answer.counts.to_json()}


def chunk_json(api: Api, answer: ModelAnswer) -> dict[str, object]:
    """Return the JSON of one event of a streamed answer, in the form of the `api` (completions or chat)."""
    choices = [
        {
            "index": choice.index,
            **({"delta": _delta(choice)} if api == "chat" else {"text": choice.text}),
            "logprobs": _logprobs(api, choice),
            "finish_reason": choice.finish,
            **({} if choice.finish is None else {"stop_reason": choice.stop_reason}),
            **_ids("token_ids", choice.token_ids),
            **_ids("prompt_token_ids", choice.prompt_token_ids),
        }
        for choice in answer.choices
    ]
    kind = "chat.completion.chunk" if api == "chat" else "text_completion"
    usage = {} if answer.counts is None else {"usage": answer.counts.to_json()}
    return {**_head(answer, kind), "choices": choices, **usage}


def _head(answer: ModelAnswer, kind: str) -> dict[str, object]:
    return {"id": answer.id, "object": kind, "created": answer.created_s, "model": answer.model}


def _whole_content(api: Api, choice: AnswerChoice) -> dict[str, object]:
    if api == "completions":
        return {"text": choice.text}
    message: dict[str, object] = {"role": choice.role or "assistant", "content": choice.text}
    if choice.reasoning:
        message["reasoning"] = choice.reasoning
    if choice.tool_calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [call.to_json(is_whole=True) for call in choice.tool_calls]
    return {"message": message | _annotations(choice, len(choice.text))}


def _delta(choice: AnswerChoice) -> dict[str, object]:
    delta: dict[str, object] = {} if choice.role is None else {"role": choice.role}
    if choice.reasoning:
        delta["reasoning"] = choice.reasoning
    if choice.text or (choice.role is not None and not choice.reasoning):
        delta["content"] = choice.text
    if choice.tool_calls:
        delta["tool_calls"] = [call.to_json(is_whole=False) for call in choice.tool_calls]
    return delta | _annotations(choice, choice.text_offset)


def _annotations(choice: AnswerChoice, num_chars: int) -> dict[str, object]:
    return {"annotations": [one.to_json(num_chars) for one in choice.sources]} if choice.sources else {}


def _logprobs(api: Api, choice: AnswerChoice) -> dict[str, object] | None:
    return None if choice.logprobs is None else logprobs_json(api, choice.logprobs, choice.text_offset)


def _listed(ids: tuple[int, ...] | None) -> list[int] | None:
    return None if ids is None else list(ids)


def _ids(name: str, ids: tuple[int, ...] | None) -> dict[str, object]:
    return {} if ids is None else {name: list(ids)}
