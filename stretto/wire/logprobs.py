"""Log-probabilities of generated tokens, in the two forms in which they are sent.

Completions list texts, log-probabilities and offsets side by side; chat has a record for each token.

Source: vLLM 0.32, `openai/completion/serving.py` (`_create_completion_logprobs`), `openai/chat_completion/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stretto.wire.paths import Api


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A generated token with its log-probability, and those of the likeliest tokens in its place.

    Attributes:
        top: (text, log-probability) of each of these, the likeliest first.
    """

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


def logprobs_json(api: Api, tokens: Sequence[TokenLogprob], text_offset: int = 0) -> dict[str, object]:
    """Return the log-probabilities of tokens as the JSON of the field `logprobs` of one of a server's
    answers.

    Args:
        text_offset: where the first token begins in the whole output, in characters.
    """
    if api == "chat":
        return {
            "content": [
                {
                    **_record(token.token, token.logprob),
                    "top_logprobs": [_record(*likely) for likely in token.top],
                }
                for token in tokens
            ]
        }
    offsets = [text_offset]
    for token in tokens:
        offsets.append(offsets[-1] + len(token.token))
    return {
        "text_offset": offsets[:-1],
        "token_logprobs": [token.logprob for token in tokens],
        "tokens": [token.token for token in tokens],
        "top_logprobs": [dict(token.top) for token in tokens],
    }


def read_logprobs(field: Any) -> tuple[TokenLogprob, ...]:
    """Read the field `logprobs` (log-probabilities of tokens) of one of a server's answers, in the form of
    either API (completions or chat).

    Raises:
        LookupError, TypeError, ValueError, AttributeError: the field has another form.
    """
    if "content" in field:
        return tuple(
            TokenLogprob(
                record["token"],
                float(record["logprob"]),
                tuple(
                    (likely["token"], float(likely["logprob"])) for likely in record.get("top_logprobs") or ()
                ),
            )
            for record in field["content"] or ()
        )
    tops = field.get("top_logprobs") or [None] * len(field["tokens"])
    return tuple(
        TokenLogprob(
            token, float(logprob), tuple((text, float(value)) for text, value in (top or {}).items())
        )
        for token, logprob, top in zip(field["tokens"], field["token_logprobs"], tops, strict=True)
    )


def _record(token: str, logprob: float) -> dict[str, object]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
