"""The options that completions and chat share: how an answer is generated and delivered.

Fields have vLLM's names, which are OpenAI's where OpenAI has the field. A default is not written; the
server's own default applies then.

Source: vLLM 0.32, `openai/completion/protocol.py`, `openai/chat_completion/protocol.py`, and the limits of
`SamplingParams._verify_args`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from stretto.wire.errors import unacceptable
from stretto.wire.fields import Fields, Reader, flag, integer, items, mapping, number_from, text, token_ids
from stretto.wire.output_form import OutputForm, read_response_format, read_structured_outputs

MAX_STOP_STRINGS = 4
MAX_SEQUENCES = 16_384
MAX_LOGPROBS = 20
MAX_SALT_CHARS = 128

_GREEDY = 1e-5
"""Temperature below which the likeliest token is chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a request to an OpenAI-compatible server: everything about an answer but its prompt.

    Attributes:
        max_tokens: largest number of output tokens. None: 16 for completions, all of the context for chat.
        min_tokens: number of tokens before which neither an end of sequence nor a stop string ends the
            output.
        temperature: sampling temperature, 0 is greedy. None here and in the following fields is the server's
            default, mostly 1.
        top_k: number of likeliest tokens to choose from; 0 or -1 for all.
        n: number of answers to one prompt.
        stop: texts that end the output and are not part of it.
        stop_token_ids: tokens that end the output.
        ignore_eos: go on after the end of sequence.
        logprobs: report the log-probability of the chosen token and of this many of the likeliest.
        return_token_ids: report the prompt's token ids and the output's (vLLM).
        stream: answer with an event for each piece.
        include_usage: end the stream with counts of tokens.
        continuous_usage: put counts of tokens in every event.
        priority: smaller is served first, where the server schedules by priority.
        cache_salt: prompts of different salts share nothing in the prefix cache.
        request_id: part of the answer's id.
        form: a constraint on the output.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    return_token_ids: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    priority: int = 0
    cache_salt: str = ""
    request_id: str = ""
    form: OutputForm | None = None

    def to_json(self) -> dict[str, object]:
        """Return the options of a request as fields of its JSON; those at their defaults are left out.

        `logprobs` is left out too, because the two APIs write it differently.
        """
        body: dict[str, object] = {}
        for name, default in _PLAIN.items():
            if (value := getattr(self, name)) != default:
                body[name] = list(value) if isinstance(value, tuple) else value
        reports: dict[str, object] = {"include_usage": self.include_usage} if self.include_usage else {}
        if self.continuous_usage:
            reports["continuous_usage_stats"] = True
        if reports:
            body["stream_options"] = reports
        if self.form is not None:
            body |= self.form.to_json()
        return body


def read_options(sent: Fields, *, max_tokens: int | None, logprobs: int | None) -> Options:
    """Read and check the options of a client's request that completions and chat share.

    Args:
        max_tokens, logprobs: already read by the caller, since the two APIs write them differently.

    Raises:
        RequestRefused: a field has a wrong type, or a value that no server takes.
    """
    plain = {name: sent.take(name, read, _PLAIN[name]) for name, read in _READERS.items()}
    streaming = sent.take("stream_options", mapping, {})
    if streaming and not plain["stream"]:
        raise unacceptable("stream_options", "Stream options can only be defined when `stream=True`.")
    formats = Fields(streaming)
    form = sent.take("structured_outputs", read_structured_outputs, None)
    options = Options(
        **plain,
        max_tokens=max_tokens,
        logprobs=logprobs,
        include_usage=formats.take("include_usage", flag, False),
        continuous_usage=formats.take("continuous_usage_stats", flag, False),
        form=sent.take("response_format", read_response_format, None) or form,
    )
    _check(options)
    return options


def _check(options: Options) -> None:
    """Check the limits that concern two fields together."""
    if options.max_tokens is not None and options.min_tokens > options.max_tokens:
        raise unacceptable(
            "min_tokens",
            f"min_tokens must be less than or equal to max_tokens={options.max_tokens}, "
            f"got {options.min_tokens}.",
        )
    if options.n > 1 and options.temperature is not None and options.temperature < _GREEDY:
        raise unacceptable("n", f"n must be 1 when using greedy sampling, got {options.n}.")


def _stop(name: str, value: Any) -> tuple[str, ...]:
    """Read one text, or a list of texts."""
    stop = (
        (text(name, value),)
        if isinstance(value, str)
        else items(text, max_items=MAX_STOP_STRINGS)(name, value)
    )
    if "" in stop:
        raise unacceptable(name, "stop cannot contain an empty string.")
    return stop


def _salt(name: str, value: Any) -> str:
    salt = text(name, value)
    if not 0 < len(salt) <= MAX_SALT_CHARS or any(char in "@/\\\0" for char in salt):
        raise unacceptable(
            name,
            f"cache_salt must be a text of 1 to {MAX_SALT_CHARS} characters without '@', '/', '\\' and NUL.",
        )
    return salt


_READERS: Mapping[str, Reader[Any]] = {
    "min_tokens": integer(0),
    "temperature": number_from(0, 2),
    "top_p": number_from(0, 1, is_open=True),
    "top_k": integer(-1),
    "min_p": number_from(0, 1),
    "presence_penalty": number_from(-2, 2),
    "frequency_penalty": number_from(-2, 2),
    "repetition_penalty": number_from(0, is_open=True),
    "seed": integer(),
    "n": integer(1, MAX_SEQUENCES),
    "stop": _stop,
    "stop_token_ids": token_ids,
    "ignore_eos": flag,
    "return_token_ids": flag,
    "stream": flag,
    "priority": integer(),
    "cache_salt": _salt,
    "request_id": text,
}
_PLAIN: Mapping[str, Any] = {
    field.name: field.default for field in fields(Options) if field.name in {*_READERS, "max_tokens"}
}
"""Fields that are written under their own names, and their defaults."""
