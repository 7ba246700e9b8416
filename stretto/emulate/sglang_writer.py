"""SGLang's own way to ask for texts, `/generate`: how requests are read, and the bytes of answers.

A streamed answer has the whole text so far in every event.

Source: SGLang 0.5, `managers/io_struct.py` (`GenerateReqInput`), `sampling/sampling_params.py`, and its
documentation "SGLang Native APIs".
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.emulate.prepared import PreparedChoice, PreparedRequest
from stretto.wire import sse
from stretto.wire.errors import malformed, unacceptable
from stretto.wire.fields import Fields, flag, integer, items, mapping, number_from, text, token_ids
from stretto.wire.options import MAX_SEQUENCES, Options
from stretto.wire.output_form import OutputForm, read_structured_outputs
from stretto.wire.requests import CompletionRequest, WirePrompt

_DEFAULT_TOKENS = 128


def read_generate(body: Mapping[str, Any]) -> tuple[CompletionRequest, bool]:
    """Read the body of a request to `/generate`; return it as a completion, and whether its prompt is a list
    of several.

    Raises:
        RequestRefused: a value is malformed.
    """
    sent = Fields(body)
    prompts, is_list = _prompts(sent)
    sampling = Fields(sent.take("sampling_params", mapping, {}))
    options = Options(
        max_tokens=sampling.take("max_new_tokens", integer(0), _DEFAULT_TOKENS),
        min_tokens=sampling.take("min_new_tokens", integer(0), 0),
        temperature=sampling.take("temperature", number_from(0), None),
        n=sampling.take("n", integer(1, MAX_SEQUENCES), 1),
        stop=sampling.take("stop", _stop, ()),
        stop_token_ids=sampling.take("stop_token_ids", token_ids, ()),
        ignore_eos=sampling.take("ignore_eos", flag, False),
        stream=sent.take("stream", flag, False),
        priority=sent.take("priority", integer(), 0),
        request_id=sent.take("rid", text, ""),
        form=_form(sampling),
    )
    return CompletionRequest(prompts=prompts, options=options), is_list


class SGLangWriter:
    """A writer of answers in SGLang's own form.

    Args:
        is_list: whether the answer is a list, because the request had several prompts or wanted several
            answers.
        number: number of the request, part of the answers' ids.
    """

    def __init__(self, request: PreparedRequest, number: int, *, is_list: bool) -> None:
        self._request = request
        self._is_list = is_list
        self._id = request.options.request_id or f"{number:032x}"
        self._begun_s = time.monotonic()

    def opened(self, choice: PreparedChoice) -> bytes:
        """Return nothing: streams begin with their first token."""
        return b""

    def token(self, choice: PreparedChoice, number: int, num_cached: int) -> bytes:
        """Return the event of one token, with all text so far."""
        return sse.encode_event(self._of(choice, number + 1, num_cached))

    def empty(self, choice: PreparedChoice) -> bytes:
        """Return the event of an answer without a token."""
        return sse.encode_event(self._of(choice, 0, 0))

    def ended(self, num_cached: tuple[int, ...]) -> bytes:
        """Return the mark that ends the stream."""
        return sse.DONE

    def whole(self, num_cached: tuple[int, ...]) -> bytes:
        """Return the whole answer."""
        answers = [
            self._of(choice, len(choice.answer.ids), cached)
            for choice, cached in zip(self._request.choices, num_cached, strict=True)
        ]
        return json.dumps(answers if self._is_list else answers[0], ensure_ascii=False).encode()

    def _of(self, choice: PreparedChoice, num_tokens: int, num_cached: int) -> dict[str, object]:
        answer = choice.answer
        finish: dict[str, object] | None = None
        if num_tokens == len(answer.ids):
            finish = {"type": answer.finish}
            if answer.finish == "length":
                finish["length"] = num_tokens
            elif answer.stop_reason is not None:
                finish["matched"] = answer.stop_reason
        return {
            "text": "".join(answer.pieces[:num_tokens]),
            "output_ids": list(answer.ids[:num_tokens]),
            "meta_info": {
                "id": self._id,
                "finish_reason": finish,
                "prompt_tokens": len(choice.prompt),
                "weight_version": "default",
                "completion_tokens": num_tokens,
                "cached_tokens": num_cached,
                "e2e_latency": time.monotonic() - self._begun_s,
            },
            **({"index": choice.index} if self._is_list else {}),
        }


def _prompts(sent: Fields) -> tuple[tuple[WirePrompt, ...], bool]:
    def texts(name: str, value: Any) -> tuple[tuple[WirePrompt, ...], bool]:
        return ((text(name, value),), False) if isinstance(value, str) else (items(text)(name, value), True)

    def ids(name: str, value: Any) -> tuple[tuple[WirePrompt, ...], bool]:
        if isinstance(value, list) and value and isinstance(value[0], list):
            return items(token_ids)(name, value), True
        return (token_ids(name, value),), False

    as_text = sent.take("text", texts, None)
    as_ids = sent.take("input_ids", ids, None)
    if (as_text is None) == (as_ids is None):
        raise unacceptable("text", "Either text or input_ids should be provided, and not both.")
    prompts, is_list = as_text or as_ids or ((), False)
    if not prompts or not all(prompts):
        raise unacceptable("text", "The prompt cannot be empty.")
    return prompts, is_list


def _stop(name: str, value: Any) -> tuple[str, ...]:
    stop: Sequence[str] = (text(name, value),) if isinstance(value, str) else items(text)(name, value)
    if "" in stop:
        raise unacceptable(name, "stop cannot contain an empty string.")
    return tuple(stop)


def _form(sampling: Fields) -> OutputForm | None:
    schema = sampling.take("json_schema", text, None)
    regex = sampling.take("regex", text, None)
    if schema is not None and regex is not None:
        raise malformed("sampling_params", "only one of json_schema and regex can be set")
    if schema is not None:
        return read_structured_outputs("sampling_params", {"json": schema})
    return None if regex is None else OutputForm("regex", regex)
