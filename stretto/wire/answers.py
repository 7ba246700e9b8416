"""The answers of both APIs: a whole one, or the chunks of a stream.

A server writes with `whole_json` and `chunk_json`, a client reads with `read_whole` and `read_chunk`.
Reading is strict about texts and counts. Servers differ in the rest (ids, indices, times), where a value of
another type is taken as absent. Counts that a server leaves out are unknown.

A stream of a chat opens with a chunk for each choice that has a role and no text. The chunk that ends a
choice has its `finish`. With `include_usage`, a chunk without choices comes last and has the counts; some
servers leave out the key `choices` there, or write null.

The content of a chat is a text, or a list of parts (Mistral, Databricks): texts are joined, and parts with
thoughts are reasoning.

Source: vLLM 0.32, `openai/completion/protocol.py` and `serving.py`, `openai/chat_completion/protocol.py` and
`serving.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto.model.errors import BadServer, EngineUnavailable
from stretto.model.record import record
from stretto.wire.errors import raise_for_event
from stretto.wire.logprobs import TokenLogprob, read_logprobs
from stretto.wire.paths import Api
from stretto.wire.tool_calls import CallPart, read_tool_calls

_MAX_COUNT = 2**31
_THOUGHTS = {"thinking": "thinking", "reasoning": "summary"}
"""Types of parts of a content that are thoughts, with the name under which each has them: as a text, or as a
list of objects with a text."""
_UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, OverflowError)


@record
class TokenCounts:
    """The token counts of an LLM server's answer (field `usage`).

    Attributes:
        num_cached: number of prompt tokens found in the prefix cache; None if the server does not say.
    """

    num_prompt: int
    num_output: int
    num_cached: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return the token counts as the JSON of an answer's field `usage`."""
        usage: dict[str, object] = {
            "prompt_tokens": self.num_prompt,
            "total_tokens": self.num_prompt + self.num_output,
            "completion_tokens": self.num_output,
        }
        if self.num_cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.num_cached}
        return usage


@record
class CitedSource:
    """A source that a chat's message cites for its whole text.

    Attributes:
        url: address of the source, or its name where it has none.
        title: the source for people to read, with its page or section.
    """

    url: str
    title: str

    def to_json(self, num_chars: int) -> dict[str, object]:
        """Return the source as the JSON of a message's field `annotations`, for a text of so many
        characters.
        """
        kind, cited = "url_citation", self.to_flat_json(num_chars)
        return {"type": kind, kind: {name: value for name, value in cited.items() if name != "type"}}

    def to_flat_json(self, num_chars: int) -> dict[str, object]:
        """Return the source as `to_json` does, in the form of OpenAI's newer API."""
        span = {"start_index": 0, "end_index": num_chars}
        return {"type": "url_citation", **span, "url": self.url, "title": self.title}


@record(kw_only=True)
class AnswerChoice:
    """One of the answers that a server gives to a prompt (OpenAI's "choice"), or in a stream a piece of it.

    Attributes:
        index: number of the prompt times `n`, plus number of the answer.
        reasoning: a model's thoughts before it answers (chat): tokens, but no text.
        tool_calls: calls of tools that the model wants to be made, or pieces of them.
        role: role of a chat's message; in a stream, only in the chunk that opens it.
        finish: why the text has ended, in the server's word: "stop", "length", "abort"…; None while it goes
            on.
        stop_reason: the stop string or token that ended it.
        text_offset: where `text` begins in the whole output.
        token_ids, prompt_token_ids: token ids of the output and of the prompt, if asked for.
        sources: sources of the whole text, which a chat's message cites. They are written, and not read.
    """

    index: int = 0
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[CallPart, ...] = ()
    role: str | None = None
    finish: str | None = None
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    text_offset: int = 0
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    sources: tuple[CitedSource, ...] = ()

    @property
    def has_output(self) -> bool:
        """Whether this answer, or piece of an answer, contains output: text, calls of tools, or the model's
        reasoning before them.
        """
        return bool(self.text or self.reasoning or self.tool_calls)


@record(kw_only=True)
class ModelAnswer:
    """A whole answer of an OpenAI-compatible server, or one chunk of a streamed one.

    Attributes:
        created_s: whole seconds since the epoch.
        counts: tokens of the whole answer, or in a stream so far.
    """

    id: str = ""
    model: str = ""
    created_s: int = 0
    choices: tuple[AnswerChoice, ...] = ()
    counts: TokenCounts | None = None


def read_whole(api: Api, body: Any) -> ModelAnswer:
    """Read the JSON body of a server's answer that is not streamed. Raises as `read_chunk`."""
    return _read(api, body, "message", "an answer")


def read_chunk(api: Api, event: Any) -> ModelAnswer:
    """Read one event of a streamed answer: a piece of the text, or the counts at its end.

    Raises:
        EngineUnavailable: the server reports that it stopped working on the request.
        BadServer: the event does not belong to this API.
        BadReply: the server refuses to go on.
    """
    return _read(api, event, "delta", "a chunk")


def _read(api: Api, body: Any, content: str, what: str) -> ModelAnswer:
    try:
        raise_for_event(body)
        answer = ModelAnswer(
            id=_expected(body.get("id"), str, ""),
            model=_expected(body.get("model"), str, ""),
            created_s=_expected(body.get("created"), int, 0),
            choices=tuple(_read_choice(api, choice, content) for choice in body.get("choices") or ()),
            counts=_read_counts(body.get("usage")),
        )
    except _UNREADABLE as error:
        raise BadServer(f"not {what} of the {api} API: {ascii(body)[:300]}") from error
    for choice in answer.choices:
        if choice.finish in ("abort", "error"):
            raise EngineUnavailable(f"the server ended the request with {choice.finish!r}")
    return answer


def _read_choice(api: Api, choice: Any, content: str) -> AnswerChoice:
    said = (choice.get(content) or {}) if api == "chat" else {"content": choice["text"]}
    text, thoughts = _read_content(said.get("content"))
    logprobs = choice.get("logprobs")
    return AnswerChoice(
        index=_expected(choice.get("index"), int, 0),
        text=text,
        reasoning=_text(said.get("reasoning") or said.get("reasoning_content")) or thoughts,
        tool_calls=read_tool_calls(said.get("tool_calls")),
        role=_expected(said.get("role"), str, None),
        finish=_expected(choice.get("finish_reason"), str, None) or None,
        stop_reason=_expected(choice.get("stop_reason"), (str, int), None),
        logprobs=None if logprobs is None else read_logprobs(logprobs),
        token_ids=_optional(choice.get("token_ids"), tuple),
        prompt_token_ids=_optional(choice.get("prompt_token_ids"), tuple),
    )


def _read_content(content: Any) -> tuple[str, str]:
    """Return the text of a message's content, and the thoughts in it. Raises TypeError or ValueError."""
    if not isinstance(content, list):
        return _text(content), ""
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(_text(part))
        elif part["type"] == "text":
            texts.append(_text(part["text"]))
        elif part["type"] in _THOUGHTS:
            inner = part.get(_THOUGHTS[part["type"]])
            listed = [{"text": inner}] if isinstance(inner, str) else inner or ()
            thoughts += [_text(one.get("text")) for one in listed]
    return "".join(texts), "".join(thoughts)


def _read_counts(usage: Any) -> TokenCounts | None:
    if not usage or usage.get("prompt_tokens") is None or usage.get("completion_tokens") is None:
        return None
    details = usage.get("prompt_tokens_details")
    num_cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return TokenCounts(
        _count(usage["prompt_tokens"]), _count(usage["completion_tokens"]), _optional(num_cached, _count)
    )


def _text(value: Any) -> str:
    """Return a text without half a surrogate pair; None becomes "". Raises TypeError or ValueError."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError
    value.encode()
    return value


def _count(value: Any) -> int:
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value < _MAX_COUNT:
        raise TypeError
    return value


def _expected(value: Any, kind: Any, default: Any) -> Any:
    return value if isinstance(value, kind) else default


def _optional(value: Any, read: Callable[[Any], Any]) -> Any:
    return None if value is None else read(value)
